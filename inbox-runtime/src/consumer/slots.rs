//! How many messages a consumer holds: two for each worker, and more while they are handled quickly.
//!
//! A pull costs the broker as much for one message as for many, so under load it waits until several slots are free. What is held
//! and not handled yet is leased, and another process can't have it: so beyond one message for each worker it is no more than what
//! is handled within [`LOOKAHEAD`].

use std::sync::Arc;

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Duration, Instant},
};

/// For how long the messages last that a consumer holds beside two for each worker.
const LOOKAHEAD: Duration = Duration::from_millis(20);
/// How many these are at most.
const MAX_EXTRA: u32 = 32;
/// How much the last measurement weighs against those before it.
const WEIGHT: f64 = 0.3;

/// The slots of one consumer. Only one task takes them.
pub(super) struct Slots {
    permits: Arc<Semaphore>,
    concurrency: u32,
    /// Messages a second, as measured while there were some.
    rate: f64,
    taken: Taken,
}

/// What was in use when slots were taken last.
struct Taken {
    at: Instant,
    in_use: u32,
}

impl Slots {
    pub(super) fn new(concurrency: u32) -> Self {
        let concurrency = concurrency.max(1);
        Self {
            permits: Arc::new(Semaphore::new(total(concurrency) as usize)),
            concurrency,
            rate: 0.0,
            taken: Taken::now(0),
        }
    }

    /// Waits until enough slots are free for a pull, and takes all that are.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it has taken none.
    pub(super) async fn take_free(&mut self) -> Vec<OwnedSemaphorePermit> {
        let extra = self.extra();
        let withheld = MAX_EXTRA - extra;
        // With half of what is beside the workers' own every worker has a message, and others wait.
        let batch = ((self.concurrency + extra) / 2).max(1);
        drop(self.permits.acquire_many(withheld + batch).await);
        self.measure();
        let free = self.free().saturating_sub(withheld);
        std::iter::repeat_with(|| self.permits.clone().try_acquire_owned().ok())
            .take(free as usize)
            .flatten()
            .collect()
    }

    /// So many messages were pulled: the time until they are handled tells how quick the handlers are.
    pub(super) fn pulled(&mut self, messages: usize) {
        if messages > 0 {
            self.taken = Taken::now(self.in_use());
        }
    }

    fn in_use(&self) -> u32 {
        total(self.concurrency) - self.free()
    }

    fn free(&self) -> u32 {
        u32::try_from(self.permits.available_permits()).unwrap_or(u32::MAX)
    }

    /// Slots beside two for each worker.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is between 0 and MAX_EXTRA"
    )]
    fn extra(&self) -> u32 {
        (self.rate * LOOKAHEAD.as_secs_f64())
            .round()
            .clamp(0.0, f64::from(MAX_EXTRA)) as u32
    }

    fn measure(&mut self) {
        let in_use = self.in_use();
        let handled = self.taken.in_use.saturating_sub(in_use);
        let seconds = self.taken.at.elapsed().as_secs_f64();
        if handled > 0 && seconds > 0.0 {
            self.rate += (f64::from(handled) / seconds - self.rate) * WEIGHT;
            self.taken = Taken::now(in_use);
        }
    }
}

impl Taken {
    fn now(in_use: u32) -> Self {
        let at = Instant::now();
        Self { at, in_use }
    }
}

const fn total(concurrency: u32) -> u32 {
    concurrency * 2 + MAX_EXTRA
}

#[cfg(test)]
mod tests {
    use futures_util::poll;

    use super::*;

    async fn advance(time: Duration) {
        tokio::time::advance(time).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_pull_takes_all_free_slots_and_waits_for_a_batch_of_them() {
        let mut slots = Slots::new(4);
        let mut taken = slots.take_free().await;
        assert_eq!(taken.len(), 8, "nothing is in flight");
        slots.pulled(8);
        {
            let mut next = std::pin::pin!(slots.take_free());
            assert!(poll!(&mut next).is_pending(), "no slot is free");
            taken.truncate(7);
            assert!(poll!(&mut next).is_pending(), "one is no batch");
        }
        advance(Duration::from_secs(1)).await;
        taken.truncate(6);
        assert_eq!(slots.take_free().await.len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn quick_handlers_have_more_slots_and_slow_ones_lose_them() {
        let mut slots = Slots::new(1);
        for _ in 0..50 {
            let taken = slots.take_free().await;
            slots.pulled(taken.len());
            advance(Duration::from_millis(1) * u32::try_from(taken.len()).expect("few")).await;
        }
        // A thousand a second.
        assert_eq!(slots.take_free().await.len(), 2 + 20);
        for _ in 0..50 {
            let taken = slots.take_free().await;
            slots.pulled(taken.len());
            advance(Duration::from_secs(1) * u32::try_from(taken.len()).expect("few")).await;
        }
        assert_eq!(slots.take_free().await.len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_without_messages_is_not_slow() {
        let mut slots = Slots::new(1);
        let taken = slots.take_free().await;
        slots.pulled(1);
        drop(taken);
        advance(Duration::from_secs(60)).await;
        assert_eq!(slots.take_free().await.len(), 2);
        assert!(slots.rate < 1.0, "a message a minute is not quick: {}", slots.rate);
    }
}
