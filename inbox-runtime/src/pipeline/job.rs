//! A delivery on its way through the pipeline.

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::Span;

use crate::{
    broker::DynLease,
    delivery::Delivery,
    store::{AttemptKey, ReplayToken},
};

/// A delivery on its way through the pipeline, with its lease.
pub(crate) struct Job {
    pub(crate) delivery: Delivery,
    pub(crate) lease: DynLease,
    /// Set if it is a dead letter, whose lease is kept in the database of its handler.
    pub(super) replay: Option<Replay>,
    pub(super) attempt: AttemptRecord,
    /// See [`Self::begin`].
    begun: watch::Sender<bool>,
    /// Its span, which the acknowledgement is logged in too.
    pub(super) span: Span,
}

/// The dead letter that is replayed.
pub(crate) struct Replay {
    /// Of the message as it was when it was dead-lettered.
    pub(crate) key: AttemptKey,
    pub(crate) token: ReplayToken,
}

/// What the database has on record of the attempt that is made now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum AttemptRecord {
    #[default]
    Nothing,
    /// That it has begun, after so many counted attempts. It is counted if it fails.
    Begun { before: u32 },
    /// It was counted in advance: so many attempts with this one.
    Counted { attempts: u32 },
}

impl AttemptRecord {
    /// How many attempts there are with this one, if anything is on record.
    pub(super) const fn attempts(self) -> Option<u32> {
        match self {
            Self::Nothing => None,
            Self::Begun { before } => Some(before.saturating_add(1)),
            Self::Counted { attempts } => Some(attempts),
        }
    }

    pub(super) const fn is_counted(self) -> bool {
        matches!(self, Self::Counted { .. })
    }
}

impl Job {
    pub(crate) fn new(delivery: Delivery, lease: DynLease) -> Self {
        Self {
            delivery,
            lease,
            replay: None,
            attempt: AttemptRecord::Nothing,
            begun: watch::Sender::new(false),
            span: Span::none(),
        }
    }

    /// A dead letter that is replayed.
    pub(crate) fn replay(delivery: Delivery, lease: DynLease, replay: Replay) -> Self {
        Self {
            replay: Some(replay),
            ..Self::new(delivery, lease)
        }
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.replay.is_some()
    }

    /// A drain must wait for it from now on: the handler runs, or the message was acknowledged so that it may, or an attempt
    /// is being written that would stay on record.
    pub(super) fn begin(&self) {
        self.begun.send_replace(true);
    }

    /// A drain needn't wait for it.
    pub(super) fn pause(&self) {
        self.begun.send_replace(false);
    }

    /// Returns when a drain begins, or is under way, while it needn't wait for this job.
    pub(crate) fn drained_before_begin(&self, drain: CancellationToken) -> impl Future<Output = ()> + use<> {
        let mut begun = self.begun.subscribe();
        async move {
            drain.cancelled().await;
            // The job, and with it the sender, outlives this.
            let _ = begun.wait_for(|begun| !begun).await;
        }
    }
}
