//! Consumers that no program has open any more, and that keep their messages for ever.

use std::time::Duration;

use super::{clock::until, consumer_info, limits::IDLE_AFTER, shared::EmbeddedShared, storage::Storage};
use crate::broker::BrokerError;

/// A consumer that keeps messages and has not been open for long.
#[derive(Debug)]
pub(super) struct IdleConsumer {
    storage: Storage,
    group: String,
    subject: String,
    messages: u64,
    /// The age of its oldest message.
    oldest: Duration,
    /// The time since it was last open.
    unseen: Duration,
}

impl IdleConsumer {
    pub(super) fn warn(&self) {
        let Self {
            group,
            subject,
            messages,
            ..
        } = self;
        let time = |time: Duration| humantime::format_duration(Duration::from_secs(time.as_secs()));
        tracing::warn!(
            place = %self.storage,
            group,
            subject,
            "the embedded broker keeps {messages} messages, the oldest of them {} old, for a durable consumer that no program has \
             had open for {}; start its program, or remove it by `Embedded::remove_consumer(\"{group}\", \"{subject}\")` or, in the \
             file, `DELETE FROM consumers WHERE consumer_group = '{group}' AND subject = '{subject}'`: its group then never gets \
             those messages",
            time(self.oldest),
            time(self.unseen),
        );
    }
}

/// Records that the consumers of this process are open. Returns those of all programs that have not been open for long,
/// if that is `wanted`.
pub(super) async fn check(shared: &EmbeddedShared, wanted: bool) -> Result<Vec<IdleConsumer>, BrokerError> {
    let now = shared.clock.now();
    let ours = shared.wakeups.consumer_ids();
    if !ours.is_empty() {
        let mut connection = shared.db().await?.relaxed_writer().await?;
        let updated = sqlx::query("UPDATE consumers SET seen_at = ? WHERE id IN (SELECT value FROM json_each(?))")
            .bind(now)
            .bind(format!("{ours:?}"))
            .execute(&mut *connection)
            .await;
        connection.finish("record the open consumers of", updated)?;
    }
    let mut idle = Vec::new();
    for (group, subject, seen_at, published_at) in if wanted { unseen(shared, now).await? } else { Vec::new() } {
        let found = consumer_info::consumers(shared, Some((&group, &subject))).await?.pop();
        let messages = found.map_or(0, |found| found.waiting + found.ack_pending);
        if let Some(published_at) = published_at.filter(|_| messages > 0) {
            idle.push(IdleConsumer {
                storage: shared.storage.clone(),
                group,
                subject,
                messages,
                oldest: until(now, published_at),
                unseen: until(now, seen_at),
            });
        }
    }
    Ok(idle)
}

/// Group, subject, when it was last open, when its oldest unsettled message was published.
type Unseen = (String, String, i64, Option<i64>);

async fn unseen(shared: &EmbeddedShared, now: i64) -> Result<Vec<Unseen>, BrokerError> {
    let limit = i64::try_from(IDLE_AFTER.as_millis()).unwrap_or(i64::MAX);
    let mut connection = shared.db().await?.reader().await?;
    let rows = sqlx::query_as(
        "SELECT consumer_group, subject, seen_at, (SELECT published_at FROM messages WHERE seq = min( \
         coalesce((SELECT min(seq) FROM pending WHERE consumer = c.id), 9223372036854775807), \
         coalesce((SELECT min(seq) FROM messages WHERE seq > c.position AND subject GLOB replace(c.subject, '>', '*')), \
         9223372036854775807))) FROM consumers c WHERE seen_at <= ? ORDER BY consumer_group, subject",
    )
    .bind(now.saturating_sub(limit))
    .fetch_all(&mut *connection)
    .await;
    connection.finish("look for consumers in", rows)
}
