//! The handlers that the tests share: one of each ack strategy, for every database.
//!
//! Each writes its effect and then does what the test's [`Probe`] says.

use inbox_runtime::{Bytes, Handled, HandlerError, Json, Meta, State, claim, inbox_handler};

use crate::{
    database::TestConnection,
    probe::{Fragile, Order, Probe},
};

/// What each of them does: writes its effect, then whatever the probe says.
///
/// # Errors
///
/// As the probe says.
pub async fn handle<C: TestConnection>(
    tx: &mut C,
    order: Order,
    meta: Meta,
    probe: Probe,
) -> Result<Handled, HandlerError> {
    let (call, step) = probe.enter(&meta, order);
    tx.effect(&call.group, &call.id).await?;
    #[cfg(feature = "failpoints")]
    fail::fail_point!("inbox::in_handler");
    inbox_runtime::testing::point("in_handler").await;
    step.perform(tx).await
}

macro_rules! handler {
    ($conn:ty, $(#[doc = $doc:literal])* $name:ident, $($attribute:tt)*) => {
        $(#[doc = $doc])*
        ///
        /// # Errors
        ///
        /// As the probe says.
        #[inbox_handler($($attribute)*)]
        pub async fn $name(
            tx: &mut $conn,
            Json(order): Json<Order>,
            meta: Meta,
            State(probe): State<Probe>,
        ) -> Result<Handled, HandlerError> {
            handle(tx, order, meta, probe).await
        }
    };
}

macro_rules! fragile {
    ($conn:ty, $(#[doc = $doc:literal])* $name:ident, $($attribute:tt)*) => {
        $(#[doc = $doc])*
        ///
        /// # Errors
        ///
        /// As the probe says.
        #[inbox_handler($($attribute)*)]
        pub async fn $name(
            tx: &mut $conn,
            Json(fragile): Json<Fragile>,
            meta: Meta,
            State(probe): State<Probe>,
        ) -> Result<Handled, HandlerError> {
            handle(tx, fragile.order.clone(), meta, probe).await
        }
    };
}

macro_rules! handlers {
    ($module:ident, $conn:ty) => {
        /// The handlers of this database.
        pub mod $module {
            use super::*;

            handler!($conn, /// Exactly once, the default.
                billing, group = "billing", subject = "order.created", max_attempts = 3, backoff = "10ms..40ms");
            handler!($conn, /// Exactly once, for the same messages.
                shipping, group = "shipping", subject = "order.created", max_attempts = 3, backoff = "10ms..40ms");
            handler!($conn, /// Exactly once, for every subject, several at a time.
                audit, group = "audit", subject = ">", concurrency = 4, max_attempts = 20, backoff = "10ms..40ms");
            handler!($conn, /// Exactly once, many at a time, and given up soon.
                crowd, group = "crowd", subject = "order.created", concurrency = 8, max_attempts = 3, backoff = "10ms..40ms");
            handler!($conn, /// Exactly once, with a short timeout, in which a busy machine still handles a message.
                hasty, group = "hasty", subject = "order.created", timeout = "1s", max_attempts = 3, backoff = "10ms..40ms");
            handler!($conn, /// Exactly once, and never given up.
                patient, group = "patient", subject = "order.created", max_attempts = "unlimited", backoff = "10ms..40ms");
            handler!($conn, /// At least once, acknowledged on success.
                at_least_once, group = "at-least-once", subject = "order.created", ack = "at_least_once", max_attempts = 3, backoff = "10ms..40ms");
            handler!($conn, /// At least once, acknowledged in any case.
                on_persist, group = "on-persist", subject = "order.created", ack = "at_least_once", commit = "on_persist");
            handler!($conn, /// At most once.
                at_most_once, group = "at-most-once", subject = "order.created", ack = "at_most_once");
            handler!($conn, /// From the newest message on.
                newest, group = "newest", subject = "order.created", start = "new");
            handler!($conn, /// With ids from the payload.
                by_order, group = "by-order", subject = "order.created", id = "json:/order_id");
            handler!($conn, /// With ids from a header of choice.
                by_header, group = "by-header", subject = "order.created", id = "header:order-id");
            handler!($conn, /// With positions as ids.
                by_position, group = "by-position", subject = "order.created", id = "position");

            /// The five steps of the inbox by hand: the transaction is begun, the message claimed, a duplicate left
            /// alone, the work done; the runtime commits.
            ///
            /// # Errors
            ///
            /// As the probe says.
            #[inbox_handler(group = "manual", subject = "order.created", ack = "at_least_once", max_attempts = 3, backoff = "10ms..40ms")]
            pub async fn manual(
                tx: &mut $conn,
                Json(order): Json<Order>,
                meta: Meta,
                State(probe): State<Probe>,
            ) -> Result<Handled, HandlerError> {
                if claim(tx, meta.group(), meta.message_id()).await?.is_duplicate() {
                    return Ok(Handled::Duplicate);
                }
                handle(tx, order, meta, probe).await
            }

            fragile!($conn, /// Takes a payload that can panic.
                fragile, group = "fragile", subject = "order.created", max_attempts = 3, backoff = "10ms..40ms");
            fragile!($conn, /// The same, at most once.
                fragile_once, group = "fragile-once", subject = "order.created", ack = "at_most_once");

            /// Takes whatever payload there is.
            ///
            /// # Errors
            ///
            /// As the probe says.
            #[inbox_handler(group = "raw", subject = "raw.>")]
            pub async fn raw(
                meta: Meta,
                payload: Option<Bytes>,
                State(probe): State<Probe>,
                tx: &mut $conn,
            ) -> Result<Handled, HandlerError> {
                let order_id = match payload {
                    Some(bytes) => format!("{} bytes", bytes.len()),
                    None => "null".to_owned(),
                };
                handle(tx, Order { order_id, amount: 0 }, meta, probe).await
            }
        }
    };
}

handlers!(sqlite, inbox_runtime::sqlx::SqliteConnection);
#[cfg(feature = "postgres")]
handlers!(postgres, inbox_runtime::sqlx::PgConnection);
