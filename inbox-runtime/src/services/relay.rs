//! Publishes what waits in the outbox of one database: takes the lanes that have something, hands their messages to the broker, and
//! deletes what it has confirmed. There is no leader: every program may relay, a lane is one relay's for the time of one batch.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio_util::sync::CancellationToken;

use super::{
    batch::{Ended, Limits, Publisher, Round},
    service::Service,
    subjects::Subjects,
};
use crate::{
    backoff::Backoff,
    broker::DynBroker,
    error_chain::text,
    outbox_wake,
    outbox_watch::OutboxWatch,
    store::{Records, StoreError},
};

/// How many lanes one relay works on at a time, each on a connection of its own.
const CONCURRENCY: usize = 2;
/// The pause between two looks at an outbox that was empty, from the first to the longest.
const POLL: (Duration, Duration) = (Duration::from_millis(25), Duration::from_millis(600));
/// The first pause before a look at lanes that other relays have.
const TAKEN: Duration = Duration::from_millis(5);
/// How many delayed messages are moved at a time.
const MAX_DUE: u32 = 1000;
/// The wait after the database or the broker could not be used.
const OUTAGE: Backoff = Backoff {
    first: Duration::from_millis(100),
    max: Duration::from_secs(30),
};

/// Publishes what waits in the outbox of one database.
pub(crate) struct Relay(Publisher);

/// How long the pauses between two looks are.
struct Pauses {
    /// After a look that has found nothing.
    empty: Duration,
    /// After one that has found only what other relays have.
    taken: Duration,
    /// How many looks in a row have met an outage.
    failures: u32,
}

impl Default for Pauses {
    fn default() -> Self {
        Self {
            empty: POLL.0,
            taken: TAKEN,
            failures: 0,
        }
    }
}

impl Pauses {
    fn after_outage(&mut self) -> Duration {
        self.failures += 1;
        OUTAGE.pause(self.failures)
    }

    /// The pause after a look that has met no outage.
    fn after(&mut self, round: &Round) -> Duration {
        self.failures = 0;
        if round.progress {
            *self = Self::default();
            return Duration::ZERO;
        }
        let pause = if round.taken { &mut self.taken } else { &mut self.empty };
        let now = *pause;
        *pause = (now * 2).min(POLL.1);
        now
    }
}

impl Relay {
    pub(crate) fn new(database: String, records: Arc<dyn Records>, broker: DynBroker, watch: Arc<OutboxWatch>) -> Self {
        Self(Publisher {
            database,
            records,
            broker,
            watch,
        })
    }

    /// Publishes everything that can be published now, and returns: for an inbox that is driven message by message.
    pub(crate) async fn flush(&self) {
        let mut subjects = Subjects::default();
        while self.round(&mut subjects).await.progress {}
    }

    /// Relays until it is told to stop; what is under way then is finished.
    async fn relay(&self, stop: &CancellationToken) {
        let mut subjects = Subjects::default();
        let mut trial = Trying::default();
        let mut pauses = Pauses::default();
        while !stop.is_cancelled() {
            // From before the look on: what is committed meanwhile is found by the next one.
            let woken = outbox_wake::woken();
            trial.begin(self, &mut subjects);
            let round = trial.beside(self.round(&mut subjects)).await;
            trial.absorb(&mut subjects);
            self.0.watch.set_relayed(round.outage.clone(), subjects.waiting());
            let pause = self.pause(&round, &subjects, &mut pauses);
            tokio::select! {
                () = stop.cancelled() => {}
                // Nothing that is committed meanwhile ends an outage.
                () = woken, if round.outage.is_none() => pauses.empty = POLL.0,
                () = trial.ends() => {}
                () = tokio::time::sleep(pause) => {}
            }
            trial.absorb(&mut subjects);
        }
    }

    /// How long to wait for the next look.
    fn pause(&self, round: &Round, subjects: &Subjects, pauses: &mut Pauses) -> Duration {
        let database = &self.0.database;
        if let Some(why) = &round.outage {
            if pauses.failures == 0 {
                tracing::warn!(database, error = why, "the outbox can't be relayed now; trying again");
            }
            return pauses.after_outage();
        }
        if pauses.failures > 0 {
            tracing::info!(database, "the outbox is relayed again");
        }
        let pause = pauses.after(round);
        subjects.next_trial().map_or(pause, |trial| pause.min(trial))
    }

    /// Looks for lanes that have something, and publishes a batch of each.
    async fn round(&self, subjects: &mut Subjects) -> Round {
        let ready = match self.look().await {
            Ok(ready) => ready,
            Err(error) => return Round::outage(text(&error)),
        };
        let (mut round, mut ready, mut running) = (Round::default(), ready.into_iter(), FuturesUnordered::new());
        loop {
            while running.len() < CONCURRENCY && round.outage.is_none() {
                let Some(lane) = ready.next() else { break };
                running.push(self.0.publish(lane, Limits::of(subjects)));
            }
            let Some(ended) = running.next().await else {
                return round;
            };
            round.add(ended.learn(subjects));
        }
    }

    /// Moves delayed messages that are due, and finds the lanes that have something.
    async fn look(&self) -> Result<Vec<u16>, StoreError> {
        let records = &self.0.records;
        let mut heads = records.outbox_heads().await?;
        if heads.due {
            while records.move_due(MAX_DUE).await? == u64::from(MAX_DUE) {}
            heads = records.outbox_heads().await?;
        }
        self.0.watch.set_oldest(heads.lanes.iter().map(|head| head.age).max());
        Ok(heads.lanes.iter().map(|head| head.lane).collect())
    }
}

/// The subject that is tried again, if one is. The broker may take long to say that it still doesn't take it, for which nothing else
/// waits.
#[derive(Default)]
struct Trying<'a> {
    running: Option<(String, BoxFuture<'a, Ended>)>,
    ended: Option<(String, Ended)>,
}

impl<'a> Trying<'a> {
    /// Begins to try the next subject whose turn it is.
    fn begin(&mut self, relay: &'a Relay, subjects: &mut Subjects) {
        if self.running.is_some() {
            return;
        }
        if let Some((subject, lane)) = subjects.begin_trial() {
            let limits = Limits::only(&subject, subjects);
            self.running = Some((subject, relay.0.publish(lane, limits).boxed()));
        }
    }

    /// Returns when a trial has ended.
    async fn ends(&mut self) {
        match &mut self.running {
            Some((subject, batch)) => {
                self.ended = Some((subject.clone(), batch.await));
                self.running = None;
            }
            None => std::future::pending().await,
        }
    }

    /// Goes on trying while something else is done.
    async fn beside<T>(&mut self, other: impl Future<Output = T>) -> T {
        let mut other = std::pin::pin!(other);
        loop {
            tokio::select! {
                biased;
                done = &mut other => return done,
                () = self.ends() => {}
            }
        }
    }

    /// Learns from a trial that has ended.
    fn absorb(&mut self, subjects: &mut Subjects) {
        if let Some((subject, ended)) = self.ended.take() {
            ended.settle_trial(&subject, subjects);
        }
    }
}

impl Service for Relay {
    fn name(&self) -> String {
        format!("relay of {}", self.0.database)
    }

    async fn run(&self, stop: CancellationToken) {
        self.relay(&stop).await;
    }
}
