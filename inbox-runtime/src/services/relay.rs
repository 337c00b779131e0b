//! Publishes what waits in the outbox of one database: takes the lanes that have something, hands their messages to the broker, and
//! deletes what it has confirmed. There is no leader: every program may relay, a lane is one relay's for the time of one batch.

use std::{
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{
    lanes::{Lane, Lanes},
    service::Service,
};
use crate::{
    backoff::Backoff,
    broker::{BrokerError, DynBroker, Published},
    error_chain::text,
    failpoint::failpoint,
    outbox_wake,
    outbox_watch::OutboxWatch,
    store::{LaneRequest, OutboxRow, Records, StoreError},
};

/// How many lanes one relay works on at a time, each on a connection of its own.
const CONCURRENCY: usize = 2;
/// The most messages of one batch, and the bytes after which it gets no further one.
const MAX_MESSAGES: u32 = 512;
const MAX_BYTES: u64 = 8 << 20;
/// How long the broker may take for a batch.
const PUBLISH_WAIT: Duration = Duration::from_secs(30);
/// The pause between two looks at an outbox that was empty, from the first to the longest.
const POLL: (Duration, Duration) = (Duration::from_millis(25), Duration::from_millis(600));
/// The pause before a look at a lane that another relay had.
const TAKEN: Duration = Duration::from_millis(5);
/// How many delayed messages are moved at a time.
const MAX_DUE: u32 = 1000;
/// How long a right may be missing before the messages that need it are parked.
const GRANT_WAIT: Duration = Duration::from_mins(5);
/// The wait after the database or the broker could not be used.
const OUTAGE: Backoff = Backoff {
    first: Duration::from_millis(100),
    max: Duration::from_secs(30),
};

/// Publishes what waits in the outbox of one database.
pub(crate) struct Relay {
    /// The database's name and where it was given.
    database: String,
    records: Arc<dyn Records>,
    broker: DynBroker,
    watch: Arc<OutboxWatch>,
}

/// What a look at the outbox, or a batch of one lane, has come to.
#[derive(Default)]
struct Round {
    /// Something was published or parked.
    progress: bool,
    /// Another relay has a lane that has something.
    taken: bool,
    /// Why the database or the broker can't be used now.
    outage: Option<String>,
}

impl Round {
    fn outage(why: String) -> Self {
        Self {
            outage: Some(why),
            ..Self::default()
        }
    }

    fn add(&mut self, other: Self) {
        self.progress |= other.progress;
        self.taken |= other.taken;
        self.outage = self.outage.take().or(other.outage);
    }
}

impl Relay {
    pub(crate) fn new(database: String, records: Arc<dyn Records>, broker: DynBroker, watch: Arc<OutboxWatch>) -> Self {
        Self {
            database,
            records,
            broker,
            watch,
        }
    }

    /// Publishes everything that can be published now, and returns: for an inbox that is driven message by message.
    pub(crate) async fn flush(&self) {
        let mut lanes = Lanes::new(self.records.outbox_lanes());
        while self.round(&mut lanes).await.progress {}
    }

    /// Relays for ever.
    async fn relay(&self) {
        let mut lanes = Lanes::new(self.records.outbox_lanes());
        let (mut failures, mut pause) = (0, POLL.0);
        loop {
            // From before the look on: what is committed meanwhile is found by the next one.
            let woken = outbox_wake::woken();
            let round = self.round(&mut lanes).await;
            self.watch.set_relayed(round.outage.clone(), lanes.waiting());
            if let Some(why) = round.outage {
                failures += 1;
                if failures == 1 {
                    tracing::warn!(
                        database = self.database,
                        error = why,
                        "the outbox can't be relayed now; trying again"
                    );
                }
                tokio::time::sleep(OUTAGE.first.max(OUTAGE.delay(failures))).await;
                continue;
            }
            if mem::take(&mut failures) > 0 {
                tracing::info!(database = self.database, "the outbox is relayed again");
            }
            if round.progress {
                pause = POLL.0;
                continue;
            }
            let wait = if round.taken { TAKEN } else { pause };
            pause = (pause * 2).min(POLL.1);
            let wait = lanes.next_trial().map_or(wait, |trial| wait.min(trial));
            if timeout(wait, woken).await.is_ok() {
                pause = POLL.0;
            }
        }
    }

    /// Looks for lanes that have something, and publishes a batch of each.
    async fn round(&self, lanes: &mut Lanes) -> Round {
        let ready = match self.look(lanes).await {
            Ok(ready) => ready,
            Err(error) => return Round::outage(text(&error)),
        };
        let (mut round, mut ready, mut running) = (Round::default(), ready.into_iter(), FuturesUnordered::new());
        loop {
            while running.len() < CONCURRENCY && round.outage.is_none() {
                let Some(lane) = ready.next().and_then(|lane| lanes.get(lane)) else {
                    break;
                };
                running.push(self.batch(lane));
            }
            let Some((lane, ended)) = running.next().await else {
                return round;
            };
            lanes.put(lane);
            round.add(ended);
        }
    }

    /// Moves delayed messages that are due, and finds the lanes that have something.
    async fn look(&self, lanes: &mut Lanes) -> Result<Vec<u16>, StoreError> {
        let started = Instant::now();
        let from = lanes.begin_look();
        let mut heads = self.records.outbox_heads(&from).await?;
        if heads.due {
            while self.records.move_due(MAX_DUE).await? == u64::from(MAX_DUE) {}
            heads = self.records.outbox_heads(&from).await?;
        }
        self.watch.set_oldest(heads.lanes.iter().map(|head| head.age).max());
        Ok(lanes.end_look(&heads, started.elapsed()))
    }

    /// Publishes the first messages of a lane.
    async fn batch(&self, mut lane: Lane) -> (Lane, Round) {
        let round = self.try_batch(&mut lane).await;
        let round = round.unwrap_or_else(|error| Round::outage(text(&error)));
        (lane, round)
    }

    async fn try_batch(&self, lane: &mut Lane) -> Result<Round, StoreError> {
        let skip = lane.skipped();
        let request = LaneRequest {
            lane: lane.number,
            from: lane.start,
            skip: &skip,
            max_messages: MAX_MESSAGES,
            max_bytes: MAX_BYTES,
        };
        let started = Instant::now();
        let Some(mut taken) = self.records.take_lane(request).await? else {
            return Ok(Round {
                taken: true,
                ..Round::default()
            });
        };
        lane.read(started.elapsed());
        let rows = taken.take_rows();
        let Some(last) = rows.last().map(|row| row.id) else {
            // Another relay was quicker, or what is left waits.
            lane.done(None, true);
            taken.finish(Vec::new(), Vec::new()).await?;
            return Ok(Round::default());
        };
        let messages = rows.iter().map(|row| row.message.clone()).collect();
        let Ok(answers) = timeout(PUBLISH_WAIT, self.broker.publish_all(messages)).await else {
            let wait = humantime::format_duration(PUBLISH_WAIT);
            return Ok(Round::outage(format!("the broker had no answer within {wait}")));
        };
        failpoint!("outbox_after_send");
        let (confirmed, refused, outage) = self.sort(lane, &rows, answers);
        let (published, parked) = (confirmed.len(), refused.len());
        taken.finish(confirmed, refused).await?;
        failpoint!("outbox_after_delete");
        self.watch.count(published);
        if outage.is_none() {
            lane.done(Some(last), is_exhausted(&rows));
        }
        Ok(Round {
            progress: published + parked > 0,
            taken: false,
            outage,
        })
    }

    /// Sorts a batch by the broker's answers: the messages that are confirmed, those that are refused, each with the reason, and why
    /// nothing more can be published.
    fn sort(&self, lane: &mut Lane, rows: &[OutboxRow], answers: Vec<Result<Published, BrokerError>>) -> Sorted {
        let (mut confirmed, mut refused, mut outage) = (Vec::new(), Vec::new(), None);
        for (OutboxRow { id, message }, answer) in rows.iter().zip(answers) {
            let error = match answer {
                Ok(_) => {
                    confirmed.push(*id);
                    continue;
                }
                Err(error) => error,
            };
            let (subject, why) = (&message.subject, text(&error));
            match error {
                BrokerError::Denied { .. } if lane.waited(subject) < GRANT_WAIT => lane.wait(subject, *id, &why),
                BrokerError::Refused { .. } | BrokerError::Denied { .. } => {
                    tracing::error!(
                        database = self.database,
                        subject,
                        error = why,
                        "the broker refuses a message; it is parked"
                    );
                    refused.push((*id, why));
                }
                BrokerError::NotNow { .. } => lane.wait(subject, *id, &why),
                _ => outage = outage.or(Some(why)),
            }
        }
        (confirmed, refused, outage)
    }
}

type Sorted = (Vec<i64>, Vec<(i64, String)>, Option<String>);

/// Whether nothing was left behind a batch when it was read.
fn is_exhausted(rows: &[OutboxRow]) -> bool {
    let bytes = |row: &OutboxRow| row.message.payload.as_ref().map_or(0, |payload| payload.len() as u64);
    // Headers count too, which are not measured again here.
    rows.len() < MAX_MESSAGES as usize && rows.iter().map(bytes).sum::<u64>() < MAX_BYTES / 2
}

impl Service for Relay {
    fn name(&self) -> String {
        format!("relay of {}", self.database)
    }

    async fn run(&self, stop: CancellationToken) {
        stop.run_until_cancelled(self.relay()).await;
    }
}
