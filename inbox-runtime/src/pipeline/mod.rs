//! Takes one delivery from its decoding to its ack.
//!
//! ```text
//! broker ─▶ decode ─▶ begin ─▶ claim ─▶ handle ─▶ seal ─▶ commit ─▶ ack
//!             │                  │         │        │        │
//!          reject         duplicate│locked error  broken   error
//!             ▼               ack  │ later   ▼        ▼
//!        dead letter               ▼      rollback; nothing was acknowledged, so the message comes again
//! ```
//!
//! [`process`](Pipeline::process) walks this path once and says how the message is to be settled; `attempt` is the part of it
//! that is one transaction; `failure` decides about everything that goes wrong; `worker` runs it for many messages at a time.

use std::{
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span};

use crate::{
    bound::Bound,
    broker::{BrokerError, DynLease},
    delivery::Delivery,
    error_text::text_of,
    extract::{DeliveryContext, Meta, Rejection, States},
    failpoint::{failpoint, tell_test},
    identity,
    outcome::{HandlerError, Outcome},
    registry::{AckStrategy, Decode, HandlerMeta},
    store::{AttemptKey, Attempts, Claim, Fingerprint, Following, Records, Session, Store, StoreError},
    tally::Tally,
    telemetry::{self, Instruments, Timer},
};

mod attempt;
mod failure;
mod in_flight;
mod next;
mod open;
mod owed;
mod pace;
mod queue;
pub(crate) mod replay;
mod settling;
mod trouble;
pub(crate) mod worker;

use attempt::Attempt;
pub(crate) use in_flight::InFlight;
pub(crate) use open::Open;
pub(crate) use owed::Owed;
pub(crate) use pace::Pace;
pub(crate) use trouble::Trouble;

/// How many fresh transactions a message gets at once when the database asks for another (serialization, deadlock).
const ROUNDS: u32 = 3;

/// One handler with everything that it needs to run.
pub(crate) struct Pipeline<S: Store> {
    pub(crate) meta: HandlerMeta,
    pub(crate) decode: Decode<S>,
    pub(crate) store: S,
    pub(crate) records: Arc<dyn Records>,
    pub(crate) states: Arc<States>,
    pub(crate) tally: Arc<Tally>,
    pub(crate) trouble: Trouble,
    pub(crate) in_flight: InFlight,
    pub(crate) open: Open,
    pub(crate) pace: Pace,
    pub(crate) owed: Owed,
    pub(crate) instruments: Instruments,
}

/// What a running pipeline shows of itself.
#[derive(Clone)]
pub(crate) struct Vitals {
    pub(crate) trouble: Trouble,
    pub(crate) in_flight: InFlight,
    pub(crate) open: Open,
    pub(crate) pace: Pace,
}

/// Takes the next message in hand, if there is one, so that the database can go on to it from this one's commit.
pub(crate) trait Upcoming: Send {
    fn take(&mut self) -> Following<'_>;
}

pub(crate) type Next<'a> = &'a mut dyn Upcoming;

/// Nothing comes next.
pub(crate) struct NoNext;

impl Upcoming for NoNext {
    fn take(&mut self) -> Following<'_> {
        Following::Nothing
    }
}

/// A message that is decoded before its turn, because its transaction begins in the commit of the one before it.
pub(crate) struct Decoded<S: Store> {
    id: String,
    fingerprint: Fingerprint,
    bound: Bound<S>,
}

impl<S: Store> Decoded<S> {
    /// Its claim.
    pub(crate) fn claim(&self, group: &'static str) -> Claim<'_> {
        Claim {
            group,
            message_id: &self.id,
            fingerprint: self.fingerprint,
        }
    }
}

/// A delivery on its way.
pub(crate) struct Job {
    pub(crate) delivery: Delivery,
    pub(crate) lease: DynLease,
    /// It is a dead letter, whose lease is kept in the database of its handler.
    replayed: bool,
    /// The attempts so far, this one included, if it was counted before it was made.
    counted: Option<u32>,
    /// The handler runs, or the message was acknowledged so that it may, or an attempt is being counted, which would be
    /// on record and forgotten here: a drain waits for it.
    begun: watch::Sender<bool>,
    /// Its span, which is there for the acknowledgement too.
    span: Span,
}

impl Job {
    pub(crate) fn new(delivery: Delivery, lease: DynLease) -> Self {
        Self {
            delivery,
            lease,
            replayed: false,
            counted: None,
            begun: watch::Sender::new(false),
            span: Span::none(),
        }
    }

    fn begin(&self) {
        self.begun.send_replace(true);
    }

    /// Tells, beside [`process`](Pipeline::process), when the program is to stop before the handler has begun.
    pub(crate) fn stopped_before_it_began(&self, drain: CancellationToken) -> impl Future<Output = ()> + use<> {
        let mut begun = self.begun.subscribe();
        async move {
            drain.cancelled().await;
            // The job outlives this, and with it the sender.
            let _ = begun.wait_for(|begun| !begun).await;
        }
    }
}

/// What became of a delivery, and how it is to be settled.
pub(crate) struct Done {
    pub(crate) outcome: Outcome,
    settle: Settle,
}

impl Done {
    /// It won't come again.
    pub(super) fn is_acknowledged(&self) -> bool {
        !matches!(self.settle, Settle::Back(_))
    }
}

enum Settle {
    /// Acknowledge it.
    Ack,
    /// Nothing is left to do: it was acknowledged before the handler ran, or isn't ours any more.
    Acked,
    /// Give it back, to come again after this time.
    Back(Duration),
}

impl<S: Store> Pipeline<S> {
    /// Decodes a message before its turn. `None` if its transaction won't begin with a claim, or if anything is wrong with
    /// it, which its turn will show.
    pub(crate) fn decode_ahead(&self, job: &Job) -> Option<Decoded<S>> {
        let delivery = &job.delivery;
        if self.meta.ack != AckStrategy::ExactlyOnce || delivery.redelivered {
            return None;
        }
        let id = self.identify(delivery).ok()?;
        let bound = self.decode(delivery, &id).ok()?.ok()?;
        let fingerprint = Fingerprint::of(&delivery.subject, delivery.payload.as_deref());
        Some(Decoded { id, fingerprint, bound })
    }

    /// Handles one delivery, which may have been decoded ahead. `next` takes another one in hand if there is one, so that the database can go from this
    /// transaction to that one without a pause. This one is not settled yet, except that at_most_once acknowledges before it begins.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it rolls back or has committed; the message was not acknowledged (at_most_once aside).
    pub(crate) async fn process(
        &self,
        session: &mut Option<S::Session>,
        job: &mut Job,
        decoded: Option<Decoded<S>>,
        next: Next<'_>,
    ) -> Done {
        let (id, ready) = match decoded {
            Some(decoded) => (Ok(decoded.id), Some(decoded.bound)),
            None => (self.identify(&job.delivery), None),
        };
        let (span, timer) = (
            telemetry::span(&self.meta, &job.delivery, id.as_deref().ok()),
            Timer::start(),
        );
        job.span = span.clone();
        let key = self.key(&job.delivery);
        job.begun.send_replace(false);
        let (id, refused) = match id {
            Ok(id) => (Some(id), None),
            Err(rejection) => (None, Some(rejection)),
        };
        let mut case = Case {
            pipeline: self,
            job,
            key,
            id,
        };
        let done = case.run(session, refused, ready, next).instrument(span.clone()).await;
        span.record("outcome", done.outcome.as_str());
        self.instruments.handled(&timer);
        done
    }

    /// The message's id.
    fn identify(&self, delivery: &Delivery) -> Result<String, Rejection> {
        let found = identity::of(delivery, self.meta.id)?;
        self.warn_positional(found.positional);
        Ok(found.id)
    }

    /// Makes the arguments. The outer error is a panic of an extractor, which counts as an attempt.
    fn decode(&self, delivery: &Delivery, id: &str) -> Result<Result<Bound<S>, Rejection>, HandlerError> {
        let meta = Meta::new(self.meta.group, id.to_owned(), delivery);
        let context = DeliveryContext::new(delivery, &meta, &self.states);
        std::panic::catch_unwind(AssertUnwindSafe(|| (self.decode)(&context)))
            .map_err(|panic| HandlerError::from(format!("an argument panicked: {}", panic_text(&*panic))))
    }

    /// Whose attempts those on that delivery are.
    fn key(&self, delivery: &Delivery) -> AttemptKey {
        AttemptKey {
            group: self.meta.group.to_owned(),
            handler: self.meta.name.to_owned(),
            position: delivery.position.clone(),
        }
    }

    /// Says once that copies which the producer makes can't be told from new messages.
    fn warn_positional(&self, positional: bool) {
        static WARNED: AtomicBool = AtomicBool::new(false);
        if positional && self.meta.id == crate::registry::IdSource::Auto && !WARNED.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                group = self.meta.group,
                subject = self.meta.subject,
                "a message has no id header, so its position in the broker is its id: redeliveries are recognised, but a \
                 message that its producer sends twice is not; let the producer set `message_id`, or write \
                 `id = \"position\"` if that is meant"
            );
        }
    }

    /// Settles a delivery as [`process`](Self::process) said.
    pub(crate) async fn settle(&self, job: &Job, done: Done) -> Outcome {
        let outcome = done.outcome;
        match done.settle {
            Settle::Ack => self.acknowledge(job).instrument(job.span.clone()).await,
            Settle::Acked => {}
            Settle::Back(delay) => {
                self.give_back(job, delay).instrument(job.span.clone()).await;
                self.pace.gave_back(delay);
            }
        }
        self.pace.step();
        self.count(outcome);
        tell_test!(crate::testing::Told::settled(&self.meta, &job.delivery, outcome));
        outcome
    }

    async fn acknowledge(&self, job: &Job) {
        failpoint!("before_ack");
        let acked = job.lease.ack().await;
        self.count_ack(acked.is_ok());
        if let Err(error) = acked {
            tracing::warn!(
                handler = self.meta.name,
                error = %text(&error),
                "the acknowledgement failed; the message comes again and is recognised"
            );
        }
        failpoint!("after_ack");
    }

    /// Counts what became of a delivery.
    fn count(&self, outcome: Outcome) {
        self.tally.count(outcome);
        self.instruments.outcome(outcome);
    }

    fn count_ack(&self, success: bool) {
        self.tally.count_ack(success);
        if !success {
            self.instruments.ack_failed();
        }
    }

    /// Gives a delivery back because the program stops, which is no failure of the handler: nothing is counted.
    pub(crate) async fn release(&self, job: &mut Job, wait: Duration) {
        let _ = tokio::time::timeout(wait, self.give_back(job, Duration::ZERO)).await;
        let _ = tokio::time::timeout(wait, self.take_back_attempt(job)).await;
    }

    /// Gives a delivery back to come again after `delay`; if that fails it comes again when its lease runs out.
    pub(crate) async fn give_back(&self, job: &Job, delay: Duration) {
        if let Err(error) = job.lease.nak(delay).await {
            tracing::debug!(handler = self.meta.name, error = %text(&error), "the message could not be given back");
        }
    }
}

/// One delivery in the hands of one pipeline.
struct Case<'a, S: Store> {
    pipeline: &'a Pipeline<S>,
    job: &'a mut Job,
    key: AttemptKey,
    id: Option<String>,
}

impl<S: Store> Case<'_, S> {
    fn meta(&self) -> &HandlerMeta {
        &self.pipeline.meta
    }

    fn claims(&self) -> bool {
        self.meta().ack == AckStrategy::ExactlyOnce
    }

    async fn run(
        &mut self,
        session: &mut Option<S::Session>,
        refused: Option<Rejection>,
        mut ready: Option<Bound<S>>,
        next: Next<'_>,
    ) -> Done {
        // A message that kills the process must come to an end too: its attempt is on record before it is made. (Under
        // at_most_once there is no second one.)
        if self.job.delivery.redelivered
            && self.meta().ack != AckStrategy::AtMostOnce
            && let Some(done) = self.count_attempt().await
        {
            return done;
        }
        if let Some(rejection) = refused {
            return self.reject(&rejection).await;
        }
        for round in 1.. {
            let id = self.id.as_deref().unwrap_or_default();
            let decoded = match ready.take() {
                Some(bound) => Ok(Ok(bound)),
                None => self.pipeline.decode(&self.job.delivery, id),
            };
            let bound = match decoded {
                Ok(Ok(bound)) => bound,
                Ok(Err(rejection)) => return self.reject(&rejection).await,
                // Nothing is acknowledged yet, so the message needn't be lost; there is no second attempt either.
                Err(panic) if self.meta().ack == AckStrategy::AtMostOnce => {
                    return self.reject(&Rejection::new(panic.report())).await;
                }
                Err(panic) => return self.undecodable(panic).await,
            };
            if round == 1 {
                failpoint!("after_decode");
                if let Err(done) = self.ack_first(session).await {
                    return done;
                }
            }
            match self.attempt(session, bound, next).await {
                Attempt::Again(_) | Attempt::Stale(_)
                    if round < ROUNDS && self.meta().ack != AckStrategy::AtMostOnce => {}
                attempt => return self.conclude(attempt).await,
            }
        }
        unreachable!("the last round concludes")
    }

    /// Counts the attempt that is about to be made, or says why none is.
    async fn count_attempt(&mut self) -> Option<Done> {
        if self.job.counted.is_none() {
            self.job.counted = self.pipeline.owed.take(&self.key);
        }
        if self.job.counted.is_some() {
            return None;
        }
        failpoint!("before_attempt");
        self.job.begin();
        let begun = self
            .pipeline
            .records
            .begin_attempt(&self.key, self.meta().max_attempts)
            .await;
        failpoint!("after_attempt");
        if let Ok(Attempts::Begun(attempts)) = begun {
            self.job.counted = Some(attempts);
        }
        self.job.begun.send_replace(false);
        match begun {
            Ok(Attempts::Begun(_)) => None,
            Ok(Attempts::Buried) => Some(self.acked(Outcome::DeadLettered)),
            Ok(Attempts::Exhausted(attempts, error)) => Some(self.exhausted(attempts, error).await),
            Err(error) => Some(self.conclude(error.into()).await),
        }
    }

    /// Under at_most_once: shows that the database lives, or an outage would discard the backlog, then acknowledges.
    async fn ack_first(&mut self, session: &mut Option<S::Session>) -> Result<(), Done> {
        if self.meta().ack != AckStrategy::AtMostOnce {
            return Ok(());
        }
        match self.probed(session.take()).await {
            Ok(live) => *session = Some(live),
            Err(error @ StoreError::Locked(_)) => return Err(self.locked(&text(&error)).await),
            Err(error) => return Err(self.deferred(&text(&error)).await),
        }
        self.job.begin();
        failpoint!("before_ack");
        match self.job.lease.ack_confirmed().await {
            Ok(()) => {}
            Err(error @ BrokerError::LeaseLost { .. }) => {
                tracing::info!(error = %text(&error), "the message is somebody else's by now");
                return Err(Done {
                    outcome: Outcome::Locked,
                    settle: Settle::Acked,
                });
            }
            Err(error) => {
                self.pipeline.count_ack(false);
                return Err(self.deferred(&text(&error)).await);
            }
        }
        self.pipeline.count_ack(true);
        failpoint!("after_ack");
        Ok(())
    }

    /// The worker's own session, or a new one: never a second connection beside it.
    async fn live(&self, session: Option<S::Session>) -> Result<S::Session, StoreError> {
        match session {
            Some(live) => Ok(live),
            None => self.pipeline.store.session().await,
        }
    }

    /// A session that could begin a transaction now.
    async fn probed(&self, session: Option<S::Session>) -> Result<S::Session, StoreError> {
        let mut live = self.live(session).await?;
        live.probe().await?;
        Ok(live)
    }
}

/// An error with everything beneath it, in one line.
pub(crate) fn text(error: &(dyn std::error::Error + 'static)) -> String {
    let mut line = text_of(error);
    let mut next = error.source();
    while let Some(error) = next {
        let text = text_of(error);
        if !line.ends_with(&text) {
            line.push_str(": ");
            line.push_str(&text);
        }
        next = error.source();
    }
    line
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(no text)")
}
