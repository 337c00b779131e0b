//! A message that may have killed a process runs alone in the next one: if it kills that one too, no other message is
//! affected, and it is known which message did it.
//!
//! ```text
//!  ordinary messages   enter: at once, unless a suspect waits or runs
//!  a suspect           enter_alone: once no other message is being handled; it gives up after its patience, and is nakked
//! ```
//!
//! Nobody waits here with an open transaction, and nobody waits for a handler that blocks its thread past its timeout.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

/// How long a suspect waits at first until no other message is being handled. It doubles each time that isn't enough.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long after its timeout a handler that still runs is no longer waited for.
const GRACE: Duration = Duration::from_secs(5);
/// Later than any deadline.
const FAR: Duration = Duration::from_secs(86_400 * 365);

/// The gate that each message of an inbox passes before it is handled. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct SoloGate(Arc<Gate>);

#[derive(Debug, Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Notify,
}

#[derive(Debug)]
struct GateState {
    next_number: u64,
    /// The messages that are being handled, each with the time until which it is waited for.
    inside: BTreeMap<u64, Instant>,
    /// The suspect among them.
    suspect: Option<u64>,
    /// How many suspects wait.
    waiting: usize,
    patience: Duration,
    /// The longest patience: no handler takes longer.
    longest: Duration,
}

impl Default for GateState {
    fn default() -> Self {
        Self {
            next_number: 0,
            inside: BTreeMap::new(),
            suspect: None,
            waiting: 0,
            patience: PATIENCE,
            longest: PATIENCE,
        }
    }
}

impl SoloGate {
    /// Adds a handler with that timeout, for which a suspect may have to wait.
    pub(crate) fn register_timeout(&self, timeout: Duration) {
        let mut state = self.lock();
        state.longest = state.longest.max(timeout.saturating_add(GRACE).min(FAR));
    }

    /// Lets a message in for at most `timeout`, unless a suspect waits or runs.
    pub(super) fn try_enter(&self, timeout: Duration) -> Option<GatePass> {
        let mut state = self.lock();
        let is_free = state.waiting == 0 && state.suspect_until().is_none();
        is_free.then(|| self.let_in(&mut state, timeout))
    }

    /// Lets a message in for at most `timeout`, once no suspect waits or runs.
    ///
    /// # Cancel safety
    ///
    /// Nothing is held before it returns.
    pub(super) async fn enter(&self, timeout: Duration) -> GatePass {
        loop {
            let mut changed = std::pin::pin!(self.0.changed.notified());
            changed.as_mut().enable();
            if let Some(pass) = self.try_enter(timeout) {
                return pass;
            }
            let until = self.lock().suspect_until().unwrap_or_else(|| Instant::now() + FAR);
            let _ = timeout_at(until, changed).await;
        }
    }

    /// Lets a suspect in once no other message is inside. `None` if that takes longer than its patience.
    ///
    /// # Cancel safety
    ///
    /// Dropped while it waits, the suspect no longer holds anybody back.
    pub(super) async fn enter_alone(&self, timeout: Duration) -> Option<GatePass> {
        let _waiting = WaitingSuspect::new(self);
        let mut deadline = None;
        loop {
            let mut changed = std::pin::pin!(self.0.changed.notified());
            changed.as_mut().enable();
            let until = {
                let mut state = self.lock();
                let Some(busy) = state.busy_until() else {
                    let pass = self.let_in(&mut state, timeout);
                    state.suspect = Some(pass.number);
                    state.patience = PATIENCE;
                    return Some(pass);
                };
                // Waiting for another suspect costs no patience: that one's time is bounded.
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

    fn let_in(&self, state: &mut GateState, timeout: Duration) -> GatePass {
        let number = state.next_number;
        state.next_number += 1;
        let until = Instant::now() + timeout.saturating_add(GRACE).min(FAR);
        state.inside.insert(number, until);
        GatePass {
            gate: self.clone(),
            number,
        }
    }

    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.0.state.lock()
    }
}

impl GateState {
    /// Until when the suspect inside is waited for, if there is one.
    fn suspect_until(&self) -> Option<Instant> {
        let until = *self.inside.get(&self.suspect?)?;
        (until > Instant::now()).then_some(until)
    }

    /// Until when the next of the messages inside is waited for, if there are any.
    fn busy_until(&self) -> Option<Instant> {
        let now = Instant::now();
        self.inside.values().copied().filter(|until| *until > now).min()
    }
}

/// A suspect that waits, and holds back later messages, until this is dropped.
struct WaitingSuspect<'a>(&'a SoloGate);

impl<'a> WaitingSuspect<'a> {
    fn new(gate: &'a SoloGate) -> Self {
        gate.lock().waiting += 1;
        Self(gate)
    }
}

impl Drop for WaitingSuspect<'_> {
    fn drop(&mut self) {
        self.0.lock().waiting -= 1;
        self.0.0.changed.notify_waiters();
    }
}

/// A message is inside until this is dropped.
#[derive(Debug)]
pub(crate) struct GatePass {
    gate: SoloGate,
    number: u64,
}

impl Drop for GatePass {
    fn drop(&mut self) {
        let wake = {
            let mut state = self.gate.lock();
            state.inside.remove(&self.number);
            let was_suspect = state.suspect.take_if(|suspect| *suspect == self.number).is_some();
            was_suspect || state.waiting > 0
        };
        if wake {
            self.gate.0.changed.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::poll;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    fn gate() -> SoloGate {
        let gate = SoloGate::default();
        gate.register_timeout(TIMEOUT);
        gate
    }

    #[tokio::test(start_paused = true)]
    async fn g26_a_suspect_waits_for_the_others_and_holds_back_later_ones() {
        let gate = gate();
        let (one, two) = (gate.enter(TIMEOUT).await, gate.enter(TIMEOUT).await);
        let mut suspect = std::pin::pin!(gate.enter_alone(TIMEOUT));
        assert!(poll!(&mut suspect).is_pending());
        assert!(gate.try_enter(TIMEOUT).is_none(), "it waits");
        drop(one);
        assert!(poll!(&mut suspect).is_pending());
        drop(two);
        let suspect = suspect.await.expect("alone");
        let mut later = std::pin::pin!(gate.enter(TIMEOUT));
        assert!(poll!(&mut later).is_pending(), "it runs");
        drop(suspect);
        later.await;
    }

    #[tokio::test(start_paused = true)]
    async fn g26_suspects_run_one_after_the_other_without_losing_patience() {
        let gate = gate();
        let first = gate.enter_alone(TIMEOUT).await.expect("alone");
        let mut second = std::pin::pin!(gate.enter_alone(TIMEOUT));
        assert!(poll!(&mut second).is_pending());
        tokio::time::advance(PATIENCE * 10).await;
        assert!(poll!(&mut second).is_pending());
        drop(first);
        second.await.expect("alone");
    }

    #[tokio::test(start_paused = true)]
    async fn g26_a_suspect_gives_up_and_is_more_patient_the_next_time() {
        let gate = gate();
        let busy = gate.enter(TIMEOUT).await;
        let mut waited = Vec::new();
        for _ in 0..3 {
            let start = Instant::now();
            assert!(gate.enter_alone(TIMEOUT).await.is_none());
            waited.push(start.elapsed().as_secs());
            drop(gate.try_enter(TIMEOUT).expect("nobody is held back any more"));
        }
        assert_eq!(waited, [1, 2, 4]);
        drop(busy);
        drop(gate.enter_alone(TIMEOUT).await.expect("alone"));
        assert_eq!(gate.lock().patience, PATIENCE);
    }

    #[tokio::test(start_paused = true)]
    async fn g26_a_handler_that_hangs_past_its_timeout_is_not_waited_for() {
        let gate = gate();
        let _hung = gate.enter(TIMEOUT).await;
        tokio::time::advance(TIMEOUT + GRACE).await;
        let hung_suspect = gate.enter_alone(TIMEOUT).await.expect("alone");
        let start = Instant::now();
        gate.enter(TIMEOUT).await;
        assert_eq!(start.elapsed(), TIMEOUT + GRACE);
        gate.enter_alone(TIMEOUT).await.expect("alone");
        drop(hung_suspect);
        gate.try_enter(TIMEOUT).expect("nobody waits");
    }

    #[tokio::test(start_paused = true)]
    async fn g26_a_suspect_that_is_dropped_while_it_waits_holds_nobody_back() {
        let gate = gate();
        let _busy = gate.enter(TIMEOUT).await;
        {
            let mut suspect = std::pin::pin!(gate.enter_alone(TIMEOUT));
            assert!(poll!(&mut suspect).is_pending());
        }
        gate.try_enter(TIMEOUT).expect("nobody waits");
    }
}
