//! Handlers that publish, for every database: an order becomes invoices, which become effects.

use inbox_runtime::{Handled, HandlerError, Json, Meta, Outbox, State, inbox_handler};

use crate::{
    handlers::handle,
    probe::{Order, Probe},
};

/// Publishes as many invoices as the order's amount says, with its id as their key.
fn publish_invoices(order: &Order, outbox: &Outbox) {
    for number in 1..=order.amount {
        let invoice = Order {
            order_id: order.order_id.clone(),
            amount: number,
        };
        outbox.publish(invoice.to("invoice.created").key(order.order_id.clone()));
    }
}

macro_rules! handlers {
    ($module:ident, $conn:ty) => {
        /// The handlers of this database.
        pub mod $module {
            use super::*;

            /// Publishes invoices and writes its effect.
            ///
            /// # Errors
            ///
            /// As the probe says.
            #[inbox_handler(
                group = "orders",
                subject = "order.created",
                concurrency = 4,
                max_attempts = 3,
                backoff = "10ms..40ms"
            )]
            pub async fn orders(
                tx: &mut $conn,
                Json(order): Json<Order>,
                meta: Meta,
                State(probe): State<Probe>,
                outbox: Outbox,
            ) -> Result<Handled, HandlerError> {
                publish_invoices(&order, &outbox);
                handle(tx, order, meta, probe).await
            }

            /// The same, at least once.
            ///
            /// # Errors
            ///
            /// As the probe says.
            #[inbox_handler(
                group = "orders-again",
                subject = "order.created",
                ack = "at_least_once",
                max_attempts = 3,
                backoff = "10ms..40ms"
            )]
            pub async fn orders_again(
                tx: &mut $conn,
                Json(order): Json<Order>,
                meta: Meta,
                State(probe): State<Probe>,
                outbox: Outbox,
            ) -> Result<Handled, HandlerError> {
                publish_invoices(&order, &outbox);
                handle(tx, order, meta, probe).await
            }

            /// Moves its outbox into a task that outlives it.
            ///
            /// # Errors
            ///
            /// As the probe says.
            #[inbox_handler(group = "escape", subject = "order.created", max_attempts = 1)]
            pub async fn escape(
                tx: &mut $conn,
                Json(order): Json<Order>,
                meta: Meta,
                State(probe): State<Probe>,
                outbox: Outbox,
            ) -> Result<Handled, HandlerError> {
                tokio::spawn(async move {
                    std::future::pending::<()>().await;
                    drop(outbox);
                });
                handle(tx, order, meta, probe).await
            }

            /// Publishes to a subject that its order's id names.
            ///
            /// # Errors
            ///
            /// As the probe says.
            #[inbox_handler(group = "named", subject = "order.created", max_attempts = 1)]
            pub async fn named(
                tx: &mut $conn,
                Json(order): Json<Order>,
                meta: Meta,
                State(probe): State<Probe>,
                outbox: Outbox,
            ) -> Result<Handled, HandlerError> {
                outbox.publish(order.to(&order.order_id));
                handle(tx, order, meta, probe).await
            }

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
