//! The databases of users' tests: the pools that a harness accepts, and SQLite in a temporary file.

use futures_util::future::BoxFuture;

#[cfg(feature = "sqlite")]
use super::failure::Caller;
use crate::store::IntoStore;

/// A pool that a [`Harness`](crate::testing::Harness) can use: of a database that is built in.
pub trait TestPool: IntoStore + Clone + Send + Sync + sealed::Sealed + 'static {
    /// The one number that a query returns, such as a `count(*)`.
    #[doc(hidden)]
    fn number(&self, sql: String) -> BoxFuture<'_, sqlx::Result<i64>>;
}

mod sealed {
    pub trait Sealed {}
    #[cfg(feature = "sqlite")]
    impl Sealed for sqlx::SqlitePool {}
    #[cfg(feature = "postgres")]
    impl Sealed for sqlx::PgPool {}
}

/// The same on every database: sqlx checks a statement against one database's types.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
macro_rules! test_pool {
    ($pool:ty) => {
        impl TestPool for $pool {
            fn number(&self, sql: String) -> BoxFuture<'_, sqlx::Result<i64>> {
                Box::pin(async move { sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_one(self).await })
            }
        }
    };
}

#[cfg(feature = "sqlite")]
test_pool!(sqlx::SqlitePool);
#[cfg(feature = "postgres")]
test_pool!(sqlx::PgPool);

/// A SQLite database in a temporary file, which is deleted with this value.
///
/// ```
/// use inbox_runtime::{sqlx, testing::TempSqlite};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), sqlx::Error> {
/// let database = TempSqlite::new("CREATE TABLE invoices (order_id TEXT)").await;
/// sqlx::query("INSERT INTO invoices VALUES ('o1')").execute(database.pool()).await?;
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "sqlite")]
#[derive(Debug)]
pub struct TempSqlite {
    pool: sqlx::SqlitePool,
    /// Dropped after the pool, so that the file is deleted when it is no longer used.
    _folder: tempfile::TempDir,
}

#[cfg(feature = "sqlite")]
impl TempSqlite {
    /// Makes a database and runs these statements in it.
    ///
    /// # Panics
    ///
    /// When there is no temporary folder to write to, or a statement fails.
    #[track_caller]
    pub fn new(statements: &str) -> impl Future<Output = Self> + Send + use<> {
        let caller = Caller::here();
        let statements = statements.to_owned();
        async move {
            let folder =
                tempfile::tempdir().unwrap_or_else(|error| caller.fail(format!("a temporary folder: {error}")));
            let options = sqlx::sqlite::SqliteConnectOptions::new()
                .filename(folder.path().join("test.db"))
                .create_if_missing(true);
            let made = async {
                let pool = sqlx::SqlitePool::connect_with(options).await?;
                sqlx::raw_sql(sqlx::AssertSqlSafe(statements)).execute(&pool).await?;
                Ok::<_, sqlx::Error>(pool)
            };
            let pool = made
                .await
                .unwrap_or_else(|error| caller.fail(format!("a database for the test could not be made: {error}")));
            Self { pool, _folder: folder }
        }
    }

    /// The pool of the database.
    #[must_use]
    pub const fn pool(&self) -> &sqlx::SqlitePool {
        &self.pool
    }
}
