//! What a harness asserts and queries without handling a message: at the broker and in the database.

use std::{collections::BTreeSet, time::Duration};

use super::{
    database::TestPool,
    failure::{Caller, list},
    harness::Harness,
};
use crate::{
    broker::embedded::{Stage, TracedMessage},
    delivery::Message,
    failpoint::message_id,
    handler::HandlerMeta,
    outgoing::MESSAGE_ID,
};

impl<P: TestPool> Harness<P> {
    /// Asserts that every handler that subscribes to the message with that id has acknowledged it.
    ///
    /// # Panics
    ///
    /// When one has not, or there is no such message.
    #[track_caller]
    pub fn assert_acked(&self, id: &str) -> impl Future<Output = ()> {
        let caller = Caller::here();
        async move {
            let found = self.find(id, caller).await;
            if found.is_empty() || found.iter().any(|(_, traced)| traced.stage != Stage::Acked) {
                let there = self.whereabouts(id, caller).await;
                caller.fail(format_args!("expected `{id}` to be acknowledged, but {there}"));
            }
        }
    }

    /// Asserts that no handler has acknowledged the message with that id.
    ///
    /// # Panics
    ///
    /// When one has, or there is no such message.
    #[track_caller]
    pub fn assert_not_acked(&self, id: &str) -> impl Future<Output = ()> {
        let caller = Caller::here();
        async move {
            let found = self.find(id, caller).await;
            if found.is_empty() || found.iter().any(|(_, traced)| traced.stage == Stage::Acked) {
                let there = self.whereabouts(id, caller).await;
                caller.fail(format_args!("expected `{id}` not to be acknowledged, but {there}"));
            }
        }
    }

    /// What handlers, and transactions of the test, have published to that subject so far, as it reached the broker: in order, with
    /// the headers that are added, and with the copies that a crash has left.
    ///
    /// ```standalone_crate
    /// # #[cfg(all(feature = "macros", feature = "sqlite"))]
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// use inbox_runtime::{prelude::*, testing::{Harness, Point, TempSqlite}};
    ///
    /// #[inbox_handler(group = "billing", subject = "order.created")]
    /// async fn create_invoice(_tx: &mut SqliteConnection, outbox: Outbox) -> Result<(), HandlerError> {
    ///     outbox.publish(Message::new("invoice.created", "{}").key("o1"));
    ///     Ok(())
    /// }
    ///
    /// let database = TempSqlite::new("").await;
    /// let mut inbox = Harness::start(database.pool(), |inbox| inbox.groups(["billing"])).await;
    /// inbox.publish(Message::new("order.created", "{}").id("evt-1")).await;
    /// // The relay dies between the send and the deletion of the row.
    /// inbox.crash_at(Point::OutboxAfterSend).await;
    /// inbox.run_until_settled().await;
    /// let published = inbox.published("invoice.created").await;
    /// let ids: Vec<_> = published.iter().map(|message| message.headers.get("message_id")).collect();
    /// assert_eq!(ids.len(), 2);
    /// assert_eq!(ids[0], ids[1], "a copy, which an inbox drops");
    /// inbox.assert_published("invoice.created", 1).await;
    /// # }
    /// # #[cfg(not(all(feature = "macros", feature = "sqlite")))]
    /// # fn main() {}
    /// ```
    pub async fn published(&mut self, subject: &str) -> Vec<Message> {
        self.inbox.relay_now().await;
        self.relayed.relayed(subject)
    }

    /// Asserts how many messages were published to that subject so far; copies with one id count once.
    ///
    /// # Panics
    ///
    /// When there are more or fewer; the text has the subjects to which anything was published.
    #[track_caller]
    pub fn assert_published(&mut self, subject: &str, expected: usize) -> impl Future<Output = ()> {
        let caller = Caller::here();
        async move {
            let published = self.published(subject).await;
            let ids: BTreeSet<_> = published
                .iter()
                .map(|message| message.headers.get(MESSAGE_ID))
                .collect();
            if ids.len() != expected {
                caller.fail(format_args!(
                    "expected {expected} message(s) published to `{subject}`, but there are {}; something was published to: {}; {}",
                    ids.len(),
                    list(&self.relayed.subjects(), ", "),
                    self.past()
                ));
            }
        }
    }

    /// The one number that a query on the database gives.
    ///
    /// # Panics
    ///
    /// When the query fails or gives something else.
    #[track_caller]
    pub fn count(&self, sql: &str) -> impl Future<Output = i64> {
        let caller = Caller::here();
        async move {
            let number = self.pool.number(sql.to_owned()).await;
            number.unwrap_or_else(|error| caller.fail(format_args!("`{sql}` failed: {error}")))
        }
    }

    /// Asserts the one number that a query on the database gives: how many effects there are.
    ///
    /// # Panics
    ///
    /// When it is another one, or the query fails.
    #[track_caller]
    pub fn assert_count(&self, sql: &str, expected: i64) -> impl Future<Output = ()> {
        let caller = Caller::here();
        async move {
            let number = self.pool.number(sql.to_owned()).await;
            match number {
                Ok(number) if number == expected => {}
                Ok(number) => caller.fail(format_args!(
                    "expected {expected} from `{sql}`, but there are {number}; {}",
                    self.past()
                )),
                Err(error) => caller.fail(format_args!("expected {expected} from `{sql}`, but it failed: {error}")),
            }
        }
    }

    /// The time until the next redelivery, if there is one.
    pub(super) async fn next_due(&self, caller: Caller) -> Option<Duration> {
        let traced = self.trace(caller).await;
        let due = traced.iter().filter_map(|(_, traced)| match traced.stage {
            Stage::Pending(due) => Some(due),
            Stage::Waiting | Stage::Acked => None,
        });
        due.min()
    }

    /// Every message, with each handler that subscribes to it.
    async fn trace(&self, caller: Caller) -> Vec<(&HandlerMeta, TracedMessage)> {
        let mut all = Vec::new();
        for meta in self.inbox.handlers() {
            let traced = self.broker.trace(meta.group, meta.subject).await;
            let traced = traced.unwrap_or_else(|error| caller.fail(format_args!("the broker failed: {error}")));
            all.extend(traced.into_iter().map(|traced| (meta, traced)));
        }
        all
    }

    /// The messages of that id, with each handler that subscribes to them.
    pub(super) async fn find(&self, id: &str, caller: Caller) -> Vec<(&HandlerMeta, TracedMessage)> {
        let mut found = self.trace(caller).await;
        found.retain(|(meta, traced)| message_id(&traced.delivery, meta) == id);
        found
    }

    /// Where the messages of that id are, as a text.
    pub(super) async fn whereabouts(&self, id: &str, caller: Caller) -> String {
        let found = self.find(id, caller).await;
        let mut words: Vec<_> = found.iter().map(|(meta, traced)| stage(id, meta, traced)).collect();
        if words.is_empty() {
            let handlers: Vec<_> = self
                .inbox
                .handlers()
                .map(|meta| format!("{} takes `{}`", meta.name, meta.subject))
                .collect();
            words.push(format!(
                "no handler was sent a message of that id ({}); was it published, and to that subject?",
                handlers.join(", ")
            ));
        }
        format!("{}; {}", words.join(", "), self.past())
    }

    pub(super) fn past(&self) -> String {
        format!("until now: {}", list(&self.history, "; "))
    }
}

fn stage(id: &str, meta: &HandlerMeta, traced: &TracedMessage) -> String {
    let name = meta.name;
    match traced.stage {
        Stage::Waiting => format!("`{id}` waits for its first delivery to {name}"),
        Stage::Pending(due) => format!(
            "`{id}` was delivered to {name} and is redelivered in {}",
            humantime::format_duration(due)
        ),
        Stage::Acked => format!("{name} has acknowledged `{id}`"),
    }
}
