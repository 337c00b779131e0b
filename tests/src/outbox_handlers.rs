//! Handlers that publish, for every database: an order becomes invoices, which become effects.

use inbox_runtime::{Handled, HandlerError, Json, Meta, Outbox, State, inbox_handler};

use crate::{
    handlers::handle,
    probe::{Order, Probe},
};

/// Publishes as many invoices as the order's amount says, with its id as their key.
fn publish_invoices(order: &Order, outbox: Outbox) {
    for number in 1..=order.amount {
        let invoice = Order {
            order_id: order.order_id.clone(),
            amount: number,
        };
        outbox.publish(invoice.to("invoice.created").key(order.order_id.clone()));
    }
    drop(outbox);
}

fn publish_to_its_id(order: &Order, outbox: Outbox) {
    outbox.publish(order.to(&order.order_id));
    drop(outbox);
}

fn escape(_order: &Order, outbox: Outbox) {
    tokio::spawn(async move {
        std::future::pending::<()>().await;
        drop(outbox);
    });
}

/// A handler that does that with its outbox, writes its effect, and then does what the probe says.
macro_rules! handler {
    ($conn:ty, $(#[doc = $doc:literal])* $name:ident, $publish:ident, $($attribute:tt)*) => {
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
            outbox: Outbox,
        ) -> Result<Handled, HandlerError> {
            super::$publish(&order, outbox);
            handle(tx, order, meta, probe).await
        }
    };
}

macro_rules! handlers {
    ($module:ident, $conn:ty) => {
        /// The handlers of this database.
        pub mod $module {
            use super::*;

            handler!($conn, /// Publishes invoices and writes its effect.
                orders, publish_invoices,
                group = "orders", subject = "order.created", concurrency = 4, max_attempts = 3, backoff = "10ms..40ms");
            handler!($conn, /// The same, at least once.
                orders_again, publish_invoices,
                group = "orders-again", subject = "order.created", ack = "at_least_once", max_attempts = 3, backoff = "10ms..40ms");
            handler!($conn, /// Publishes to a subject that its order's id names.
                named, publish_to_its_id,
                group = "named", subject = "order.created", max_attempts = 1);
            handler!($conn, /// Moves its outbox into a task that outlives it.
                escape, escape,
                group = "escape", subject = "order.created", max_attempts = 1);

            /// Writes an effect for each invoice.
            ///
            /// # Errors
            ///
            /// As the probe says.
            #[inbox_handler(
                group = "invoices",
                subject = "invoice.created",
                concurrency = 2,
                max_attempts = 3,
                backoff = "10ms..40ms"
            )]
            pub async fn invoices(
                tx: &mut $conn,
                Json(order): Json<Order>,
                meta: Meta,
                State(probe): State<Probe>,
            ) -> Result<Handled, HandlerError> {
                handle(tx, order, meta, probe).await
            }
        }
    };
}

handlers!(sqlite, inbox_runtime::sqlx::SqliteConnection);
#[cfg(feature = "postgres")]
handlers!(postgres, inbox_runtime::sqlx::PgConnection);
