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
//! that is one transaction, and `begin` comes before it; `failure` decides about everything that goes wrong; `worker` runs it for many messages at a time.

use std::{
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
    broker::{BrokerError, DynLease},
    contain::contain,
    delivery::Delivery,
    error_chain::text,
    extract::{DeliveryContext, Meta, States},
    failpoint::{failpoint, tell_test},
    handler::{AckStrategy, HandlerMeta},
    identity,
    invocation::Bound,
    outcome::{HandlerError, Outcome},
    registry::Decode,
    store::{AttemptKey, Claim, Fingerprint, NextTx, Records, ReplayToken, Session, Store, StoreError},
    tally::Tally,
    telemetry::{self, Instruments, OpenTransactions, Timer},
};

mod alone;
mod attempt;
mod begin;
mod failure;
mod in_flight;
mod next;
mod owed;
mod pace;
mod queue;
mod refusal;
pub(crate) mod replay;
mod reused;
mod running;
mod settling;
mod stranded;
mod strikes;
mod trouble;
pub(crate) mod worker;

pub(crate) use alone::Alone;
use alone::AtWork;
use attempt::Attempt;
pub(crate) use in_flight::InFlight;
pub(crate) use owed::Owed;
pub(crate) use pace::Pace;
use refusal::Refusal;
pub(crate) use running::Running;
pub(crate) use stranded::StrandedReplays;
pub(crate) use strikes::Strikes;
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
    pub(crate) open: OpenTransactions,
    pub(crate) pace: Pace,
    pub(crate) owed: Owed,
    pub(crate) strikes: Strikes,
    pub(crate) running: Running,
    /// The inbox has stopped: handlers that are still running are dropped, or left behind.
    pub(crate) stopped: CancellationToken,
    pub(crate) alone: Alone,
    pub(crate) stranded: StrandedReplays,
    pub(crate) instruments: Instruments,
}

/// What a running pipeline shows of itself.
#[derive(Clone)]
pub(crate) struct Vitals {
    pub(crate) trouble: Trouble,
    pub(crate) in_flight: InFlight,
    pub(crate) open: OpenTransactions,
    pub(crate) pace: Pace,
    pub(crate) stranded: StrandedReplays,
}

/// Takes the next message in hand, if there is one, so that the database can go on to it from this one's commit.
pub(crate) trait Upcoming: Send {
    fn take(&mut self) -> NextTx<'_>;
}

pub(crate) type Next<'a> = &'a mut dyn Upcoming;

/// Nothing comes next.
pub(crate) struct NoNext;

impl Upcoming for NoNext {
    fn take(&mut self) -> NextTx<'_> {
        NextTx::None
    }
}

/// A message that is decoded before its turn, because its transaction begins in the commit of the one before it.
pub(crate) struct Decoded<S: Store> {
    id: String,
    fingerprint: Fingerprint,
    bound: Bound<S>,
    /// It is at work from then on, so that nobody waits with its transaction open.
    at_work: AtWork,
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
    replay: Option<Replayed>,
    /// The attempts so far, this one included, if it was counted before it was made.
    counted: Option<u32>,
    /// The attempts before this one, if it was noted before it was made, and isn't counted yet.
    noted: Option<u32>,
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
            replay: None,
            counted: None,
            noted: None,
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

/// The dead letter that a job replays.
pub(crate) struct Replayed {
    /// Whose letter it is: that of the message as it was when it was dead-lettered.
    key: AttemptKey,
    token: ReplayToken,
}

/// What became of a delivery, and how it is to be settled.
pub(crate) struct Done {
    pub(crate) outcome: Outcome,
    settle: Settle,
}

impl Done {
    /// It won't come again.
    pub(super) fn is_acknowledged(&self) -> bool {
        matches!(self.settle, Settle::Ack | Settle::Acked)
    }

    /// Whoever has the message waits for the trouble to pass, and tries it again.
    pub(super) fn waits(&self) -> bool {
        self.outcome == Outcome::Deferred && matches!(self.settle, Settle::Back(_))
    }
}

enum Settle {
    /// Acknowledge it.
    Ack,
    /// Acknowledge it once more: it was done before, or may have been, and only its acknowledgement was lost.
    AckAgain,
    /// Nothing is left to do: it was acknowledged before the handler ran, or isn't ours any more.
    Acked,
    /// Give it back, to come again after this time.
    Back(Duration),
    /// The same, though nothing is decided about it: others are to have their turn.
    Aside(Duration),
}

impl<S: Store> Pipeline<S> {
    /// Decodes a message before its turn. `None` if its transaction won't begin with a claim, or if anything is wrong with
    /// it, which its turn will show.
    pub(crate) fn decode_ahead(&self, job: &Job) -> Option<Decoded<S>> {
        let delivery = &job.delivery;
        if self.meta.ack != AckStrategy::ExactlyOnce || delivery.redelivered {
            return None;
        }
        let at_work = self.alone.try_join(self.meta.timeout)?;
        let id = self.identify(delivery).ok()?;
        let bound = self.decode(delivery, &id).ok()?.ok()?;
        let fingerprint = Fingerprint::of(&delivery.subject, delivery.payload.as_deref());
        Some(Decoded {
            id,
            fingerprint,
            bound,
            at_work,
        })
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
        let (id, ready, at_work) = match decoded {
            Some(decoded) => (Ok(decoded.id), Some(decoded.bound), Some(decoded.at_work)),
            None => (self.identify(&job.delivery), None, None),
        };
        let (span, timer) = (
            telemetry::span(&self.meta, &job.delivery, id.as_deref().ok()),
            Timer::start(),
        );
        job.span = span.clone();
        // Until the handler's future is dropped.
        let _running = self.running.begin(id.as_deref().ok().unwrap_or(&job.delivery.position));
        job.begun.send_replace(false);
        let (id, refused) = match id {
            Ok(id) => (Some(id), None),
            Err(refusal) => (None, Some(refusal)),
        };
        let key = self.key(job, id.as_deref());
        let mut case = Case {
            pipeline: self,
            job,
            key,
            id,
        };
        let done = case
            .run(session, refused, ready, at_work, next)
            .instrument(span.clone())
            .await;
        span.record("outcome", done.outcome.as_str());
        self.instruments.handled(&timer);
        done
    }

    /// The message's id.
    fn identify(&self, delivery: &Delivery) -> Result<String, Refusal> {
        let found = identity::of(delivery, self.meta.id).map_err(Refusal::from)?;
        self.warn_positional(found.positional);
        Ok(found.id)
    }

    /// Makes the arguments. The outer error is a panic of an extractor, which counts as an attempt.
    fn decode(&self, delivery: &Delivery, id: &str) -> Result<Result<Bound<S>, Refusal>, HandlerError> {
        let meta = Meta::new(self.meta.group, id.to_owned(), delivery);
        let context = DeliveryContext::new(delivery, &meta, &self.states);
        contain(|| (self.decode)(&context))
            .map(|decoded| decoded.map_err(Refusal::from))
            .map_err(|panic| HandlerError::from(format!("an argument panicked: {panic}")))
    }

    /// Whose attempts those on that message are.
    fn key(&self, job: &Job, id: Option<&str>) -> AttemptKey {
        if let Some(replay) = &job.replay {
            return replay.key.clone();
        }
        let delivery = &job.delivery;
        AttemptKey {
            group: self.meta.group.to_owned(),
            handler: self.meta.name.to_owned(),
            position: delivery.position.clone(),
            message_id: id.map(str::to_owned),
            fingerprint: Fingerprint::of(&delivery.subject, delivery.payload.as_deref()),
        }
    }

    /// Says once that copies which the producer makes can't be told from new messages.
    fn warn_positional(&self, positional: bool) {
        static WARNED: AtomicBool = AtomicBool::new(false);
        if positional && self.meta.id == crate::handler::IdSource::Auto && !WARNED.swap(true, Ordering::Relaxed) {
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
            Settle::Ack => self.acknowledge(job, false).instrument(job.span.clone()).await,
            Settle::AckAgain => self.acknowledge(job, true).instrument(job.span.clone()).await,
            Settle::Acked => {}
            Settle::Back(delay) | Settle::Aside(delay) => {
                self.give_back(job, delay).instrument(job.span.clone()).await;
                self.pace.gave_back(delay);
            }
        }
        self.pace.step();
        self.count(outcome);
        tell_test!(crate::failpoint::Told::settled(&self.meta, &job.delivery, outcome));
        outcome
    }

    async fn acknowledge(&self, job: &Job, again: bool) {
        failpoint!("before_ack");
        let acked = if again {
            job.lease.ack_again().await
        } else {
            job.lease.ack().await
        };
        let failure = acked.err().map(|error| text(&error));
        self.count_ack(failure.as_deref());
        if let Some(error) = failure {
            tracing::warn!(
                handler = self.meta.name,
                error,
                "the acknowledgement failed; the message comes again and is recognised"
            );
        }
        failpoint!("after_ack");
    }

    /// The inbox ends before the broker has confirmed the acknowledgement of a delivery that came to this outcome.
    pub(crate) fn not_confirmed(&self, outcome: Outcome) {
        self.count(outcome);
        self.tally.count_unconfirmed(1);
        tracing::warn!(
            handler = self.meta.name,
            "an acknowledgement was not confirmed by the broker before the end; its message may come again, and is then found to \
             be a duplicate where it is claimed"
        );
    }

    /// Counts what became of a delivery.
    fn count(&self, outcome: Outcome) {
        self.tally.count(outcome);
        self.instruments.outcome(outcome);
    }

    fn count_ack(&self, failure: Option<&str>) {
        self.tally.count_ack(failure.is_none());
        self.pace.acked(failure);
        if failure.is_some() {
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
        refused: Option<Refusal>,
        mut ready: Option<Bound<S>>,
        at_work: Option<AtWork>,
        next: Next<'_>,
    ) -> Done {
        let _at_work = match at_work {
            Some(at_work) => at_work,
            None => match self.begin(session).await {
                Ok(at_work) => at_work,
                Err(done) => return done,
            },
        };
        if let Some(refusal) = refused {
            return self.reject(refusal).await;
        }
        for round in 1.. {
            let id = self.id.as_deref().unwrap_or_default();
            let decoded = match ready.take() {
                Some(bound) => Ok(Ok(bound)),
                None => self.pipeline.decode(&self.job.delivery, id),
            };
            let bound = match decoded {
                Ok(Ok(bound)) => bound,
                Ok(Err(refusal)) => return self.reject(refusal).await,
                // Nothing is acknowledged yet, so the message needn't be lost; there is no second attempt either.
                Err(panic) if self.meta().ack == AckStrategy::AtMostOnce => {
                    return self.reject(Refusal::new(panic.report())).await;
                }
                Err(panic) => return self.undecodable(panic).await,
            };
            if round == 1 {
                failpoint!("after_decode");
                if !self.job.lease.is_ours() {
                    return self.passed_on(session).await;
                }
                if let Err(done) = self.ack_first(session).await {
                    return done;
                }
            }
            match self.attempt(session, bound, next).await {
                Attempt::Duplicate(kept) if self.is_another(kept) => {}
                Attempt::Again(_) | Attempt::Stale(_)
                    if round < ROUNDS && self.meta().ack != AckStrategy::AtMostOnce => {}
                attempt => return self.conclude(attempt).await,
            }
        }
        unreachable!("the last round concludes")
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
        if self.job.replay.is_some()
            && let Some(live) = session.take()
        {
            // The acknowledgement of a dead letter is written to the database, where the session may hold the only turn.
            live.release().await;
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
                let error = text(&error);
                self.pipeline.count_ack(Some(&error));
                // Others may need what it holds while the broker is waited for.
                if let Some(live) = session.take() {
                    live.release().await;
                }
                return Err(self.blocked(&error).await);
            }
        }
        self.pipeline.count_ack(None);
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
