//! What a running inbox does beside handling messages: services, each a task that is started with the consumers and is told to
//! stop when the drain begins.
//!
//! What must go on through the drain is no service: keeping leases alive and sampling gauges (`consumer`), serving health
//! (`http`).

mod batch;
mod outbox_monitor;
mod relay;
mod replayer;
mod service;
mod subjects;
mod upkeep;

pub(crate) use outbox_monitor::OutboxMonitor;
pub(crate) use relay::Relay;
pub(crate) use replayer::Replayer;
pub(crate) use service::Services;
pub(crate) use upkeep::Upkeep;
