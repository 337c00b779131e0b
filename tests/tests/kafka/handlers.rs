//! Handlers that only Kafka's tests need.

use inbox_runtime::{Envelope, Handled, HandlerError, Json, Meta, State, inbox_handler, sqlx::SqliteConnection};
use inbox_tests::{Order, Probe, TestConnection, handlers::handle};

macro_rules! handler {
    ($name:ident, $payload:ident, $($attribute:tt)*) => {
        #[inbox_handler($($attribute)*, max_attempts = 3, backoff = "10ms..40ms")]
        async fn $name(
            tx: &mut SqliteConnection,
            order: $payload<Order>,
            meta: Meta,
            State(probe): State<Probe>,
        ) -> Result<Handled, HandlerError> {
            handle(tx, Order::clone(&order), meta, probe).await
        }
    };
}

// Two subjects of one group, which share a consumer.
handler!(here, Json, group = "pair", subject = "pair.here");
handler!(later, Json, group = "pair", subject = "pair.later");
// What omni-box writes.
handler!(omni, Envelope, group = "omni", subject = "omni.order");

/// Tombstones: a key and no payload.
#[inbox_handler(group = "keyed", subject = "customer.gone", max_attempts = 1)]
async fn keyed(tx: &mut SqliteConnection, meta: Meta, State(probe): State<Probe>) -> Result<Handled, HandlerError> {
    let key = String::from_utf8_lossy(meta.key().unwrap_or(b"none")).into_owned();
    let (_, step) = probe.enter(&meta, Order::new(&key));
    tx.effect("keyed", &key).await?;
    step.perform(tx).await
}
