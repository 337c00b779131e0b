//! Pulling: asking the server for messages, waiting for them, and keeping those that a cancelled pull leaves behind.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use futures_util::future::join_all;
use tokio::{
    runtime::Handle,
    time::{Instant, timeout_at},
};

use super::{
    ack::NatsLease,
    arrive::Arrived,
    config::{ANSWER_TIMEOUT, PULL_EXPIRES, SHORT_WAIT},
    durable::{Durable, Known},
    link::Link,
    open::Open,
};
use crate::{
    broker::{BrokerError, Lease, Source, SourceStatus, Subscription},
    delivery::Delivery,
};

/// Where the deliveries of one subscription to a JetStream stream come from.
///
/// Dropped, it gives back what it had received and not handed over.
#[derive(Debug)]
pub struct NatsSource {
    pub(super) link: Arc<Link>,
    pub(super) wish: Subscription,
    /// The durable's name.
    pub(super) name: String,
    pub(super) status: SourceStatus,
    pub(super) open: Option<Open>,
    /// The durable that was lost, until it is known what came after it.
    pub(super) previous: Option<Arc<Durable>>,
    pub(super) known: Option<Known>,
    pub(super) ack_wait: Duration,
    /// How often it could not be opened in a row, and when it is tried again.
    pub(super) failures: u32,
    pub(super) next_try: Instant,
    /// What keeps it from being opened.
    pub(super) why: Option<String>,
    /// What was received and not handed over.
    pub(super) ready: VecDeque<(Delivery, NatsLease)>,
    /// How many delete markers were acknowledged without a handler.
    pub(super) skipped: u64,
    pub(super) closed: bool,
}

impl NatsSource {
    pub(super) fn new(link: Arc<Link>, wish: Subscription, name: String) -> Self {
        Self {
            ack_wait: wish.ack_wait,
            link,
            wish,
            name,
            status: SourceStatus::default(),
            open: None,
            previous: None,
            known: None,
            failures: 0,
            next_try: Instant::now(),
            why: None,
            ready: VecDeque::new(),
            skipped: 0,
            closed: false,
        }
    }

    /// Keeps the leases of what waits here, and drops what has passed on.
    async fn renew_ready(&mut self) {
        let mut index = 0;
        while let Some((_, lease)) = self.ready.get(index) {
            if lease.age() < self.ack_wait / 3 || lease.progress().await.is_ok() {
                index += 1;
            } else {
                self.ready.remove(index);
            }
        }
    }

    fn hand_over(&mut self, max: usize) -> Vec<(Delivery, NatsLease)> {
        self.ready.drain(..max.min(self.ready.len())).collect()
    }

    /// What is ready now.
    async fn pull_ready(&mut self, max: usize) -> Result<(), BrokerError> {
        // Again where the connection was lost in the midst of it.
        for _ in 0..5 {
            self.be_open(Instant::now() + SHORT_WAIT).await?;
            self.mind_connection();
            self.heed();
            self.take_arrived();
            if !self.ready.is_empty() || self.asked_for_ready(max).await {
                return Ok(());
            }
        }
        let message = "the NATS server did not say what is ready".to_owned();
        Err(BrokerError::Unavailable { message, source: None })
    }

    /// Asks for what is ready. Returns whether that is known; if not, it must be asked again.
    async fn asked_for_ready(&mut self, max: usize) -> bool {
        let connects = self.link.intake.connects();
        let Some(mut number) = self.ask(max, None) else {
            return false;
        };
        let mut deadline = Instant::now() + ANSWER_TIMEOUT;
        let mut left = max;
        while Instant::now() < deadline && self.link.intake.is_connected() && self.link.intake.connects() == connects {
            match self.next(deadline).await {
                Arrived::Delivery => {
                    self.take_arrived();
                    return true;
                }
                Arrived::Over(over) if over == number => return true,
                Arrived::Gone => return false,
                Arrived::Skipped if left > 1 => left -= 1,
                // All that was asked for were delete markers.
                Arrived::Skipped => match self.ask(max, None) {
                    Some(next) => (number, left, deadline) = (next, max, Instant::now() + ANSWER_TIMEOUT),
                    None => return false,
                },
                Arrived::Over(_) | Arrived::Nothing => {}
            }
        }
        false
    }

    /// What comes until `deadline`.
    async fn pull_until(&mut self, max: usize, deadline: Instant) {
        while !self.closed {
            if self.be_open(deadline).await.is_err() {
                return;
            }
            self.mind_connection();
            self.heed();
            self.take_arrived();
            let now = Instant::now();
            if !self.ready.is_empty() || now >= deadline {
                return;
            }
            let Some(open) = &mut self.open else { continue };
            match &open.asked {
                None => {
                    let wait = (deadline - now).clamp(Duration::from_millis(10), PULL_EXPIRES);
                    // Not connected any more, which the next round sees.
                    let _ = self.ask(max, Some(wait));
                }
                Some(asked) if asked.over <= now => {
                    open.asked = None;
                    self.look().await;
                }
                Some(asked) => {
                    let until = asked.over.min(deadline);
                    self.next(until).await;
                }
            }
        }
    }
}

impl Source for NatsSource {
    type Lease = NatsLease;

    async fn pull(&mut self, max: usize, wait: Duration) -> Result<Vec<(Delivery, Self::Lease)>, BrokerError> {
        if max == 0 || self.closed {
            return Ok(Vec::new());
        }
        self.take_arrived();
        self.renew_ready().await;
        if self.ready.is_empty() {
            if wait.is_zero() {
                self.pull_ready(max).await?;
            } else {
                // Later than the clock can tell is about never.
                let long = Duration::from_secs(86_400);
                self.pull_until(max, Instant::now() + wait.min(long)).await;
            }
        }
        Ok(self.hand_over(max))
    }

    async fn close(&mut self) {
        self.closed = true;
        loop {
            self.take_arrived();
            let back = std::mem::take(&mut self.ready);
            join_all(back.iter().map(|(_, lease)| lease.nak(Duration::ZERO))).await;
            // A request that the server holds can't be recalled, and may bring something at any moment until it is over; who
            // doesn't listen any more loses that until its lease runs out.
            let Some(open) = &mut self.open else { break };
            let Some(over) = open.asked.as_ref().map(|asked| asked.over) else {
                break;
            };
            match timeout_at(over, open.incoming.next()).await {
                Ok(Some(message)) => {
                    self.arrive(&message, Instant::now());
                }
                Ok(None) | Err(_) => break,
            }
        }
        self.open = None;
        if self.skipped > 0 {
            tracing::info!(
                group = self.wish.group,
                subject = self.wish.subject,
                skipped = self.skipped,
                "delete markers were acknowledged without a handler"
            );
        }
    }

    fn ack_wait(&self) -> Duration {
        self.ack_wait
    }

    fn status(&self) -> SourceStatus {
        self.status.clone()
    }
}

impl Drop for NatsSource {
    fn drop(&mut self) {
        // Without a runtime the leases have to run out.
        let Ok(runtime) = Handle::try_current() else { return };
        self.take_arrived();
        let back = std::mem::take(&mut self.ready);
        if !back.is_empty() {
            runtime.spawn(async move {
                join_all(back.iter().map(|(_, lease)| lease.nak(Duration::ZERO))).await;
            });
        }
    }
}
