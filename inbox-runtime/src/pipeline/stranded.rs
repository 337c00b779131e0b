//! Dead letters that are to be replayed by a handler that no running program has, as after it was renamed.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    error_chain::text,
    store::{Records, Stranded},
};

/// How long a dead letter may wait for a replay before somebody must be told. A running program takes one within five seconds.
const WAIT: Duration = Duration::from_secs(30);
/// How often each database is looked at.
const INTERVAL: Duration = Duration::from_secs(5);

/// What an inbox knows of them. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct StrandedReplays(Arc<Mutex<Known>>);

#[derive(Default)]
struct Known {
    /// Groups and names of the handlers that run here.
    running: BTreeSet<(String, String)>,
    /// By the name of the database.
    found: BTreeMap<&'static str, Found>,
}

struct Found {
    looked: Instant,
    stranded: Vec<Stranded>,
}

impl StrandedReplays {
    /// A handler runs here: what waits for it is not stranded, but waits for its turn.
    pub(crate) fn runs(&self, group: &str, handler: &str) {
        self.lock().running.insert((group.to_owned(), handler.to_owned()));
    }

    /// Looks for them, if it is time.
    pub(super) async fn look(&self, database: &'static str, records: &dyn Records) {
        {
            let mut known = self.lock();
            let found = known.found.get(database);
            if found.is_some_and(|found| found.looked.elapsed() < INTERVAL) {
                return;
            }
            let stranded = found.map(|found| found.stranded.clone()).unwrap_or_default();
            let looked = Instant::now();
            known.found.insert(database, Found { looked, stranded });
        }
        let stranded = match records.stranded_replays(WAIT).await {
            Ok(stranded) => stranded,
            Err(error) => {
                tracing::debug!(error = %text(&error), "it can't be seen now whether dead letters wait for a replay");
                return;
            }
        };
        let mut known = self.lock();
        let running = &known.running;
        let stranded: Vec<_> = stranded
            .into_iter()
            .filter(|one| !running.contains(&(one.group.clone(), one.handler.clone())))
            .collect();
        if let Some(found) = known.found.get_mut(database) {
            let is_news = |one: &&Stranded| {
                let same = |known: &Stranded| known.group == one.group && known.handler == one.handler;
                !found.stranded.iter().any(same)
            };
            for one in stranded.iter().filter(is_news) {
                tracing::warn!("{}", sentence(one));
            }
            found.stranded = stranded;
        }
    }

    /// What is to be said about them.
    pub(crate) fn texts(&self) -> Vec<String> {
        let known = self.lock();
        let all = known.found.values().flat_map(|found| &found.stranded);
        let texts: BTreeSet<_> = all.map(sentence).collect();
        texts.into_iter().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn sentence(stranded: &Stranded) -> String {
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
