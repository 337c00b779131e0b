//! What a handler publishes: for a unit test, and as the harness's broker sees it.

use std::{path::PathBuf, sync::Arc};

use parking_lot::Mutex;

use super::failure::Caller;
use crate::{
    broker::{Broker, BrokerError, Published, Subscription, embedded::Embedded},
    delivery::Message,
    extract::{Collector, Meta, Outbox},
    outgoing::OutboxMessage,
};

/// What a handler publishes that a unit test calls as a function.
///
/// ```
/// # #[cfg(all(feature = "macros", feature = "sqlite"))]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), inbox_runtime::HandlerError> {
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

/// The broker of a harness, which remembers what relays publish.
#[derive(Clone, Debug)]
pub(super) struct RelayTarget {
    broker: Embedded,
    relayed: Arc<Mutex<Vec<Message>>>,
}

impl RelayTarget {
    pub(super) fn new(broker: Embedded) -> Self {
        Self {
            broker,
            relayed: Arc::default(),
        }
    }

    /// What was published to that subject, in order, copies included.
    pub(super) fn relayed(&self, subject: &str) -> Vec<Message> {
        let relayed = self.relayed.lock();
        relayed
            .iter()
            .filter(|message| message.subject == subject)
            .cloned()
            .collect()
    }

    /// The subjects to which something was published.
    pub(super) fn subjects(&self) -> Vec<String> {
        let mut subjects: Vec<_> = self
            .relayed
            .lock()
            .iter()
            .map(|message| message.subject.clone())
            .collect();
        subjects.sort_unstable();
        subjects.dedup();
        subjects
    }
}

impl Broker for RelayTarget {
    type Source = <Embedded as Broker>::Source;

    async fn describe(&self) -> Result<String, BrokerError> {
        Broker::describe(&self.broker).await
    }

    async fn subscribe(&self, subscriptions: Vec<Subscription>) -> Result<Vec<Self::Source>, BrokerError> {
        Broker::subscribe(&self.broker, subscriptions).await
    }

    async fn publish(&self, message: Message) -> Result<Published, BrokerError> {
        let published = Broker::publish(&self.broker, message.clone()).await?;
        self.relayed.lock().push(message);
        Ok(published)
    }

    async fn publish_all(&self, messages: Vec<Message>) -> Vec<Result<Published, BrokerError>> {
        let published = Broker::publish_all(&self.broker, messages.clone()).await;
        let confirmed = messages
            .into_iter()
            .zip(&published)
            .filter(|(_, published)| published.is_ok());
        self.relayed.lock().extend(confirmed.map(|(message, _)| message));
        published
    }

    fn max_payload(&self) -> Option<usize> {
        Broker::max_payload(&self.broker)
    }

    fn file(&self) -> Option<PathBuf> {
        Broker::file(&self.broker)
    }
}
