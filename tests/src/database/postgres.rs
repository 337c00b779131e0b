//! PostgreSQL for tests: a database of its own for each, on the server that they share or on one of their own.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use inbox_runtime::sqlx::{
    self, AssertSqlSafe, Connection, PgConnection, PgPool, Postgres, Transaction,
    postgres::{PgConnectOptions, PgPoolOptions},
};

use super::{TestConnection, TestDatabase};
use crate::servers::postgres::{Postgres as Server, Shared};

/// A database on a PostgreSQL server.
#[derive(Clone, Debug)]
pub struct PostgresDatabase {
    database: Arc<Database>,
    pool: PgPool,
    /// For the test's own looks, so that it needs nothing of the pool that it has given away.
    eyes: PgPool,
}

/// Dropped, it is gone from the server.
#[derive(Debug)]
struct Database {
    name: String,
    /// The server's URL for administration.
    admin: String,
}

impl PostgresDatabase {
    /// A new database on a server of the test's own.
    pub async fn on(server: &Server) -> Self {
        Self::new(server.url("postgres"), "").await
    }

    /// A new database with that encoding, as PostgreSQL names it.
    pub async fn encoded(encoding: &str) -> Self {
        let with = format!(" ENCODING '{encoding}' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'");
        Self::new(Shared::get().url(), &with).await
    }

    async fn new(admin: String, with: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("inbox_test_{}_{number}", std::process::id());
        // One that was left behind by a process of the same number.
        on_server(&admin, &format!("DROP DATABASE IF EXISTS {name}"))
            .await
            .expect("the server");
        on_server(&admin, &format!("CREATE DATABASE {name}{with}"))
            .await
            .expect("a database");
        let database = Database { name, admin };
        let options = database.options();
        let eyes = eyes(&options);
        sqlx::raw_sql("CREATE TABLE effects (grp text NOT NULL, msg_id text NOT NULL)")
            .execute(&eyes)
            .await
            .expect("the table of effects");
        Self {
            database: Arc::new(database),
            pool: pool(options, 10),
            eyes,
        }
    }

    /// The database of the same name on another server.
    #[must_use]
    pub fn at(&self, server: &Server) -> Self {
        let database = Database {
            name: self.database.name.clone(),
            admin: server.url("postgres"),
        };
        Self {
            eyes: eyes(&database.options()),
            pool: pool(database.options(), 10),
            database: Arc::new(database),
        }
    }

    /// The same database, with another pool to be given away.
    #[must_use]
    pub fn with_pool(&self, pool: PgPool) -> Self {
        Self { pool, ..self.clone() }
    }

    /// How to connect to it.
    #[must_use]
    pub fn options(&self) -> PgConnectOptions {
        self.database.options()
    }

    /// Its name on the server.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.database.name
    }

    /// A connection beside all pools.
    pub async fn stranger(&self) -> PgConnection {
        PgConnection::connect_with(&self.options()).await.expect("a connection")
    }

    /// The text that a query gives.
    pub async fn text(&self, sql: &str) -> Option<String> {
        sqlx::query_scalar(AssertSqlSafe(sql.to_owned()))
            .fetch_one(&self.eyes)
            .await
            .expect(sql)
    }
}

/// A pool of at most so many connections.
#[must_use]
pub fn pool(options: PgConnectOptions, connections: u32) -> PgPool {
    PgPoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(Duration::from_secs(5))
        .connect_lazy_with(options)
}

/// The application's name of the test's own connections.
const EYES: &str = "eyes";

/// One connection, so that it is there whatever happens to the others.
fn eyes(options: &PgConnectOptions) -> PgPool {
    PgPoolOptions::new()
        .max_connections(1)
        .idle_timeout(None)
        .connect_lazy_with(options.clone().application_name(EYES))
}

impl Database {
    fn options(&self) -> PgConnectOptions {
        let options: PgConnectOptions = self.admin.parse().expect("a URL");
        options.database(&self.name)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let (admin, sql) = (
            self.admin.clone(),
            format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name),
        );
        // The test's runtime may be about to end, so that the work needs one of its own. The server may be gone.
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.map(|runtime| {
                runtime.block_on(async { tokio::time::timeout(Duration::from_secs(5), on_server(&admin, &sql)).await })
            })
        });
        let _ = dropped.join();
    }
}

async fn on_server(url: &str, sql: &str) -> sqlx::Result<()> {
    let mut conn = PgConnection::connect(url).await?;
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut conn).await?;
    conn.close().await
}

super::test_connection!(PgConnection);

impl TestDatabase for PostgresDatabase {
    type Pool = PgPool;
    type Conn = PgConnection;
    type Tx = Transaction<'static, Postgres>;
    type Lock = PgConnection;

    const HANDLERS: &'static str = "postgres";
    const HURRY: &'static str =
        "UPDATE inbox_outbox_later SET due_at = clock_timestamp() - interval '1 hour' + id * interval '1 millisecond'";
    const SLOW: &'static str = "SELECT pg_sleep(1.5)";

    async fn fresh() -> Self {
        Self::new(Shared::get().url(), "").await
    }

    fn pool(&self) -> PgPool {
        self.pool.clone()
    }

    fn url(&self) -> String {
        use inbox_runtime::sqlx::ConnectOptions;
        self.options().to_url_lossy().to_string()
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
        let number = sqlx::query_scalar(AssertSqlSafe(format!("SELECT ({sql})::bigint"))).fetch_one(&mut **tx);
        number.await.expect(sql)
    }

    async fn number(&self, sql: &str) -> i64 {
        // The sum of integers has another type than they have.
        sqlx::query_scalar(AssertSqlSafe(format!("SELECT ({sql})::bigint")))
            .fetch_one(&self.eyes)
            .await
            .expect(sql)
    }

    async fn begin(&self) -> Self::Tx {
        self.pool.begin().await.expect("a transaction")
    }

    async fn commit(tx: Self::Tx) {
        tx.commit().await.expect("committed");
    }

    async fn rollback(tx: Self::Tx) {
        tx.rollback().await.expect("rolled back");
    }

    async fn try_exec(&self, sql: &str) -> sqlx::Result<()> {
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&self.eyes).await?;
        Ok(())
    }

    async fn lock_claim(&self, group: &str, id: &str) -> PgConnection {
        let mut stranger = self.stranger().await;
        stranger.exec("BEGIN").await.expect("a transaction");
        sqlx::query("INSERT INTO inbox_events (consumer_group, message_id, fingerprint) VALUES ($1, $2, 0)")
            .bind(group)
            .bind(id)
            .execute(&mut stranger)
            .await
            .expect("the claim");
        stranger
    }

    async fn unlock(&self, mut lock: PgConnection) {
        lock.exec("ROLLBACK").await.expect("the lock is released");
        lock.close().await.expect("closed");
    }

    /// Throws everybody out, and lets nobody in.
    async fn break_down(&self) {
        let Database { name, admin } = &*self.database;
        on_server(admin, &format!("ALTER DATABASE {name} ALLOW_CONNECTIONS false"))
            .await
            .expect("the server");
        self.exec(&format!(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity \
             WHERE datname = current_database() AND application_name <> '{EYES}'"
        ))
        .await;
    }

    async fn repair(&self) {
        let Database { name, admin } = &*self.database;
        on_server(admin, &format!("ALTER DATABASE {name} ALLOW_CONNECTIONS true"))
            .await
            .expect("the server");
    }

    async fn write_through_pool(&self, sql: &'static str) -> i64 {
        let mut lent = Vec::new();
        for _ in 0..self.pool.options().get_max_connections() {
            lent.push(self.pool.acquire().await.expect("a connection"));
        }
        for conn in &mut lent {
            sqlx::query(sql).execute(&mut **conn).await.expect("written");
        }
        i64::try_from(lent.len()).expect("few")
    }

    async fn seen_by_others(&self, sql: &str) -> i64 {
        self.number(sql).await
    }

    async fn in_transaction(&self) -> i64 {
        self.number(&format!(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
             AND application_name <> '{EYES}' AND state LIKE 'idle in transaction%'"
        ))
        .await
    }

    async fn fault(&self) -> sqlx::Error {
        self.try_exec("DO $$ BEGIN RAISE EXCEPTION 'out of memory' USING ERRCODE = '53200'; END $$")
            .await
            .expect_err("raised")
    }
}
