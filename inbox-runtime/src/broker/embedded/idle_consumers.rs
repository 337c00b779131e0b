//! Durables that no program has open any more: they keep their messages for ever.

use std::time::Duration;

use super::{
    Shared,
    clock::until,
    config::{ABSENT, Place},
    info,
};
use crate::broker::BrokerError;

/// A durable that keeps messages and that nobody has had open for long.
#[derive(Debug)]
pub(super) struct Absent {
    place: Place,
    group: String,
    subject: String,
    messages: u64,
    /// The age of its oldest message.
    oldest: Duration,
    /// Since it was last open.
    unseen: Duration,
}

impl Absent {
    pub(super) fn warn(&self) {
        let Self {
            group,
            subject,
            messages,
            ..
        } = self;
        let time = |time: Duration| humantime::format_duration(Duration::from_secs(time.as_secs()));
        tracing::warn!(
            place = %self.place,
            group,
            subject,
            "the embedded broker keeps {messages} messages, the oldest of them {} old, for a durable consumer that no program has \
             had open for {}; start its program, or give it up by `Embedded::remove_consumer(\"{group}\", \"{subject}\")` or, in the \
             file, `DELETE FROM consumers WHERE consumer_group = '{group}' AND subject = '{subject}'`: its group then never gets \
             those messages",
            time(self.oldest),
            time(self.unseen),
        );
    }
}

/// Notes that the durables of this process are open, and finds those that nobody has had open for long, if that is `wanted`.
pub(super) async fn look(shared: &Shared, wanted: bool) -> Result<Vec<Absent>, BrokerError> {
    let now = shared.clock.now();
    let ours = shared.wakes.ids();
    if !ours.is_empty() {
        let mut writing = shared.db().await?.relaxed().await?;
        let updated = sqlx::query("UPDATE consumers SET seen_at = ? WHERE id IN (SELECT value FROM json_each(?))")
            .bind(now)
            .bind(format!("{ours:?}"))
            .execute(&mut *writing)
            .await;
        writing.done("note the consumers of", updated)?;
    }
    let mut absent = Vec::new();
    for (group, subject, seen_at, published_at) in if wanted { unseen(shared, now).await? } else { Vec::new() } {
        let found = info::consumers(shared, Some((&group, &subject))).await?.pop();
        let messages = found.map_or(0, |found| found.waiting + found.ack_pending);
        if let Some(published_at) = published_at.filter(|_| messages > 0) {
            absent.push(Absent {
                place: shared.place.clone(),
                group,
                subject,
                messages,
                oldest: until(now, published_at),
                unseen: until(now, seen_at),
            });
        }
    }
    Ok(absent)
}

/// Group, subject, when it was last open, and when its oldest message that isn't settled was published.
type Unseen = (String, String, i64, Option<i64>);

async fn unseen(shared: &Shared, now: i64) -> Result<Vec<Unseen>, BrokerError> {
    let long = i64::try_from(ABSENT.as_millis()).unwrap_or(i64::MAX);
    let mut reading = shared.db().await?.reading().await?;
    let rows = sqlx::query_as(
        "SELECT consumer_group, subject, seen_at, (SELECT published_at FROM messages WHERE seq = min( \
         coalesce((SELECT min(seq) FROM pending WHERE consumer = c.id), 9223372036854775807), \
         coalesce((SELECT min(seq) FROM messages WHERE seq > c.position AND subject GLOB replace(c.subject, '>', '*')), \
         9223372036854775807))) FROM consumers c WHERE seen_at <= ? ORDER BY consumer_group, subject",
    )
    .bind(now.saturating_sub(long))
    .fetch_all(&mut *reading)
    .await;
    reading.done("look for consumers in", rows)
}
