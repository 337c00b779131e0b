//! What only SQLite has: its journal, its one writer, its temporary databases.

use std::time::Duration;

use inbox_runtime::{
    ClaimError, Error, Inbox, Meta, Outcome, claim, inbox_handler, migrate,
    sqlx::{
        self, Connection, SqliteConnection, SqlitePool,
        sqlite::{SqliteConnectOptions, SqlitePoolOptions, SqliteSynchronous},
    },
};
use inbox_tests::{EmbeddedFile, SqliteFile, TestBroker, TestConnection, TestDatabase, World, eventually, next};

mod disk;
mod endings;
mod locks;

type Here = World<EmbeddedFile, SqliteFile>;

/// How long a test waits for what should be there at once: only a hang takes longer.
const HANG: Duration = Duration::from_secs(60);

/// Leaves the level of `synchronous` that its transaction has.
#[inbox_handler(group = "synchronous", subject = "order.created")]
async fn synchronous(tx: &mut SqliteConnection, meta: Meta) -> sqlx::Result<()> {
    let level: i64 = sqlx::query_scalar("PRAGMA synchronous").fetch_one(&mut *tx).await?;
    tx.effect(meta.group(), &level.to_string()).await
}

/// Reads, then writes; the claim before it writes too.
#[inbox_handler(group = "reader", subject = "order.created", concurrency = 8)]
async fn reader(tx: &mut SqliteConnection, meta: Meta) -> sqlx::Result<()> {
    read_then_write(tx, &meta).await
}

/// The same without a claim, so that the transaction would become a writer late.
#[inbox_handler(
    group = "late-writer",
    subject = "order.created",
    ack = "at_least_once",
    concurrency = 8
)]
async fn late_writer(tx: &mut SqliteConnection, meta: Meta) -> sqlx::Result<()> {
    read_then_write(tx, &meta).await
}

async fn read_then_write(tx: &mut SqliteConnection, meta: &Meta) -> sqlx::Result<()> {
    sqlx::query("SELECT count(*) FROM effects").execute(&mut *tx).await?;
    tokio::task::yield_now().await;
    tx.effect(meta.group(), meta.message_id()).await
}

fn here(world: &Here, group: &str) -> inbox_runtime::InboxBuilder {
    Inbox::builder()
        .store(world.database.pool())
        .broker(world.broker.connect())
        .groups([group])
        .select(|meta| meta.name.starts_with("sqlite::"))
}

#[tokio::test]
async fn the_journal_is_a_wal() {
    let world = Here::new().await;
    let wal = "SELECT journal_mode = 'wal' FROM pragma_journal_mode";
    assert_eq!(world.database.number(wal).await, 0, "not before");
    world.inbox(&["billing"]).await;
    assert_eq!(world.database.number(wal).await, 1);
    // It stays with the file, for every other connection.
    let options = SqliteConnectOptions::new().filename(world.database.path());
    let mut other = SqliteConnection::connect_with(&options).await.expect("a connection");
    let mode: String = sqlx::query_scalar("PRAGMA journal_mode")
        .fetch_one(&mut other)
        .await
        .expect("a mode");
    assert_eq!(mode, "wal");
}

/// A pool of a program of its own, as far as SQLite can tell.
async fn another_pool(world: &Here) -> SqlitePool {
    let options = SqliteConnectOptions::new()
        .filename(world.database.path())
        .busy_timeout(Duration::from_secs(1));
    SqlitePool::connect_with(options).await.expect("a pool")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_waits_for_another_writer() {
    let world = Here::new().await;
    // It has the file for longer than SQLite waits, and SQLite never waits to change the journal.
    let tx = world.database.begin().await;
    let writer = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(1500)).await;
        SqliteFile::commit(tx).await;
    });
    let inbox = here(&world, "reader").store(another_pool(&world).await).build().await;
    inbox.expect("an inbox");
    writer.await.expect("committed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f16_several_programs_start_on_one_new_file_at_once() {
    for _ in 0..5 {
        let world = Here::new().await;
        let mut starts = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let builder = here(&world, "reader").store(another_pool(&world).await);
            starts.spawn(builder.build());
        }
        for inbox in starts.join_all().await {
            inbox.expect("an inbox");
        }
        world.publish("m1").await;
        let mut inbox = here(&world, "reader").build().await.expect("an inbox");
        assert_eq!(next(&mut inbox).await, Outcome::Processed);
    }
}

#[tokio::test]
async fn a_commit_is_on_the_disk_whatever_the_pool_was_set_to() {
    const FULL: &str = "2";
    for (setting, level) in [(SqliteSynchronous::Normal, 1), (SqliteSynchronous::Off, 0)] {
        let world = Here::new().await;
        let options = SqliteConnectOptions::new()
            .filename(world.database.path())
            .synchronous(setting);
        let pool = SqlitePool::connect_with(options).await.expect("a pool");
        let own: i64 = sqlx::query_scalar("PRAGMA synchronous")
            .fetch_one(&pool)
            .await
            .expect("a level");
        assert_eq!(own, level, "the pool's own");
        world.publish("m1").await;
        let builder = here(&world, "synchronous").store(pool);
        let mut inbox = builder.build().await.expect("an inbox");
        assert_eq!(next(&mut inbox).await, Outcome::Processed);
        assert_eq!(world.database.effects("synchronous", FULL).await, 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f21_a_handler_that_reads_first_is_never_told_that_the_file_is_locked() {
    beside_another_writer("reader").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f21_nor_is_one_whose_transaction_begins_with_a_read() {
    beside_another_writer("late-writer").await;
}

/// Handles 500 messages while a connection that knows nothing of us writes to the same file.
async fn beside_another_writer(group: &str) {
    let world = Here::new().await;
    world.database.exec("CREATE TABLE others (n INTEGER)").await;
    for number in 0..500 {
        world.publish(&format!("m{number}")).await;
    }
    let options = SqliteConnectOptions::new().filename(world.database.path());
    let mut other = SqliteConnection::connect_with(&options).await.expect("a connection");
    let writer = tokio::spawn(async move {
        loop {
            sqlx::query("INSERT INTO others (n) VALUES (1)")
                .execute(&mut other)
                .await
                .expect("the other writer isn't starved either");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    let inbox = here(&world, group).spawn().await.expect("an inbox");
    eventually("everything is settled", async || world.settled(group).await).await;
    inbox.stop();
    let report = inbox.join().await.expect("stopped");
    assert!(!writer.is_finished(), "the other writer is still at it");
    writer.abort();
    assert_eq!(
        (
            report.processed,
            report.acked,
            report.failed,
            report.locked,
            report.deferred
        ),
        (500, 500, 0, 0, 0),
        "{report}"
    );
    let distinct = "SELECT count(DISTINCT msg_id) FROM effects";
    assert_eq!(world.database.number(distinct).await, 500);
    assert_eq!(world.database.number("SELECT count(*) FROM effects").await, 500);
    assert!(world.database.number("SELECT count(*) FROM others").await > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_of_one_connection_is_enough_for_several_workers() {
    let world = Here::new().await;
    let options = SqliteConnectOptions::new().filename(world.database.path());
    let pool = SqlitePoolOptions::new()
        .max_connections(1)
        .connect_with(options)
        .await
        .expect("a pool");
    for number in 0..40 {
        world.publish(&format!("m{}", number % 20)).await;
    }
    let inbox = here(&world, "reader").store(pool).spawn().await.expect("an inbox");
    eventually("everything is settled", async || world.settled("reader").await).await;
    inbox.stop();
    let report = inbox.join().await.expect("stopped");
    assert_eq!(
        (
            report.processed,
            report.duplicate,
            report.acked,
            report.failed,
            report.deferred
        ),
        (20, 20, 40, 0, 0),
        "{report}"
    );
    for number in 0..20 {
        world.assert_done("reader", &format!("m{number}")).await;
    }
}

#[tokio::test]
async fn f22_a_database_in_memory_is_refused() {
    let world = Here::new().await;
    for url in ["sqlite::memory:", "sqlite://:memory:", "sqlite://?mode=memory"] {
        let pool = SqlitePoolOptions::new()
            .idle_timeout(Duration::from_millis(200))
            .connect(url)
            .await
            .expect("a pool");
        let text = match world.builder(&["billing"]).store(pool).build().await {
            Err(error @ Error::Migrate { .. }) => error.to_string(),
            other => panic!("{url}: {other:?}"),
        };
        assert!(
            text.contains("in memory") && text.contains("sqlite://app.db"),
            "{url}: {text}"
        );
    }
}

#[tokio::test]
async fn b24_a_claim_without_a_transaction_is_refused() {
    let world = Here::new().await;
    migrate(&world.database.pool()).await.expect("the tables");
    let mut conn = world.database.pool().acquire().await.expect("a connection");
    let refused = claim(&mut *conn, "billing", "m1").await;
    assert!(matches!(refused, Err(ClaimError::NoTransaction)), "{refused:?}");
    assert_eq!(world.database.inbox("billing", "m1").await, 0);
}
