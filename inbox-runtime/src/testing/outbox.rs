//! An outbox for the unit test of a handler.

use super::failure::Caller;
use crate::{
    extract::{Collector, Meta, Outbox},
    outgoing::OutboxMessage,
};

/// What a handler publishes that a unit test calls as a function.
///
/// ```
/// # #[cfg(all(feature = "macros", feature = "sqlite"))]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use inbox_runtime::{prelude::*, testing::{TempSqlite, TestOutbox}};
///
/// #[inbox_handler(group = "billing", subject = "order.created")]
/// async fn create_invoice(tx: &mut SqliteConnection, Json(order_id): Json<String>, outbox: Outbox) -> Result<(), HandlerError> {
///     sqlx::query("INSERT INTO invoices (order_id) VALUES ($1)").bind(&order_id).execute(&mut *tx).await?;
///     outbox.publish(Message::json("invoice.created", &order_id)?.key(order_id));
///     Ok(())
/// }
///
/// let database = TempSqlite::new("CREATE TABLE invoices (order_id TEXT NOT NULL)").await;
/// let mut tx = database.pool().begin().await?;
/// let test = TestOutbox::new();
/// create_invoice(&mut *tx, Json("o1".to_owned()), test.outbox()).await?;
/// let [published] = &test.published()[..] else { panic!("one message") };
/// assert_eq!(published.message.subject, "invoice.created");
/// # Ok(())
/// # }
/// # #[cfg(not(all(feature = "macros", feature = "sqlite")))]
/// # fn main() {}
/// ```
#[derive(Debug, Default)]
pub struct TestOutbox {
    meta: Option<Meta>,
    collector: Collector,
}

impl TestOutbox {
    /// One for the handling of the message that [`Meta::builder`] makes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// One for the handling of that message, by which ids and headers are made.
    #[must_use]
    pub fn of(meta: Meta) -> Self {
        Self {
            meta: Some(meta),
            ..Self::default()
        }
    }

    /// The argument of the handler.
    #[must_use]
    pub fn outbox(&self) -> Outbox {
        let meta = self.meta.clone().unwrap_or_else(|| Meta::builder().build());
        Outbox::new(&meta, &self.collector)
    }

    /// What was published so far, in order, with the headers that are added.
    ///
    /// # Panics
    ///
    /// When something was published that makes the handler fail; the text says what.
    #[track_caller]
    #[must_use]
    pub fn published(&self) -> Vec<OutboxMessage> {
        let caller = Caller::here();
        let collected = self.collector.collected();
        let collected = collected.unwrap_or_else(|problem| caller.fail(format_args!("the handler fails: {problem}")));
        let outgoing = |message: crate::outgoing::NewOutboxMessage| OutboxMessage {
            message: message.message,
            delay: message.delay,
        };
        collected.into_iter().map(outgoing).collect()
    }
}
