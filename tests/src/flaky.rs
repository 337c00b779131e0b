//! A broker whose acknowledgements and pulls can be made to fail, and watched.

use std::{
    collections::HashMap,
    fmt,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use inbox_runtime::{Broker, BrokerError, Delivery, Lease, Message, Published, Source, SourceStatus, Subscription};
use parking_lot::Mutex;

/// What is run when an acknowledgement is about to be sent.
type Watcher = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// What is done to a delivery before anybody gets it.
type Alter = Arc<dyn Fn(&mut Delivery) + Send + Sync>;

/// What is answered to a message that is published, in place of the broker.
type Answer = Arc<dyn Fn(&Message) -> Option<BrokerError> + Send + Sync>;

/// Wraps a broker; drops acknowledgements when told to.
#[derive(Clone, Debug)]
pub struct Flaky<B> {
    inner: B,
    faults: Arc<Faults>,
}

#[derive(Default)]
struct Faults {
    acks: AtomicU32,
    pulls: AtomicU32,
    pulled: AtomicU32,
    panics: Mutex<HashMap<&'static str, u32>>,
    watcher: Mutex<Option<Watcher>>,
    status: Mutex<Option<SourceStatus>>,
    alter: Mutex<Option<Alter>>,
    answer: Mutex<Option<Answer>>,
    published: Mutex<Vec<Message>>,
}

impl Faults {
    /// Panics if that call is to.
    fn panic_in(&self, call: &'static str) {
        let mut panics = self.panics.lock();
        if let Some(left) = panics.get_mut(call).filter(|left| **left > 0) {
            *left -= 1;
            drop(panics);
            assert!(std::thread::panicking(), "in {call}");
        }
    }

    /// What comes before every acknowledgement: the watcher's look, then perhaps the loss.
    async fn before_ack(&self) -> Result<(), BrokerError> {
        let watcher = self.watcher.lock().clone();
        if let Some(watcher) = watcher {
            watcher().await;
        }
        if take(&self.acks) {
            return Err(fault("no acknowledgement"));
        }
        Ok(())
    }
}

impl Faults {
    fn altered(&self, mut delivery: Delivery) -> Delivery {
        let alter = self.alter.lock().clone();
        if let Some(alter) = alter {
            alter(&mut delivery);
        }
        delivery
    }
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faults")
            .field("acks", &self.acks)
            .field("pulls", &self.pulls)
            .field("pulled", &self.pulled)
            .finish_non_exhaustive()
    }
}

impl<B> Flaky<B> {
    /// Wraps a broker, which works until told otherwise.
    pub fn new(inner: B) -> Self {
        Self {
            inner,
            faults: Arc::default(),
        }
    }

    /// The next `count` acknowledgements are lost: the broker never sees them, the caller gets an error.
    pub fn lose_acks(&self, count: u32) {
        self.faults.acks.store(count, Ordering::SeqCst);
    }

    /// Runs `watcher` whenever an acknowledgement is about to be sent.
    pub fn watch_acks<F>(&self, watcher: impl Fn() -> F + Send + Sync + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let watcher: Watcher = Arc::new(move || Box::pin(watcher()));
        *self.faults.watcher.lock() = Some(watcher);
    }

    /// The next `count` pulls fail.
    pub fn fail_pulls(&self, count: u32) {
        self.faults.pulls.store(count, Ordering::SeqCst);
    }

    /// The next `count` calls of that method of a source or a lease panic. `drop` is the destructor of a lease.
    pub fn panic_in(&self, call: &'static str, count: u32) {
        let mut panics = self.faults.panics.lock();
        panics.insert(call, count);
    }

    /// How many of the panics of that method are still to come.
    #[must_use]
    pub fn panics_left(&self, call: &'static str) -> u32 {
        let panics = self.faults.panics.lock();
        panics.get(call).copied().unwrap_or_default()
    }

    /// Deliveries are changed so before anybody gets them, from now on.
    pub fn alter(&self, alter: impl Fn(&mut Delivery) + Send + Sync + 'static) {
        *self.faults.alter.lock() = Some(Arc::new(alter));
    }

    /// Messages that are published are answered so, and don't reach the broker, where that has an answer.
    pub fn answer(&self, answer: impl Fn(&Message) -> Option<BrokerError> + Send + Sync + 'static) {
        *self.faults.answer.lock() = Some(Arc::new(answer));
    }

    /// Every message that was published through this and reached the broker, in order.
    #[must_use]
    pub fn published(&self) -> Vec<Message> {
        self.faults.published.lock().clone()
    }

    /// What the sources that are opened from now on say about themselves.
    pub fn say(&self, status: SourceStatus) {
        *self.faults.status.lock() = Some(status);
    }

    /// How many pulls were made.
    #[must_use]
    pub fn pulls(&self) -> u32 {
        self.faults.pulled.load(Ordering::SeqCst)
    }
}

fn take(counter: &AtomicU32) -> bool {
    counter
        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
        .is_ok()
}

fn fault(what: &str) -> BrokerError {
    BrokerError::unavailable(what, "cut by the test")
}

impl<B: Broker> Broker for Flaky<B> {
    type Source = FlakySource<B::Source>;

    async fn describe(&self) -> Result<String, BrokerError> {
        self.inner.describe().await
    }

    async fn subscribe(&self, subscriptions: Vec<Subscription>) -> Result<Vec<Self::Source>, BrokerError> {
        let sources = self.inner.subscribe(subscriptions).await?;
        let faults = &self.faults;
        Ok(sources
            .into_iter()
            .map(|inner| FlakySource {
                inner,
                faults: faults.clone(),
            })
            .collect())
    }

    async fn publish(&self, message: Message) -> Result<Published, BrokerError> {
        let answer = self.faults.answer.lock().clone();
        if let Some(error) = answer.and_then(|answer| answer(&message)) {
            return Err(error);
        }
        let published = self.inner.publish(message.clone()).await?;
        self.faults.published.lock().push(message);
        Ok(published)
    }

    fn file(&self) -> Option<std::path::PathBuf> {
        self.inner.file()
    }
}

/// A source of a [`Flaky`] broker.
#[derive(Debug)]
pub struct FlakySource<S> {
    inner: S,
    faults: Arc<Faults>,
}

impl<S: Source> Source for FlakySource<S> {
    type Lease = FlakyLease<S::Lease>;

    async fn pull(&mut self, max: usize, wait: Duration) -> Result<Vec<(Delivery, Self::Lease)>, BrokerError> {
        self.faults.pulled.fetch_add(1, Ordering::SeqCst);
        self.faults.panic_in("pull");
        if take(&self.faults.pulls) {
            return Err(fault("no messages"));
        }
        let deliveries = self.inner.pull(max, wait).await?;
        let faults = &self.faults;
        Ok(deliveries
            .into_iter()
            .map(|(delivery, inner)| {
                (
                    faults.altered(delivery),
                    FlakyLease {
                        inner,
                        faults: faults.clone(),
                    },
                )
            })
            .collect())
    }

    async fn close(&mut self) {
        self.faults.panic_in("close");
        self.inner.close().await;
    }

    fn ack_wait(&self) -> Duration {
        self.faults.panic_in("ack_wait");
        self.inner.ack_wait()
    }

    fn idle_after(&self) -> Duration {
        self.inner.idle_after()
    }

    fn status(&self) -> SourceStatus {
        self.faults.panic_in("status");
        let said = self.faults.status.lock().clone();
        said.unwrap_or_else(|| self.inner.status())
    }
}

/// A lease of a [`Flaky`] broker.
#[derive(Debug)]
pub struct FlakyLease<L> {
    inner: L,
    faults: Arc<Faults>,
}

impl<L> Drop for FlakyLease<L> {
    fn drop(&mut self) {
        self.faults.panic_in("drop");
    }
}

impl<L: Lease> Lease for FlakyLease<L> {
    async fn ack(&self) -> Result<(), BrokerError> {
        self.faults.panic_in("ack");
        self.faults.before_ack().await?;
        self.inner.ack().await
    }

    async fn ack_again(&self) -> Result<(), BrokerError> {
        self.faults.before_ack().await?;
        self.inner.ack_again().await
    }

    async fn ack_confirmed(&self) -> Result<(), BrokerError> {
        self.faults.panic_in("ack_confirmed");
        self.faults.before_ack().await?;
        self.inner.ack_confirmed().await
    }

    async fn nak(&self, delay: Duration) -> Result<(), BrokerError> {
        self.faults.panic_in("nak");
        self.inner.nak(delay).await
    }

    async fn progress(&self) -> Result<(), BrokerError> {
        self.faults.panic_in("progress");
        self.inner.progress().await
    }

    fn next_in_partition(&self) -> Option<(Delivery, Self)> {
        self.faults.panic_in("next_in_partition");
        let (delivery, inner) = self.inner.next_in_partition()?;
        let faults = self.faults.clone();
        Some((faults.altered(delivery), Self { inner, faults }))
    }
}
