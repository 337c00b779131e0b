//! A service whose handler is tested with the test kit: the whole path of a message, crashes at named points, and back-offs
//! for which no test waits.
//!
//! Run its tests with
//!
//! ```text
//! cargo test -p inbox-examples --example testing
//! ```
//!
//! and the service itself with
//!
//! ```text
//! DATABASE_URL=sqlite://app.db?mode=rwc INBOX_BROKER_URL=embedded:broker.db cargo run -p inbox-examples --example testing
//! ```

use inbox_runtime::{
    Json, Meta, inbox_handler,
    sqlx::{self, SqliteConnection},
};

#[derive(serde::Deserialize)]
struct OrderPaid {
    order_id: String,
}

/// Sends the parcel, once for each order that was paid.
#[inbox_handler(group = "warehouse", subject = "order.paid", max_attempts = 3)]
async fn send_parcel(
    tx: &mut SqliteConnection,
    Json(order): Json<OrderPaid>,
    meta: Meta,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let taken = sqlx::query("UPDATE stock SET pieces = pieces - 1 WHERE pieces > 0")
        .execute(&mut *tx)
        .await?;
    if taken.rows_affected() == 0 {
        return Err("nothing is in stock".into());
    }
    // The second half: a test lets the process die between the two.
    #[cfg(test)]
    inbox_runtime::testing::point("taken").await;
    sqlx::query("INSERT INTO parcels (order_id, label) VALUES ($1, $2)")
        .bind(order.order_id)
        .bind(meta.idempotency_key())
        .execute(&mut *tx)
        .await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), inbox_runtime::Error> {
    inbox_runtime::run().await
}

#[cfg(test)]
mod tests {
    use inbox_runtime::{
        Message, Outcome,
        sqlx::SqlitePool,
        testing::{Harness, Point, TempSqlite},
    };

    use super::*;

    const PARCELS: &str = "SELECT count(*) FROM parcels";
    const STOCK: &str = "SELECT pieces FROM stock";

    async fn database(pieces: u8) -> TempSqlite {
        TempSqlite::new(&format!(
            "CREATE TABLE stock (pieces INTEGER); INSERT INTO stock VALUES ({pieces}); \
             CREATE TABLE parcels (order_id TEXT, label TEXT)"
        ))
        .await
    }

    async fn warehouse(database: &TempSqlite) -> Harness<SqlitePool> {
        Harness::start(database.pool(), |inbox| inbox.groups(["warehouse"])).await
    }

    fn paid(order_id: &str) -> Message {
        Message::new("order.paid", format!(r#"{{"order_id": "{order_id}"}}"#)).id(format!("paid-{order_id}"))
    }

    #[tokio::test]
    async fn an_event_that_comes_twice_sends_one_parcel() {
        let database = database(5).await;
        let mut inbox = warehouse(&database).await;
        inbox.publish(paid("o1")).await;
        inbox.publish(paid("o1")).await;
        inbox.assert_outcome("paid-o1", Outcome::Processed).await;
        inbox.assert_outcome("paid-o1", Outcome::Duplicate).await;
        inbox.assert_count(PARCELS, 1).await;
        inbox.assert_acked("paid-o1").await;
    }

    #[tokio::test]
    async fn wherever_the_process_dies_one_piece_makes_one_parcel() {
        for point in [
            Point::AfterClaim,
            Point::Handler("taken"),
            Point::BeforeCommit,
            Point::AfterCommit,
            Point::AfterAck,
        ] {
            let database = database(5).await;
            let mut inbox = warehouse(&database).await;
            inbox.publish(paid("o1")).await;
            inbox.crash_at(point).await;
            inbox.run_until_settled().await;
            inbox.assert_count(PARCELS, 1).await;
            inbox.assert_count(STOCK, 4).await;
        }
    }

    #[tokio::test]
    async fn a_handler_that_fails_halfway_has_done_nothing() {
        let database = database(5).await;
        let mut inbox = warehouse(&database).await;
        inbox.publish(paid("o1")).await;
        sqlx::query(
            "CREATE TRIGGER closed BEFORE INSERT ON parcels BEGIN SELECT raise(ABORT, 'no parcels today'); END",
        )
        .execute(database.pool())
        .await
        .expect("closed");
        inbox.assert_outcome("paid-o1", Outcome::Failed).await;
        inbox.assert_count(STOCK, 5).await;
        inbox.assert_not_acked("paid-o1").await;

        // It is over before the back-off is, which the broker's clock passes at once.
        sqlx::query("DROP TRIGGER closed")
            .execute(database.pool())
            .await
            .expect("opened");
        inbox.assert_outcome("paid-o1", Outcome::Processed).await;
        inbox.assert_count(STOCK, 4).await;
    }

    #[tokio::test]
    async fn what_never_succeeds_is_a_dead_letter_and_keeps_nobody_waiting() {
        let database = database(0).await;
        let mut inbox = warehouse(&database).await;
        inbox.publish(paid("o1")).await;
        inbox.publish(Message::new("order.paid", "not JSON").id("bad")).await;
        inbox.assert_outcome("bad", Outcome::DeadLettered).await;
        let report = inbox.run_until_settled().await;
        assert_eq!((report.failed, report.dead_lettered), (1, 1), "{report}");
        inbox
            .assert_count(
                "SELECT attempts FROM inbox_dead_letters WHERE message_id = 'paid-o1'",
                3,
            )
            .await;
    }
}
