//! The outboxes of a program's databases: what relays and watches them.

use std::sync::Arc;

use super::{
    databases::{Database, distinct},
    erased::Shared,
};
use crate::{
    config::OutboxLimits,
    outbox_mode::OutboxMode,
    outbox_watch::OutboxWatch,
    services::{OutboxMonitor, Relay, Services},
    warnings::Warnings,
};

/// The outbox of one database.
pub(super) struct Outbox<'a> {
    pub(super) database: &'a Database,
    pub(super) watch: Arc<OutboxWatch>,
}

/// The outbox of each database.
pub(super) fn outboxes<'a>(databases: &'a [Database], limits: OutboxLimits, warnings: &Warnings) -> Vec<Outbox<'a>> {
    let outbox = |database: &'a Database| Outbox {
        database,
        watch: OutboxWatch::new(database.label.clone(), limits, warnings.clone()),
    };
    distinct(databases).map(outbox).collect()
}

/// Adds what relays and watches the outboxes. Returns the relays, for an inbox that is driven message by message.
pub(super) fn relays(
    mode: OutboxMode,
    outboxes: &[Outbox<'_>],
    shared: &Shared,
    services: &mut Services,
) -> Vec<Arc<Relay>> {
    let mut relays = Vec::new();
    if mode == OutboxMode::Off {
        return relays;
    }
    for Outbox { database, watch } in outboxes {
        let (label, records) = (&database.label, &database.records);
        let monitor = OutboxMonitor::new(label.clone(), records.clone(), watch.clone(), mode.relays());
        services.add(monitor, &shared.warnings);
        if mode.relays() {
            let broker = shared.broker.clone();
            let relay = Arc::new(Relay::new(label.clone(), records.clone(), broker, watch.clone()));
            services.add(relay.clone(), &shared.warnings);
            relays.push(relay);
        }
    }
    relays
}
