//! Finds the dead letters of one database that are to be replayed: one look for all handlers, which wakes the consumers that
//! have any. They lease the letters themselves, as they have free slots. A letter that no running program has the handler for, as
//! after it was renamed, becomes a warning.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::service::Service;
use crate::{
    consumer::Runner,
    dead_letters::REQUESTED,
    error_chain::text,
    handler::HandlerMeta,
    store::{Records, Stranded},
    warnings::Warnings,
};

/// How often the database is asked for replays that another process has requested.
const INTERVAL: Duration = Duration::from_secs(5);
/// How long a requested replay may wait before a warning. A running program with its handler takes it within five seconds.
const WAIT: Duration = Duration::from_secs(30);

/// Group and name of each handler of an inbox, whose replays are not stranded.
pub(crate) type LocalHandlers = Arc<BTreeSet<(String, String)>>;

/// Finds the dead letters of one database that are to be replayed.
pub(crate) struct Replayer {
    /// The database's name and where it was given.
    database: String,
    records: Arc<dyn Records>,
    /// The handlers whose dead letters are in that database.
    consumers: Vec<(Arc<HandlerMeta>, Arc<dyn Runner>)>,
    local: LocalHandlers,
    warnings: Warnings,
    stranded: Mutex<Vec<Stranded>>,
}

impl Replayer {
    pub(crate) fn new(
        database: String,
        records: Arc<dyn Records>,
        consumers: Vec<(Arc<HandlerMeta>, Arc<dyn Runner>)>,
        local: LocalHandlers,
        warnings: Warnings,
    ) -> Self {
        Self {
            database,
            records,
            consumers,
            local,
            warnings,
            stranded: Mutex::default(),
        }
    }

    /// Looks for due replays again and again. Never returns.
    async fn look(&self) {
        loop {
            // From before the look on: a request that comes meanwhile is found by the next one.
            let requested = REQUESTED.notified();
            self.wake_consumers().await;
            self.find_stranded().await;
            let _ = tokio::time::timeout(INTERVAL, requested).await;
        }
    }

    /// Wakes the consumers of the groups with due letters. A letter that its group's consumers can't lease is found again.
    async fn wake_consumers(&self) {
        match self.records.groups_with_due_replays().await {
            Ok(groups) => {
                let due = |meta: &HandlerMeta| groups.iter().any(|group| group == meta.group);
                for (_, runner) in self.consumers.iter().filter(|(meta, _)| due(meta)) {
                    runner.wake_for_replays();
                }
            }
            Err(error) => tracing::debug!(error = %text(&error), "no dead letters can be replayed now"),
        }
    }

    /// Finds requested replays that no running program has the handler for, and logs a warning for what is new.
    async fn find_stranded(&self) {
        let mut stranded = match self.records.stranded_replays(WAIT).await {
            Ok(stranded) => stranded,
            Err(error) => {
                tracing::debug!(error = %text(&error), "the database could not be asked for stranded replays");
                return;
            }
        };
        stranded.retain(|one| !self.local.contains(&(one.group.clone(), one.handler.clone())));
        let mut known = self.stranded.lock();
        let is_new = |one: &&Stranded| {
            let same = |known: &Stranded| known.group == one.group && known.handler == one.handler;
            !known.iter().any(same)
        };
        for one in stranded.iter().filter(is_new) {
            tracing::warn!("{}", warning(one));
        }
        let key = format!("stranded replays of {}", self.database);
        self.warnings.set(&key, stranded.iter().map(warning).collect());
        *known = stranded;
    }
}

impl Service for Replayer {
    fn name(&self) -> String {
        format!("replayer of {}", self.database)
    }

    async fn run(&self, stop: CancellationToken) {
        stop.run_until_cancelled(self.look()).await;
    }
}

fn warning(stranded: &Stranded) -> String {
    let Stranded {
        group,
        handler,
        letters,
    } = stranded;
    format!(
        "{letters} dead letter(s) of the group `{group}` wait for a replay by the handler `{handler}`, which no running program \
         has: start a program that has it, or if it was renamed, discard them and publish the messages again"
    )
}
