//! The broker of the lab.

use std::{
    future,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use inbox_runtime::{Broker, BrokerError, Message, Published, Subscription};
use tokio::sync::Notify;

/// A broker that notes what it was sent, can be away, and can be where its program dies.
#[derive(Clone)]
pub(super) struct Watched<B> {
    inner: B,
    pub(super) watch: Arc<Watch>,
}

impl<B> Watched<B> {
    pub(super) fn new(inner: B) -> Self {
        let watch = Arc::default();
        Self { inner, watch }
    }
}

/// What is noted, and what goes wrong.
#[derive(Default)]
pub(super) struct Watch {
    sent: Mutex<Vec<Message>>,
    /// It can't be reached.
    pub(super) is_away: AtomicBool,
    /// It takes the next message, and its answer is not heard.
    pub(super) is_mute: AtomicBool,
    /// Told when that was so.
    pub(super) unheard: Notify,
}

impl Watch {
    /// What was sent there about that order, or about all orders whose ids begin so.
    pub(super) fn sent(&self, subject: &str, order_id: &str) -> Vec<Message> {
        let about = |message: &&Message| {
            let key = message.key.as_deref().unwrap_or_default();
            message.subject == subject && key.starts_with(order_id.as_bytes())
        };
        self.lock().iter().filter(about).cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Message>> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B: Broker> Broker for Watched<B> {
    type Source = B::Source;

    async fn describe(&self) -> Result<String, BrokerError> {
        self.inner.describe().await
    }

    async fn subscribe(&self, subscriptions: Vec<Subscription>) -> Result<Vec<B::Source>, BrokerError> {
        self.inner.subscribe(subscriptions).await
    }

    async fn publish(&self, message: Message) -> Result<Published, BrokerError> {
        if self.watch.is_away.load(Ordering::SeqCst) {
            return Err(BrokerError::unavailable("publishing", "the lab has unplugged it"));
        }
        let published = self.inner.publish(message.clone()).await?;
        self.watch.lock().push(message);
        if self.watch.is_mute.swap(false, Ordering::SeqCst) {
            self.watch.unheard.notify_one();
            future::pending::<()>().await;
        }
        Ok(published)
    }

    fn file(&self) -> Option<PathBuf> {
        self.inner.file()
    }
}
