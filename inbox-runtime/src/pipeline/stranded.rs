//! Finds requested replays that no running program has the handler for, as after it was renamed.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::{
    error_chain::text,
    store::{Records, Stranded},
};

/// How long a requested replay may wait before a warning. A running program with its handler takes it within five seconds.
const WAIT: Duration = Duration::from_secs(30);
/// How often each database is asked.
const INTERVAL: Duration = Duration::from_secs(5);

/// The stranded replays that an inbox knows of. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct StrandedReplays(Arc<Mutex<StrandedState>>);

#[derive(Default)]
struct StrandedState {
    /// Group and name of each handler that runs here.
    local: BTreeSet<(String, String)>,
    /// By the name of the database.
    answers: BTreeMap<&'static str, Answer>,
}

struct Answer {
    asked_at: Instant,
    stranded: Vec<Stranded>,
}

impl StrandedReplays {
    /// Adds a handler that runs here, whose replays are therefore not stranded.
    pub(crate) fn add_handler(&self, group: &str, handler: &str) {
        self.lock().local.insert((group.to_owned(), handler.to_owned()));
    }

    /// Asks the database, if the last answer is old enough, and logs a warning for what is new.
    pub(crate) async fn refresh(&self, database: &'static str, records: &dyn Records) {
        {
            let mut known = self.lock();
            let last = known.answers.get(database);
            if last.is_some_and(|last| last.asked_at.elapsed() < INTERVAL) {
                return;
            }
            let stranded = last.map(|last| last.stranded.clone()).unwrap_or_default();
            let asked_at = Instant::now();
            known.answers.insert(database, Answer { asked_at, stranded });
        }
        let stranded = match records.stranded_replays(WAIT).await {
            Ok(stranded) => stranded,
            Err(error) => {
                tracing::debug!(error = %text(&error), "the database could not be asked for stranded replays");
                return;
            }
        };
        let mut known = self.lock();
        let local = &known.local;
        let stranded: Vec<_> = stranded
            .into_iter()
            .filter(|one| !local.contains(&(one.group.clone(), one.handler.clone())))
            .collect();
        if let Some(answer) = known.answers.get_mut(database) {
            let is_new = |one: &&Stranded| {
                let same = |known: &Stranded| known.group == one.group && known.handler == one.handler;
                !answer.stranded.iter().any(same)
            };
            for one in stranded.iter().filter(is_new) {
                tracing::warn!("{}", warning(one));
            }
            answer.stranded = stranded;
        }
    }

    /// A warning for each, for health.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let known = self.lock();
        let all = known.answers.values().flat_map(|answer| &answer.stranded);
        let warnings: BTreeSet<_> = all.map(warning).collect();
        warnings.into_iter().collect()
    }

    fn lock(&self) -> MutexGuard<'_, StrandedState> {
        self.0.lock()
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
