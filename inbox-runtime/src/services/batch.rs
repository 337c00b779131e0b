//! One batch of one lane of an outbox: read, published, and deleted as far as the broker has confirmed it.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;

use super::subjects::Subjects;
use crate::{
    broker::{BrokerError, DynBroker, Published},
    error_chain::text,
    failpoint::failpoint,
    outbox_watch::OutboxWatch,
    store::{LaneRequest, OutboxRow, Records, StoreError},
};

/// The most messages of one batch, and the bytes after which it gets no further one.
const MAX_MESSAGES: u32 = 512;
const MAX_BYTES: u64 = 8 << 20;
/// How long the broker may take for a batch, which is longer than each takes by itself to say what it doesn't take now.
const PUBLISH_WAIT: Duration = Duration::from_secs(90);

/// Takes messages from the outbox of one database to the broker.
pub(super) struct Publisher {
    /// The database's name and where it was given.
    pub(super) database: String,
    pub(super) records: Arc<dyn Records>,
    pub(super) broker: DynBroker,
    pub(super) watch: Arc<OutboxWatch>,
}

/// What a look at the outbox, or a batch of one lane, has come to.
#[derive(Debug, Default)]
pub(super) struct Round {
    /// Something was published or parked.
    pub(super) progress: bool,
    /// Another relay has a lane that has something.
    pub(super) taken: bool,
    /// Why the database or the broker can't be used now.
    pub(super) outage: Option<String>,
}

impl Round {
    pub(super) fn outage(why: String) -> Self {
        Self {
            outage: Some(why),
            ..Self::default()
        }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.progress |= other.progress;
        self.taken |= other.taken;
        self.outage = self.outage.take().or(other.outage);
    }
}

/// Which messages a batch may have, and what becomes of those that are denied.
pub(super) struct Limits {
    /// Only one of this subject.
    only: Option<String>,
    /// None of these subjects.
    skip: Vec<String>,
    /// Messages of these subjects are parked if they are denied.
    parked: Vec<String>,
}

impl Limits {
    pub(super) fn of(subjects: &Subjects) -> Self {
        Self {
            only: None,
            skip: subjects.skipped(),
            parked: subjects.parked(),
        }
    }

    /// One message of that subject.
    pub(super) fn only(subject: &str, subjects: &Subjects) -> Self {
        Self {
            only: Some(subject.to_owned()),
            skip: Vec::new(),
            parked: subjects.parked(),
        }
    }
}

/// What a batch has come to.
pub(super) struct Ended {
    lane: u16,
    round: Round,
    /// The subjects that the broker doesn't take now, each with the reason.
    waits: Vec<(String, String)>,
    /// The subjects for which a right is missing.
    denied: Vec<String>,
    /// The subjects of what was confirmed.
    confirmed: Vec<String>,
}

impl Ended {
    fn new(lane: u16) -> Self {
        Self {
            lane,
            round: Round::default(),
            waits: Vec::new(),
            denied: Vec::new(),
            confirmed: Vec::new(),
        }
    }

    /// Takes over what was learned of subjects.
    pub(super) fn learn(self, subjects: &mut Subjects) -> Round {
        for subject in &self.confirmed {
            subjects.granted(subject);
        }
        for subject in &self.denied {
            subjects.deny(subject);
        }
        for (subject, why) in &self.waits {
            subjects.wait(subject, self.lane, why);
        }
        self.round
    }

    /// Takes over what came of one message of a subject that waits.
    pub(super) fn settle_trial(self, subject: &str, subjects: &mut Subjects) {
        let waits = !self.waits.is_empty();
        let round = self.learn(subjects);
        if round.taken || round.outage.is_some() {
            subjects.postpone(subject);
        } else if !waits {
            subjects.resume(subject);
        }
    }
}

impl Publisher {
    /// Publishes the first messages of a lane.
    pub(super) async fn publish(&self, lane: u16, limits: Limits) -> Ended {
        let mut ended = Ended::new(lane);
        if let Err(error) = self.try_batch(&mut ended, &limits).await {
            ended.round.outage = Some(text(&error));
        }
        ended
    }

    async fn try_batch(&self, ended: &mut Ended, limits: &Limits) -> Result<(), StoreError> {
        let max_messages = if limits.only.is_some() { 1 } else { MAX_MESSAGES };
        let request = LaneRequest {
            lane: ended.lane,
            only: limits.only.as_deref(),
            skip: &limits.skip,
            max_messages,
            max_bytes: MAX_BYTES,
        };
        let Some(mut taken) = self.records.take_lane(request).await? else {
            ended.round.taken = true;
            return Ok(());
        };
        let rows = taken.take_rows();
        let messages: Vec<_> = rows.iter().map(|row| row.message.clone()).collect();
        let answers = if rows.is_empty() {
            // Another relay was quicker, or what is left waits.
            Vec::new()
        } else if let Ok(answers) = timeout(PUBLISH_WAIT, self.broker.publish_all(messages)).await {
            answers
        } else {
            let wait = humantime::format_duration(PUBLISH_WAIT);
            ended.round.outage = Some(format!("the broker had no answer within {wait}"));
            return Ok(());
        };
        if !rows.is_empty() {
            failpoint!("outbox_after_send");
        }
        let (confirmed, refused) = self.sort(ended, limits, &rows, answers);
        let published = confirmed.len();
        ended.round.progress = published + refused.len() > 0;
        taken.finish(confirmed, refused).await?;
        if ended.round.progress {
            failpoint!("outbox_after_delete");
        }
        self.watch.count(published);
        Ok(())
    }

    /// Sorts a batch by the broker's answers. Returns the messages that are confirmed, and those that are refused, each with the
    /// reason.
    fn sort(
        &self,
        ended: &mut Ended,
        limits: &Limits,
        rows: &[OutboxRow],
        answers: Vec<Result<Published, BrokerError>>,
    ) -> (Vec<i64>, Vec<(i64, String)>) {
        let (mut confirmed, mut refused) = (Vec::new(), Vec::new());
        for (OutboxRow { id, message }, answer) in rows.iter().zip(answers) {
            let subject = &message.subject;
            let error = match answer {
                Ok(_) => {
                    confirmed.push(*id);
                    if ended.confirmed.last() != Some(subject) {
                        ended.confirmed.push(subject.clone());
                    }
                    continue;
                }
                Err(error) => error,
            };
            let why = text(&error);
            let is_denied = matches!(error, BrokerError::Denied { .. });
            match error {
                BrokerError::Refused { .. } => refused.push((*id, why)),
                BrokerError::Denied { .. } if limits.parked.contains(subject) => refused.push((*id, why)),
                BrokerError::Denied { .. } | BrokerError::NotNow { .. } => {
                    ended.waits.push((subject.clone(), why));
                }
                _ => ended.round.outage = ended.round.outage.take().or(Some(why)),
            }
            if is_denied {
                ended.denied.push(subject.clone());
            }
        }
        for (id, why) in &refused {
            let subject = rows
                .iter()
                .find(|row| row.id == *id)
                .map(|row| row.message.subject.as_str());
            tracing::error!(
                database = self.database,
                subject,
                error = why,
                "the broker refuses a message; it is parked"
            );
        }
        (confirmed, refused)
    }
}
