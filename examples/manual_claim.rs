//! The inbox without the macro: an event that comes by a webhook and not from a broker is claimed in a transaction of the
//! program's own.
//!
//! Run with
//!
//! ```text
//! cargo run -p inbox-examples --example manual_claim
//! ```
//!
//! Whoever sends webhooks sends them again until they are answered with success, so that they come more than once. The
//! claim, the effect and the commit are one transaction; the answer comes after the commit.

use inbox_runtime::sqlx::{self, SqlitePool};

/// What the sender is answered.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Booked,
    /// Success as well: the sender must stop.
    BookedBefore,
}

/// Books a payment that a webhook tells about.
async fn on_webhook(
    pool: &SqlitePool,
    event_id: &str,
    order_id: &str,
    cents: i64,
) -> Result<Answer, Box<dyn std::error::Error>> {
    // IMMEDIATE: on SQLite a transaction that is to write says so when it begins.
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
    if inbox_runtime::claim(&mut *tx, "payments-webhook", event_id)
        .await?
        .is_duplicate()
    {
        return Ok(Answer::BookedBefore);
    }
    if cents <= 0 {
        // The transaction is dropped: the claim is rolled back with it, so that a corrected event of this id is handled.
        return Err(format!("a payment of {cents} cents is none").into());
    }
    sqlx::query("INSERT INTO payments (order_id, cents) VALUES ($1, $2)")
        .bind(order_id)
        .bind(cents)
        .execute(&mut *tx)
        .await?;
    tx.commit().await?;
    Ok(Answer::Booked)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let pool = SqlitePool::connect(&format!("sqlite://{}?mode=rwc", folder.path().join("app.db").display())).await?;
    sqlx::raw_sql("CREATE TABLE payments (order_id TEXT, cents INTEGER)")
        .execute(&pool)
        .await?;
    // A running inbox makes its tables itself; here nothing runs.
    inbox_runtime::migrate(&pool).await?;

    for (event_id, order_id, cents) in [
        ("evt-1", "o1", 4_200),
        ("evt-1", "o1", 4_200),
        ("evt-2", "o2", 0),
        ("evt-2", "o2", 100),
    ] {
        match on_webhook(&pool, event_id, order_id, cents).await {
            Ok(answer) => println!("{event_id}: {answer:?}"),
            Err(error) => println!("{event_id}: {error}"),
        }
    }
    let payments: i64 = sqlx::query_scalar("SELECT count(*) FROM payments")
        .fetch_one(&pool)
        .await?;
    println!("payments={payments}");
    if payments == 2 {
        Ok(())
    } else {
        Err("each payment should be there once".into())
    }
}
