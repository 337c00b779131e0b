//! The transactional inbox: handlers whose effects exist exactly once, however often the broker delivers.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod bound;
mod broker;
mod delivery;
mod extract;
mod names;
mod outcome;
mod registry;
mod store;

pub use bytes::Bytes;
#[cfg(feature = "macros")]
pub use inbox_macros::inbox_handler;
pub use sqlx;

#[cfg(feature = "embedded")]
pub use broker::embedded::{self, Embedded};
pub use broker::{Broker, BrokerError, Lease, Published, Source, Subscription};
pub use delivery::{Delivery, Headers, Message};
pub use extract::{
    DeliveryContext, FromDelivery, Header, HeaderName, Json, Meta, MetaBuilder, Rejection, State, States,
};
pub use outcome::{Handled, HandlerError, IntoOutcome, Outcome};
pub use registry::{AckStrategy, Backoff, HandlerMeta, IdSource, StartPosition};
pub use store::InboxConnection;

/// Not public API: what the expansion of `#[inbox_handler]` names, and nothing else names.
#[doc(hidden)]
pub mod __private {
    pub use core::{concat, module_path, option::Option, result::Result};
    pub use std::boxed::Box;

    pub use inventory::submit;

    pub use crate::{
        bound::{Bound, outcome, run},
        extract::{Arg, DeliveryContext, Rejection, arg},
        registry::{AckStrategy, HandlerMeta, IdSource, Registration, StartPosition},
        store::{StoreOf, detached::Detached},
    };
}
