//! Databases for tests, and what a handler of any of them can do.

use std::{ops::DerefMut, sync::Arc, time::Duration};

use inbox_runtime::{
    InboxConnection, IntoStore,
    sqlx::{
        self, AssertSqlSafe, Connection, Sqlite, SqliteConnection, SqlitePool, Transaction,
        sqlite::{SqliteConnectOptions, SqlitePoolOptions},
    },
    testing::TestPool,
};
use tempfile::TempDir;

#[cfg(feature = "postgres")]
mod postgres;

#[cfg(feature = "postgres")]
pub use postgres::{PostgresDatabase, pool};

/// What the test's handlers do on their transaction.
#[allow(async_fn_in_trait, reason = "the tests name the types")]
pub trait TestConnection: InboxConnection {
    /// Writes an effect.
    fn effect(&mut self, group: &str, id: &str) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// Runs a statement.
    fn exec(&mut self, sql: &str) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// Runs a statement, and returns how many rows it has changed.
    fn changed(&mut self, sql: &str) -> impl Future<Output = sqlx::Result<u64>> + Send;

    /// Runs statements in a nested transaction, which is then committed or rolled back.
    fn nested(&mut self, sql: &str, commit: bool) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// Begins a nested transaction and forgets it.
    fn leak_nested(&mut self) -> impl Future<Output = sqlx::Result<()>> + Send;
}

/// The same on every database: sqlx checks a statement against one database's types, so a macro makes it for each.
macro_rules! test_connection {
    ($conn:ty) => {
        impl TestConnection for $conn {
            async fn effect(&mut self, group: &str, id: &str) -> sqlx::Result<()> {
                sqlx::query("INSERT INTO effects (grp, msg_id) VALUES ($1, $2)")
                    .bind(group)
                    .bind(id)
                    .execute(self)
                    .await?;
                Ok(())
            }

            async fn exec(&mut self, sql: &str) -> sqlx::Result<()> {
                self.changed(sql).await?;
                Ok(())
            }

            async fn changed(&mut self, sql: &str) -> sqlx::Result<u64> {
                let done = sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(self).await?;
                Ok(done.rows_affected())
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
    };
}
#[cfg(feature = "postgres")]
pub(crate) use test_connection;

test_connection!(SqliteConnection);

/// A database for one test.
#[allow(async_fn_in_trait, reason = "the tests name the types")]
pub trait TestDatabase: Clone + Send + Sync + 'static {
    /// What the runtime is given.
    type Pool: IntoStore + TestPool + Clone + Send + Sync + 'static;
    /// What its handlers take.
    type Conn: TestConnection;
    /// A transaction that a test opens itself.
    type Tx: DerefMut<Target = Self::Conn> + Send;
    /// What holds a lock.
    type Lock: Send + 'static;
    /// The module of [`handlers`](crate::handlers) whose handlers are its.
    const HANDLERS: &'static str;
    /// A statement that takes more than the timeout of `hasty`, a second, and not much more, and can't be stopped by whoever waits for it.
    const SLOW: &'static str;

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

    /// A statement after which every delayed message of the outbox is due, in the order in which it was written.
    const HURRY: &'static str;

    /// Runs that on a connection without a transaction.
    async fn without_tx<T>(&self, run: impl AsyncFnOnce(&mut Self::Conn) -> T) -> T;

    /// Runs that in a nested transaction, which is then committed or rolled back.
    async fn in_savepoint<E: std::fmt::Debug>(
        tx: &mut Self::Tx,
        run: impl AsyncFnOnce(&mut Self::Conn) -> Result<(), E>,
        commit: bool,
    );

    /// The number that a query gives in that transaction.
    fn number_in(tx: &mut Self::Tx, sql: &str) -> impl Future<Output = i64> + Send;

    /// The number that a query gives.
    fn number(&self, sql: &str) -> impl Future<Output = i64> + Send;

    /// Runs statements outside of any transaction, which may fail.
    async fn try_exec(&self, sql: &str) -> sqlx::Result<()>;

    /// Runs statements outside of any transaction.
    async fn exec(&self, sql: &str) {
        self.try_exec(sql).await.expect(sql);
    }

    /// Holds what the claim of a message needs, as another worker that is handling it would.
    async fn lock_claim(&self, group: &str, id: &str) -> Self::Lock;

    /// Lets go of it, with nothing changed.
    async fn unlock(&self, lock: Self::Lock);

    /// Makes the database unusable for everybody who is connected, until [`repair`](Self::repair).
    async fn break_down(&self);

    /// Makes it usable again.
    async fn repair(&self);

    /// Runs a statement that writes one row on as many connections of the pool as it may have, all lent at once. Returns how
    /// many said that it was done.
    fn write_through_pool(&self, sql: &'static str) -> impl Future<Output = i64> + Send;

    /// The number that a query gives on a connection beside the pool.
    fn seen_by_others(&self, sql: &str) -> impl Future<Output = i64> + Send;

    /// How many connections beside the test's own have a transaction open in which nothing goes on.
    fn in_transaction(&self) -> impl Future<Output = i64> + Send;

    /// The error of a statement that the database could not do now, though nothing is wrong with it.
    async fn fault(&self) -> sqlx::Error;

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
    pool: SqlitePool,
    folder: Arc<TempDir>,
}

impl SqliteFile {
    /// The file that it is in.
    #[must_use]
    pub fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("app.db")
    }

    /// A connection beside the pool, as another process would have one.
    async fn stranger(&self) -> SqliteConnection {
        let options = SqliteConnectOptions::new()
            .filename(self.path())
            .busy_timeout(Duration::from_secs(10));
        SqliteConnection::connect_with(&options).await.expect("a connection")
    }

    /// Rewrites the declaration of a table, and makes everybody who is connected read it again.
    async fn edit_schema(&self, sql: &str) {
        let mut stranger = self.stranger().await;
        stranger.exec("PRAGMA writable_schema = ON").await.expect("set");
        let version: i64 = sqlx::query_scalar("PRAGMA schema_version")
            .fetch_one(&mut stranger)
            .await
            .expect("the version");
        let version = version + 1;
        stranger
            .exec(&format!(
                "BEGIN IMMEDIATE; UPDATE sqlite_schema SET sql = {sql} WHERE name = 'effects'; \
                 PRAGMA schema_version = {version}; COMMIT"
            ))
            .await
            .expect("written");
        stranger.close().await.expect("closed");
    }
}

impl TestDatabase for SqliteFile {
    type Pool = SqlitePool;
    type Conn = SqliteConnection;
    type Tx = Transaction<'static, Sqlite>;

    type Lock = SqliteConnection;

    const HANDLERS: &'static str = "sqlite";
    const HURRY: &'static str = "UPDATE inbox_outbox_later SET due_at = 0";
    const SLOW: &'static str = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 6000000) \
                                SELECT count(*) FROM n";

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
        Self { pool, folder }
    }

    fn pool(&self) -> SqlitePool {
        self.pool.clone()
    }

    fn url(&self) -> String {
        format!("sqlite://{}", self.path().display())
    }

    async fn begin(&self) -> Self::Tx {
        // The file has one writer at a time, and a busy machine may let one wait for longer than the pool's timeout.
        for _ in 0..60 {
            if let Ok(tx) = self.pool.begin_with("BEGIN IMMEDIATE").await {
                return tx;
            }
        }
        panic!("no transaction");
    }

    async fn commit(tx: Self::Tx) {
        tx.commit().await.expect("committed");
    }

    async fn rollback(tx: Self::Tx) {
        tx.rollback().await.expect("rolled back");
    }

    async fn without_tx<T>(&self, run: impl AsyncFnOnce(&mut Self::Conn) -> T) -> T {
        let mut conn = self.pool.acquire().await.expect("a connection");
        run(&mut conn).await
    }

    async fn in_savepoint<E: std::fmt::Debug>(
        tx: &mut Self::Tx,
        run: impl AsyncFnOnce(&mut Self::Conn) -> Result<(), E>,
        commit: bool,
    ) {
        let mut nested = tx.begin().await.expect("a savepoint");
        run(&mut nested).await.expect("it works");
        if commit {
            nested.commit().await.expect("kept");
        } else {
            nested.rollback().await.expect("undone");
        }
    }

    async fn number_in(tx: &mut Self::Tx, sql: &str) -> i64 {
        let number = sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(&mut **tx);
        number.await.expect(sql)
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

    /// There is one writer at a time, so it holds the lock of the whole file.
    async fn lock_claim(&self, _group: &str, _id: &str) -> SqliteConnection {
        let mut stranger = self.stranger().await;
        stranger.exec("BEGIN IMMEDIATE").await.expect("the lock");
        stranger
    }

    async fn unlock(&self, mut lock: SqliteConnection) {
        lock.exec("ROLLBACK").await.expect("the lock is released");
        lock.close().await.expect("closed");
    }

    /// A schema that can't be read: every statement on a table fails as one on a damaged file does.
    async fn break_down(&self) {
        self.edit_schema("'broken ' || sql").await;
    }

    async fn repair(&self) {
        self.edit_schema("substr(sql, length('broken ') + 1)").await;
    }

    async fn write_through_pool(&self, sql: &'static str) -> i64 {
        let mut lent = Vec::new();
        for _ in 0..self.pool.options().get_max_connections() {
            lent.push(self.pool.acquire().await.expect("a connection"));
        }
        for conn in &mut lent {
            // One that is being closed may have the file for another moment, which is an error and no loss.
            while let Err(error) = sqlx::query(sql).execute(&mut **conn).await {
                assert!(error.to_string().contains("locked"), "{error}");
            }
        }
        i64::try_from(lent.len()).expect("few")
    }

    async fn seen_by_others(&self, sql: &str) -> i64 {
        let mut stranger = self.stranger().await;
        sqlx::query_scalar(AssertSqlSafe(sql.to_owned()))
            .fetch_one(&mut stranger)
            .await
            .expect(sql)
    }

    /// There is one writer at a time, so that somebody else can't have the lock meanwhile.
    async fn in_transaction(&self) -> i64 {
        let mut stranger = self.stranger().await;
        i64::from(stranger.exec("BEGIN IMMEDIATE; ROLLBACK").await.is_err())
    }

    async fn fault(&self) -> sqlx::Error {
        let lock = self.lock_claim("", "").await;
        let mut other = self.stranger().await;
        other.exec("PRAGMA busy_timeout = 0").await.expect("set");
        let fault = other.exec("BEGIN IMMEDIATE").await.expect_err("the file is locked");
        self.unlock(lock).await;
        fault
    }
}
