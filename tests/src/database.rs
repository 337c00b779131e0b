//! Databases for tests, and what a handler of any of them can do.

use std::{ops::DerefMut, sync::Arc, time::Duration};

use inbox_runtime::{
    InboxConnection, IntoStore,
    sqlx::{
        self, AssertSqlSafe, Connection, Sqlite, SqliteConnection, SqlitePool, Transaction,
        sqlite::{SqliteConnectOptions, SqlitePoolOptions},
    },
};
use tempfile::TempDir;

/// What the test's handlers do on their transaction.
#[allow(async_fn_in_trait, reason = "the tests name the types")]
pub trait TestConnection: InboxConnection {
    /// Writes an effect.
    fn effect(&mut self, group: &str, id: &str) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// Runs a statement.
    fn exec(&mut self, sql: &str) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// Runs statements in a nested transaction, which is then committed or rolled back.
    fn nested(&mut self, sql: &str, commit: bool) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// Begins a nested transaction and forgets it.
    fn leak_nested(&mut self) -> impl Future<Output = sqlx::Result<()>> + Send;
}

impl TestConnection for SqliteConnection {
    async fn effect(&mut self, group: &str, id: &str) -> sqlx::Result<()> {
        sqlx::query("INSERT INTO effects (grp, msg_id) VALUES ($1, $2)")
            .bind(group)
            .bind(id)
            .execute(self)
            .await?;
        Ok(())
    }

    async fn exec(&mut self, sql: &str) -> sqlx::Result<()> {
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(self).await?;
        Ok(())
    }

    async fn nested(&mut self, sql: &str, commit: bool) -> sqlx::Result<()> {
        let mut nested = self.begin().await?;
        nested.exec(sql).await?;
        if commit {
            nested.commit().await
        } else {
            nested.rollback().await
        }
    }

    async fn leak_nested(&mut self) -> sqlx::Result<()> {
        std::mem::forget(self.begin().await?);
        Ok(())
    }
}

/// A database for one test.
#[allow(async_fn_in_trait, reason = "the tests name the types")]
pub trait TestDatabase: Clone + Send + Sync + 'static {
    /// What the runtime is given.
    type Pool: IntoStore + Clone + Send + Sync + 'static;
    /// What its handlers take.
    type Conn: TestConnection;
    /// A transaction that a test opens itself.
    type Tx: DerefMut<Target = Self::Conn> + Send;
    /// The module of [`handlers`](crate::handlers) whose handlers are its.
    const HANDLERS: &'static str;

    /// A database with an empty table `effects(grp, msg_id)` without any key, so that a second effect shows. The tables
    /// of the inbox are not there.
    async fn fresh() -> Self;

    /// Its pool.
    fn pool(&self) -> Self::Pool;

    /// Its URL, for another process.
    fn url(&self) -> String;

    /// Begins a transaction that may write.
    async fn begin(&self) -> Self::Tx;

    /// Commits it.
    async fn commit(tx: Self::Tx);

    /// Rolls it back.
    async fn rollback(tx: Self::Tx);

    /// The number that a query gives.
    fn number(&self, sql: &str) -> impl Future<Output = i64> + Send;

    /// Runs statements outside of any transaction, which may fail.
    async fn try_exec(&self, sql: &str) -> sqlx::Result<()>;

    /// Runs statements outside of any transaction.
    async fn exec(&self, sql: &str) {
        self.try_exec(sql).await.expect(sql);
    }

    /// How many effects a group's handler has left for a message.
    fn effects(&self, group: &str, id: &str) -> impl Future<Output = i64> + Send {
        let (group, id) = (quoted(group), quoted(id));
        async move {
            self.number(&format!(
                "SELECT count(*) FROM effects WHERE grp = {group} AND msg_id = {id}"
            ))
            .await
        }
    }

    /// How many inbox rows there are for a group's message.
    fn inbox(&self, group: &str, id: &str) -> impl Future<Output = i64> + Send {
        let (group, id) = (quoted(group), quoted(id));
        async move {
            self.number(&format!(
                "SELECT count(*) FROM inbox_events WHERE consumer_group = {group} AND message_id = {id}"
            ))
            .await
        }
    }
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// SQLite in a file.
#[derive(Clone, Debug)]
pub struct SqliteFile {
    folder: Arc<TempDir>,
    pool: SqlitePool,
}

impl SqliteFile {
    /// The file that it is in.
    #[must_use]
    pub fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("app.db")
    }
}

impl TestDatabase for SqliteFile {
    type Pool = SqlitePool;
    type Conn = SqliteConnection;
    type Tx = Transaction<'static, Sqlite>;

    const HANDLERS: &'static str = "sqlite";

    async fn fresh() -> Self {
        let folder = Arc::new(tempfile::tempdir().expect("a folder"));
        let options = SqliteConnectOptions::new()
            .filename(folder.path().join("app.db"))
            .create_if_missing(true)
            .busy_timeout(Duration::from_secs(1));
        let pool = SqlitePoolOptions::new()
            .max_connections(5)
            .connect_with(options)
            .await
            .expect("a database");
        sqlx::raw_sql("CREATE TABLE effects (grp TEXT NOT NULL, msg_id TEXT NOT NULL)")
            .execute(&pool)
            .await
            .expect("the table of effects");
        Self { folder, pool }
    }

    fn pool(&self) -> SqlitePool {
        self.pool.clone()
    }

    fn url(&self) -> String {
        format!("sqlite://{}", self.path().display())
    }

    async fn begin(&self) -> Self::Tx {
        self.pool.begin_with("BEGIN IMMEDIATE").await.expect("a transaction")
    }

    async fn commit(tx: Self::Tx) {
        tx.commit().await.expect("committed");
    }

    async fn rollback(tx: Self::Tx) {
        tx.rollback().await.expect("rolled back");
    }

    async fn number(&self, sql: &str) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(sql.to_owned()))
            .fetch_one(&self.pool)
            .await
            .expect(sql)
    }

    async fn try_exec(&self, sql: &str) -> sqlx::Result<()> {
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&self.pool).await?;
        Ok(())
    }
}
