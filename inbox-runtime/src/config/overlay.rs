//! The settings that have one value for the whole program. Each place that can set them is a layer, and the layers lie one over the other: code,
//! environment, file; below them is what holds where nothing is set.

use std::{net::SocketAddr, time::Duration};

use super::value::{Given, Secret};
use crate::{
    outbox_mode::OutboxMode,
    store::{MigrateMode, StoreSettings},
};

/// How long a delivery stays leased without a sign of life, unless something else is set.
pub(crate) const ACK_WAIT: Duration = Duration::from_secs(30);
const STALL_AFTER: Duration = Duration::from_mins(1);
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(25);
const OUTBOX_MAX_AGE: Duration = Duration::from_hours(1);
const OUTBOX_MAX_PENDING: u64 = 1_000_000;

/// When an outbox is degraded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutboxLimits {
    /// How old its oldest message may be.
    pub(crate) max_age: Duration,
    /// How many messages may wait before handlers that publish stop to pull.
    pub(crate) max_pending: u64,
}

macro_rules! layer {
    ($($field:ident: $type:ty,)*) => {
        /// What one place sets; `None` is unset.
        #[derive(Clone, Debug, Default)]
        pub(crate) struct Layer {
            $(pub(crate) $field: Option<$type>,)*
        }

        impl Layer {
            /// Lies over another layer, which shows where this one sets nothing.
            pub(crate) fn over(self, below: Self) -> Self {
                Self {
                    $($field: self.$field.or(below.$field),)*
                }
            }
        }
    };
}

layer! {
    broker_url: Given<Secret>,
    groups: Vec<String>,
    subject_prefix: Given<String>,
    migrate: MigrateMode,
    ack_wait: Duration,
    lock_wait: Duration,
    commit_timeout: Duration,
    stall_after: Duration,
    pool_size: u32,
    transaction_pooler: bool,
    shutdown_timeout: Duration,
    outbox: OutboxMode,
    outbox_max_age: Duration,
    outbox_max_pending: u64,
    http_addr: Given<SocketAddr>,
}

/// What holds.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) broker_url: Option<Given<Secret>>,
    /// `None` are all groups.
    pub(crate) groups: Option<Vec<String>>,
    pub(crate) subject_prefix: Option<Given<String>>,
    pub(crate) migrate: MigrateMode,
    pub(crate) ack_wait: Duration,
    pub(crate) stall_after: Duration,
    pub(crate) shutdown_timeout: Duration,
    pub(crate) outbox: OutboxMode,
    pub(crate) outbox_limits: OutboxLimits,
    #[cfg_attr(not(feature = "http"), expect(dead_code, reason = "refused without the feature"))]
    pub(crate) http_addr: Option<Given<SocketAddr>>,
    pub(crate) store: StoreSettings,
}

impl Layer {
    /// What holds if this is all that is set.
    pub(crate) fn resolve(self) -> Settings {
        let store = StoreSettings::default();
        Settings {
            broker_url: self.broker_url,
            groups: self.groups,
            subject_prefix: self.subject_prefix,
            migrate: self.migrate.unwrap_or_default(),
            ack_wait: self.ack_wait.unwrap_or(ACK_WAIT),
            stall_after: self.stall_after.unwrap_or(STALL_AFTER),
            shutdown_timeout: self.shutdown_timeout.unwrap_or(SHUTDOWN_TIMEOUT),
            outbox: self.outbox.unwrap_or_default(),
            outbox_limits: OutboxLimits {
                max_age: self.outbox_max_age.unwrap_or(OUTBOX_MAX_AGE),
                max_pending: self.outbox_max_pending.unwrap_or(OUTBOX_MAX_PENDING),
            },
            http_addr: self.http_addr,
            store: StoreSettings {
                lock_wait: self.lock_wait.unwrap_or(store.lock_wait),
                commit_timeout: self.commit_timeout.unwrap_or(store.commit_timeout),
                pool_size: self.pool_size.unwrap_or(store.pool_size),
                transaction_pooler: self.transaction_pooler.unwrap_or(store.transaction_pooler),
            },
        }
    }
}
