//! Handlers that do what only a handler for PostgreSQL can do.

use std::{task::Poll, time::Duration};

use inbox_runtime::{
    Embedded, Inbox, InboxBuilder, Json, Meta, State, inbox_handler,
    sqlx::{self, Connection, PgConnection, PgPool},
};
use inbox_tests::{Order, TestConnection, TestDatabase};
use parking_lot::Mutex;

use crate::World;

/// An inbox that runs one of these handlers, with a pool as its state.
pub(crate) fn builder(world: &World, group: &str) -> InboxBuilder {
    let broker: Embedded = inbox_tests::TestBroker::connect(&world.broker);
    Inbox::builder()
        .store(world.database.pool())
        .broker(broker)
        .state(world.database.pool())
        .groups([group])
        .select(|meta| meta.name.starts_with("postgres::handlers::"))
}

/// Drops a `begin()` that was on its way.
#[inbox_handler(
    group = "dropper",
    subject = "order.created",
    max_attempts = 3,
    backoff = "10ms..40ms"
)]
async fn dropper(tx: &mut PgConnection, Json(_): Json<Order>, meta: Meta) -> Result<(), sqlx::Error> {
    tx.effect(meta.group(), meta.message_id()).await?;
    if meta.message_id().starts_with("drop") {
        // The answer may be there before it is asked for.
        while let Some(done) = once(tx.begin()).await {
            done?.rollback().await?;
        }
        tx.effect(meta.group(), "late").await?;
    }
    Ok(())
}

/// Polls a future once, and drops it if it isn't done.
async fn once<F: Future>(future: F) -> Option<F::Output> {
    let mut future = Box::pin(future);
    std::future::poll_fn(|context| {
        Poll::Ready(match future.as_mut().poll(context) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        })
    })
    .await
}

/// The ids of the transactions in which [`thrice`] ran.
pub(crate) static TRANSACTIONS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Panics, fails, then succeeds.
#[inbox_handler(group = "thrice", subject = "order.created", backoff = "10ms..40ms")]
async fn thrice(tx: &mut PgConnection, Json(_): Json<Order>, meta: Meta) -> Result<(), sqlx::Error> {
    let id: String = sqlx::query_scalar("SELECT pg_current_xact_id()::text")
        .fetch_one(&mut *tx)
        .await?;
    let run = {
        let mut ids = TRANSACTIONS.lock();
        ids.push(id);
        ids.len()
    };
    tx.effect(meta.group(), meta.message_id()).await?;
    match run {
        1 => panic!("the first run"),
        2 => Err(sqlx::Error::RowNotFound),
        _ => Ok(()),
    }
}

/// Takes another connection of the same pool.
#[inbox_handler(
    group = "borrower",
    subject = "order.created",
    concurrency = 4,
    backoff = "10ms..40ms"
)]
async fn borrower(
    tx: &mut PgConnection,
    Json(_): Json<Order>,
    meta: Meta,
    State(pool): State<PgPool>,
) -> Result<(), sqlx::Error> {
    tx.effect(meta.group(), meta.message_id()).await?;
    // Whoever has begun wants a second connection while the others have theirs.
    tokio::time::sleep(Duration::from_millis(20)).await;
    sqlx::raw_sql("SELECT 1").execute(&pool).await?;
    Ok(())
}

/// Begins a COPY and doesn't end it.
#[inbox_handler(
    group = "copier",
    subject = "order.created",
    timeout = "300ms",
    max_attempts = 3,
    backoff = "10ms..40ms"
)]
async fn copier(tx: &mut PgConnection, Json(_): Json<Order>, meta: Meta) -> Result<(), sqlx::Error> {
    tx.effect(meta.group(), meta.message_id()).await?;
    let Some(how) = meta.message_id().strip_prefix("bad-") else {
        return Ok(());
    };
    let mut copy = tx.copy_in_raw("COPY effects FROM STDIN").await?;
    copy.send(b"copier\tlate\n".as_slice()).await?;
    match how {
        "error" => Err(sqlx::Error::RowNotFound),
        "timeout" => std::future::pending().await,
        _ => Ok(()),
    }
}

/// Reads the first of very many rows.
#[inbox_handler(
    group = "reader",
    subject = "order.created",
    max_attempts = 3,
    backoff = "10ms..40ms"
)]
async fn reader(tx: &mut PgConnection, Json(_): Json<Order>, meta: Meta) -> Result<(), sqlx::Error> {
    tx.effect(meta.group(), meta.message_id()).await?;
    if meta.message_id() == "bad" {
        let mut rows = sqlx::query("SELECT repeat('x', 100) FROM generate_series(1, 30000000)").fetch(&mut *tx);
        futures_util::TryStreamExt::try_next(&mut rows).await?;
        return Err(sqlx::Error::RowNotFound);
    }
    Ok(())
}
