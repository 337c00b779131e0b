//! `Outbox`: the argument that collects what a handler publishes, for the runtime to write into its transaction.

use std::{
    mem,
    sync::{Arc, OnceLock},
};

use parking_lot::Mutex;

use super::{DeliveryContext, FromDelivery, Meta, Rejection};
use crate::outgoing::{Cause, NewOutboxMessage, Numbering, OutboxMessage, own_id, prepare};

/// Publishes messages in the handler's transaction: each is on the broker at least once if and only if the transaction commits.
///
/// They are collected while the handler runs. When it has returned well, the runtime writes them as the last statement of its
/// transaction, and a relay publishes them after the commit: per subject and key in the order in which transactions that exclude
/// one another wrote them, each with an id that is the same if the handler runs again, so that an inbox drops the copies.
///
/// A savepoint that the handler rolls back does not take back what was collected: inside of one, write with
/// [`publish`](crate::publish) instead. The handler must take its transaction, too; an `Outbox` in one without is a compile
/// error. It must not outlive the handler, as in a task that it spawns: the handler has failed then.
///
/// ```
/// # #[cfg(all(feature = "macros", feature = "sqlite"))]
/// # mod example {
/// use inbox_runtime::{Message, Outbox, prelude::*};
///
/// #[inbox_handler(group = "billing", subject = "order.created")]
/// async fn create_invoice(tx: &mut SqliteConnection, Json(order_id): Json<String>, outbox: Outbox) -> Result<(), HandlerError> {
///     sqlx::query("INSERT INTO invoices (order_id) VALUES ($1)").bind(&order_id).execute(&mut *tx).await?;
///     outbox.publish(Message::json("invoice.created", &order_id)?.key(order_id));
///     Ok(())
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct Outbox {
    collected: Arc<Collected>,
    cause: Cause,
}

/// What the arguments of one call have collected.
#[derive(Debug, Default)]
struct Collected(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    numbering: Numbering,
    messages: Vec<NewOutboxMessage>,
    /// What was wrong with the first message that was refused.
    refused: Option<String>,
}

impl Outbox {
    /// Publishes a message, and returns its id: that of its header `message_id`, or one that is made of the group, the id of the
    /// message that is handled, the subject and the key, and so is the same if this one is handled again.
    ///
    /// Headers that it lacks are added: `message_id`, `causation_id` (the id of the message that is handled), `correlation_id` (its
    /// correlation, or its id), `content-type` (of JSON), and those of the trace (feature `otel`).
    ///
    /// A message that no broker would take (a subject with a wildcard, the name of a header with a space, a payload that is larger
    /// than the program's broker takes) makes the handler fail when it returns, with a text that names it.
    pub fn publish(&self, message: impl Into<OutboxMessage>) -> String {
        let outgoing = message.into();
        let mut state = self.collected.0.lock();
        let id = match own_id(&outgoing.message) {
            Ok(Some(id)) => id,
            Ok(None) => state.numbering.id(&self.cause, &outgoing.message),
            Err(problem) => {
                let subject = outgoing.message.subject.escape_debug();
                state.refuse(format!("a message for `{subject}`: {problem}"));
                return String::new();
            }
        };
        match prepare(outgoing, id.clone(), Some(&self.cause)) {
            Ok(message) => state.messages.push(message),
            Err(problem) => state.refuse(problem),
        }
        id
    }
}

impl State {
    fn refuse(&mut self, problem: String) {
        self.refused.get_or_insert(problem);
    }
}

impl FromDelivery for Outbox {
    const PUBLISHES: bool = true;

    fn from_delivery(context: &DeliveryContext<'_>) -> Result<Self, Rejection> {
        Ok(Self::new(context.meta(), context.collector()))
    }
}

impl Outbox {
    pub(crate) fn new(meta: &Meta, collector: &Collector) -> Self {
        Self {
            collected: Arc::clone(collector.0.get_or_init(Arc::default)),
            cause: Cause::new(meta.group(), meta.message_id(), meta.headers()),
        }
    }
}

/// Where the arguments of one call collect. Empty and free of cost until one of them is an [`Outbox`].
#[derive(Debug, Default)]
pub(crate) struct Collector(OnceLock<Arc<Collected>>);

impl Collector {
    pub(crate) const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// What was collected, once the handler has returned and its future is dropped.
    ///
    /// # Errors
    ///
    /// What the handler did wrong.
    pub(crate) fn take(&self) -> Result<Vec<NewOutboxMessage>, String> {
        let Some(collected) = self.0.get() else {
            return Ok(Vec::new());
        };
        if Arc::strong_count(collected) > 1 {
            return Err("its `Outbox` is still in use after its end (moved into a task?), and what is published there would be \
                        lost; publish before the handler returns"
                .to_owned());
        }
        let mut state = collected.0.lock();
        match state.refused.take() {
            Some(problem) => Err(problem),
            None => Ok(mem::take(&mut state.messages)),
        }
    }

    /// What was collected so far.
    #[cfg(feature = "testing")]
    pub(crate) fn collected(&self) -> Result<Vec<NewOutboxMessage>, String> {
        let Some(collected) = self.0.get() else {
            return Ok(Vec::new());
        };
        let state = collected.0.lock();
        state.refused.clone().map_or_else(|| Ok(state.messages.clone()), Err)
    }
}
