//! A message that may have killed a process runs alone in the next one: it then meets no other message, and which one it was
//! is known.
//!
//! ```text
//!  ordinary messages   join: at once, unless a suspect waits or runs
//!  a suspect           alone: when no other message is at work; not within its patience, it is given back
//! ```
//!
//! Nobody waits here with a transaction open, and nobody waits for a handler that blocks its thread past its timeout.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

/// How long a suspect waits at first until no other message is at work. It doubles while that isn't enough.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long after its timeout a handler that still runs is no longer waited for.
const GRACE: Duration = Duration::from_secs(5);
/// Later than any deadline.
const FAR: Duration = Duration::from_secs(86_400 * 365);

/// The gate of an inbox. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Alone(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug)]
struct State {
    next: u64,
    /// The messages at work, each with the time until which it is waited for.
    at_work: BTreeMap<u64, Instant>,
    /// The suspect among them.
    suspect: Option<u64>,
    /// How many suspects wait.
    waiting: usize,
    patience: Duration,
    /// The longest timeout of a handler, beyond which there is nothing to wait for.
    longest: Duration,
}

impl Default for State {
    fn default() -> Self {
        Self {
            next: 0,
            at_work: BTreeMap::new(),
            suspect: None,
            waiting: 0,
            patience: PATIENCE,
            longest: PATIENCE,
        }
    }
}

impl Alone {
    /// A handler with that timeout runs here.
    pub(crate) fn know(&self, timeout: Duration) {
        let mut state = self.lock();
        state.longest = state.longest.max(timeout.saturating_add(GRACE).min(FAR));
    }

    /// A message is at work, for at most `timeout`, unless a suspect waits or runs.
    pub(super) fn try_join(&self, timeout: Duration) -> Option<AtWork> {
        let mut state = self.lock();
        let free = state.waiting == 0 && state.suspect_until().is_none();
        free.then(|| self.at_work(&mut state, timeout))
    }

    /// The same, as soon as no suspect waits or runs.
    ///
    /// # Cancel safety
    ///
    /// Nothing is held before it returns.
    pub(super) async fn join(&self, timeout: Duration) -> AtWork {
        loop {
            let mut changed = std::pin::pin!(self.0.changed.notified());
            changed.as_mut().enable();
            if let Some(at_work) = self.try_join(timeout) {
                return at_work;
            }
            let until = self.lock().suspect_until().unwrap_or_else(|| Instant::now() + FAR);
            let _ = timeout_at(until, changed).await;
        }
    }

    /// A suspect is at work, when nobody else is. `None` if that wasn't so within its patience.
    ///
    /// # Cancel safety
    ///
    /// Dropped while it waits, the suspect no longer holds anybody back.
    pub(super) async fn alone(&self, timeout: Duration) -> Option<AtWork> {
        let _waiting = Waiting::new(self);
        let mut deadline = None;
        loop {
            let mut changed = std::pin::pin!(self.0.changed.notified());
            changed.as_mut().enable();
            let until = {
                let mut state = self.lock();
                let Some(busy) = state.busy_until() else {
                    let at_work = self.at_work(&mut state, timeout);
                    state.suspect = Some(at_work.number);
                    state.patience = PATIENCE;
                    return Some(at_work);
                };
                // For another suspect it waits without losing patience: that one has a bound.
                if state.suspect_until().is_some() {
                    deadline = None;
                    busy
                } else {
                    let deadline = *deadline.get_or_insert_with(|| Instant::now() + state.patience);
                    if deadline <= Instant::now() {
                        state.patience = (state.patience * 2).min(state.longest);
                        return None;
                    }
                    busy.min(deadline)
                }
            };
            let _ = timeout_at(until, changed).await;
        }
    }

    fn at_work(&self, state: &mut State, timeout: Duration) -> AtWork {
        let number = state.next;
        state.next += 1;
        let until = Instant::now() + timeout.saturating_add(GRACE).min(FAR);
        state.at_work.insert(number, until);
        AtWork {
            alone: self.clone(),
            number,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Until when the suspect at work is waited for, if there is one.
    fn suspect_until(&self) -> Option<Instant> {
        let until = *self.at_work.get(&self.suspect?)?;
        (until > Instant::now()).then_some(until)
    }

    /// Until when somebody at work is waited for, if anybody is.
    fn busy_until(&self) -> Option<Instant> {
        let now = Instant::now();
        self.at_work.values().copied().filter(|until| *until > now).min()
    }
}

/// A suspect waits, and holds back who comes later, until this is dropped.
struct Waiting<'a>(&'a Alone);

impl<'a> Waiting<'a> {
    fn new(alone: &'a Alone) -> Self {
        alone.lock().waiting += 1;
        Self(alone)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.lock().waiting -= 1;
        self.0.0.changed.notify_waiters();
    }
}

/// A message is at work until this is dropped.
#[derive(Debug)]
pub(crate) struct AtWork {
    alone: Alone,
    number: u64,
}

impl Drop for AtWork {
    fn drop(&mut self) {
        let wake = {
            let mut state = self.alone.lock();
            state.at_work.remove(&self.number);
            let was_suspect = state.suspect.take_if(|suspect| *suspect == self.number).is_some();
            was_suspect || state.waiting > 0
        };
        if wake {
            self.alone.0.changed.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::poll;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    fn gate() -> Alone {
        let gate = Alone::default();
        gate.know(TIMEOUT);
        gate
    }

    #[tokio::test(start_paused = true)]
    async fn g26_a_suspect_waits_for_the_others_and_holds_back_who_comes_later() {
        let gate = gate();
        let (one, two) = (gate.join(TIMEOUT).await, gate.join(TIMEOUT).await);
        let mut suspect = std::pin::pin!(gate.alone(TIMEOUT));
        assert!(poll!(&mut suspect).is_pending());
        assert!(gate.try_join(TIMEOUT).is_none(), "it waits");
        drop(one);
        assert!(poll!(&mut suspect).is_pending());
        drop(two);
        let suspect = suspect.await.expect("alone");
        let mut later = std::pin::pin!(gate.join(TIMEOUT));
        assert!(poll!(&mut later).is_pending(), "it runs");
        drop(suspect);
        later.await;
    }

    #[tokio::test(start_paused = true)]
    async fn g26_suspects_run_one_after_the_other_without_losing_patience() {
        let gate = gate();
        let first = gate.alone(TIMEOUT).await.expect("alone");
        let mut second = std::pin::pin!(gate.alone(TIMEOUT));
        assert!(poll!(&mut second).is_pending());
        tokio::time::advance(PATIENCE * 10).await;
        assert!(poll!(&mut second).is_pending());
        drop(first);
        second.await.expect("alone");
    }

    #[tokio::test(start_paused = true)]
    async fn g26_a_suspect_gives_up_and_is_more_patient_the_next_time() {
        let gate = gate();
        let busy = gate.join(TIMEOUT).await;
        let mut waited = Vec::new();
        for _ in 0..3 {
            let start = Instant::now();
            assert!(gate.alone(TIMEOUT).await.is_none());
            waited.push(start.elapsed().as_secs());
            drop(gate.try_join(TIMEOUT).expect("nobody is held back any more"));
        }
        assert_eq!(waited, [1, 2, 4]);
        drop(busy);
        drop(gate.alone(TIMEOUT).await.expect("alone"));
        assert_eq!(gate.lock().patience, PATIENCE);
    }

    #[tokio::test(start_paused = true)]
    async fn g26_who_hangs_past_its_timeout_is_not_waited_for() {
        let gate = gate();
        let _hung = gate.join(TIMEOUT).await;
        tokio::time::advance(TIMEOUT + GRACE).await;
        let hung_suspect = gate.alone(TIMEOUT).await.expect("alone");
        let start = Instant::now();
        gate.join(TIMEOUT).await;
        assert_eq!(start.elapsed(), TIMEOUT + GRACE);
        gate.alone(TIMEOUT).await.expect("alone");
        drop(hung_suspect);
        gate.try_join(TIMEOUT).expect("nobody waits");
    }

    #[tokio::test(start_paused = true)]
    async fn g26_a_suspect_that_is_dropped_while_it_waits_holds_nobody_back() {
        let gate = gate();
        let _busy = gate.join(TIMEOUT).await;
        {
            let mut suspect = std::pin::pin!(gate.alone(TIMEOUT));
            assert!(poll!(&mut suspect).is_pending());
        }
        gate.try_join(TIMEOUT).expect("nobody waits");
    }
}
