//! Brokers, sources and leases behind `dyn`, as the pipeline holds them. A panic of theirs is an error like any other.

use std::{fmt, future::Future, path::PathBuf, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;

use super::{Broker, BrokerError, Lease, Published, Source, SourceStatus, Subscription};
use crate::{
    config::ACK_WAIT,
    contain::{Contained, Owned, contain},
    delivery::{Delivery, Message},
};

/// A broker behind `dyn`, as the pipeline holds it.
#[derive(Clone)]
pub(crate) struct DynBroker(Arc<dyn ErasedBroker>);

impl DynBroker {
    pub(crate) fn new(broker: impl Broker) -> Self {
        Self(Arc::new(broker))
    }

    pub(crate) async fn describe(&self) -> Result<String, BrokerError> {
        self.0.describe().await
    }

    pub(crate) async fn subscribe(&self, subscriptions: Vec<Subscription>) -> Result<Vec<DynSource>, BrokerError> {
        self.0.subscribe(subscriptions).await
    }

    /// Publishes messages, each after the one before it of the same subject and key. Returns a result for each, in their order.
    pub(crate) async fn publish_all(&self, messages: Vec<Message>) -> Vec<Result<Published, BrokerError>> {
        self.0.publish_all(messages).await
    }

    /// Whether the broker would take the message, as far as it is known now; the error says why not.
    pub(crate) fn check(&self, message: &Message) -> Result<(), String> {
        self.0.check(message)
    }

    pub(crate) fn file(&self) -> Option<PathBuf> {
        self.0.file()
    }
}

impl fmt::Debug for DynBroker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynBroker").finish_non_exhaustive()
    }
}

/// A source behind `dyn`.
pub(crate) type DynSource = Box<dyn ErasedSource>;
/// A lease behind `dyn`.
pub(crate) type DynLease = Arc<dyn ErasedLease>;

trait ErasedBroker: Send + Sync {
    fn describe(&self) -> BoxFuture<'_, Result<String, BrokerError>>;
    fn subscribe(&self, subscriptions: Vec<Subscription>) -> BoxFuture<'_, Result<Vec<DynSource>, BrokerError>>;
    fn publish_all(&self, messages: Vec<Message>) -> BoxFuture<'_, Vec<Result<Published, BrokerError>>>;
    fn check(&self, message: &Message) -> Result<(), String>;
    fn file(&self) -> Option<PathBuf>;
}

impl<B: Broker> ErasedBroker for B {
    fn describe(&self) -> BoxFuture<'_, Result<String, BrokerError>> {
        contained("describe", async move { Broker::describe(self).await })
    }

    fn subscribe(&self, subscriptions: Vec<Subscription>) -> BoxFuture<'_, Result<Vec<DynSource>, BrokerError>> {
        contained("subscribe", async move {
            let sources = Broker::subscribe(self, subscriptions).await?;
            Ok(sources
                .into_iter()
                .map(|source| Box::new(Owned::new("a source of the broker", source)) as DynSource)
                .collect())
        })
    }

    fn publish_all(&self, messages: Vec<Message>) -> BoxFuture<'_, Vec<Result<Published, BrokerError>>> {
        let count = messages.len();
        let results = contained("publish_all", async move {
            let results = Broker::publish_all(self, messages).await;
            if results.len() == count {
                return Ok(results);
            }
            let message = format!(
                "its `publish_all` returned {} results for {count} messages",
                results.len()
            );
            Err(BrokerError::Unavailable { message, source: None })
        });
        Box::pin(async move {
            let failed = |error: BrokerError| (0..count).map(|_| Err(error.copied())).collect();
            results.await.unwrap_or_else(failed)
        })
    }

    fn check(&self, message: &Message) -> Result<(), String> {
        // What it can't tell now it tells when the message is published.
        said("check", || Broker::check(self, message)).unwrap_or(Ok(()))
    }

    fn file(&self) -> Option<PathBuf> {
        Broker::file(self)
    }
}

pub(crate) trait ErasedSource: Send {
    fn pull(&mut self, max: usize, wait: Duration) -> BoxFuture<'_, Result<Vec<(Delivery, DynLease)>, BrokerError>>;
    fn close(&mut self) -> BoxFuture<'_, ()>;
    fn ack_wait(&self) -> Duration;
    fn idle_after(&self) -> Duration;
    fn status(&self) -> SourceStatus;
}

impl<S: Source> ErasedSource for Owned<S> {
    fn pull(&mut self, max: usize, wait: Duration) -> BoxFuture<'_, Result<Vec<(Delivery, DynLease)>, BrokerError>> {
        contained("pull", async move {
            let deliveries = S::pull(self, max, wait).await?;
            Ok(deliveries
                .into_iter()
                .map(|(delivery, lease)| (delivery, erased(lease)))
                .collect())
        })
    }

    fn close(&mut self) -> BoxFuture<'_, ()> {
        let close = contained("close", async move {
            S::close(self).await;
            Ok(())
        });
        Box::pin(async move {
            if let Err(error) = close.await {
                tracing::warn!(%error, "a source of the broker could not be closed");
            }
        })
    }

    fn ack_wait(&self) -> Duration {
        said("ack_wait", || S::ack_wait(self)).unwrap_or(ACK_WAIT)
    }

    fn idle_after(&self) -> Duration {
        said("idle_after", || S::idle_after(self)).unwrap_or_default()
    }

    fn status(&self) -> SourceStatus {
        said("status", || S::status(self)).unwrap_or_default()
    }
}

pub(crate) trait ErasedLease: Send + Sync {
    fn ack(&self) -> BoxFuture<'_, Result<(), BrokerError>>;
    fn ack_again(&self) -> BoxFuture<'_, Result<(), BrokerError>>;
    fn ack_confirmed(&self) -> BoxFuture<'_, Result<(), BrokerError>>;
    fn nak(&self, delay: Duration) -> BoxFuture<'_, Result<(), BrokerError>>;
    fn progress(&self) -> BoxFuture<'_, Result<(), BrokerError>>;
    fn is_ours(&self) -> bool;
    fn confirm_earlier(&self) -> BoxFuture<'_, Result<(), BrokerError>>;
    fn next_in_partition(&self) -> Option<(Delivery, DynLease)>;
}

impl<L: Lease> ErasedLease for Owned<L> {
    fn ack(&self) -> BoxFuture<'_, Result<(), BrokerError>> {
        contained("ack", async move { L::ack(self).await })
    }

    fn ack_again(&self) -> BoxFuture<'_, Result<(), BrokerError>> {
        contained("ack_again", async move { L::ack_again(self).await })
    }

    fn ack_confirmed(&self) -> BoxFuture<'_, Result<(), BrokerError>> {
        contained("ack_confirmed", async move { L::ack_confirmed(self).await })
    }

    fn nak(&self, delay: Duration) -> BoxFuture<'_, Result<(), BrokerError>> {
        contained("nak", async move { L::nak(self, delay).await })
    }

    fn progress(&self) -> BoxFuture<'_, Result<(), BrokerError>> {
        contained("progress", async move { L::progress(self).await })
    }

    fn is_ours(&self) -> bool {
        said("is_ours", || L::is_ours(self)).unwrap_or(true)
    }

    fn confirm_earlier(&self) -> BoxFuture<'_, Result<(), BrokerError>> {
        contained("confirm_earlier", async move { L::confirm_earlier(self).await })
    }

    fn next_in_partition(&self) -> Option<(Delivery, DynLease)> {
        let (delivery, lease) = said("next_in_partition", || L::next_in_partition(self)).flatten()?;
        Some((delivery, erased(lease)))
    }
}

/// A lease behind `dyn`.
pub(crate) fn erased(lease: impl Lease) -> DynLease {
    Arc::new(Owned::new("the lease of a delivery", lease))
}

/// A call of a broker, whose panic is an error like any other: it is tried again, and what is handled meanwhile goes on.
fn contained<'a, T: 'a>(
    call: &'static str,
    future: impl Future<Output = Result<T, BrokerError>> + Send + 'a,
) -> BoxFuture<'a, Result<T, BrokerError>> {
    let future = Contained::new("a future of the broker", Box::pin(future));
    Box::pin(async move {
        match future.await {
            Ok(answer) => answer,
            Err(panic) => Err(BrokerError::Unavailable {
                message: panicked(call, &panic),
                source: None,
            }),
        }
    })
}

/// What a broker says; `None` when it panics.
fn said<T>(call: &'static str, ask: impl FnOnce() -> T) -> Option<T> {
    contain(ask)
        .map_err(|panic| tracing::error!("the broker: {}", panicked(call, &panic)))
        .ok()
}

fn panicked(call: &'static str, panic: &str) -> String {
    format!("its `{call}` panicked: {panic}")
}

#[cfg(all(test, feature = "embedded"))]
mod tests {
    use super::*;
    use crate::broker::embedded::Embedded;

    /// Panics at each message of the subject `bad`.
    struct Panicking(Embedded);

    impl Broker for Panicking {
        type Source = <Embedded as Broker>::Source;

        async fn describe(&self) -> Result<String, BrokerError> {
            Broker::describe(&self.0).await
        }

        async fn subscribe(&self, subscriptions: Vec<Subscription>) -> Result<Vec<Self::Source>, BrokerError> {
            Broker::subscribe(&self.0, subscriptions).await
        }

        async fn publish(&self, message: Message) -> Result<Published, BrokerError> {
            assert_ne!(message.subject, "bad", "no such subject");
            Broker::publish(&self.0, message).await
        }

        async fn publish_all(&self, mut messages: Vec<Message>) -> Vec<Result<Published, BrokerError>> {
            assert!(
                messages.iter().all(|message| message.subject != "bad"),
                "no such subject"
            );
            messages.retain(|message| message.subject != "lost");
            Broker::publish_all(&self.0, messages).await
        }

        fn max_payload(&self) -> Option<usize> {
            panic!("it doesn't know");
        }
    }

    #[tokio::test]
    async fn a_panic_of_publish_all_and_a_wrong_number_of_results_are_errors_of_every_message() {
        let broker = DynBroker::new(Panicking(Embedded::memory()));
        let messages = |second| vec![Message::new("good", "1"), Message::new(second, "2")];
        for (second, why) in [
            ("bad", "`publish_all` panicked"),
            ("lost", "returned 1 results for 2 messages"),
        ] {
            let results = broker.publish_all(messages(second)).await;
            assert_eq!(results.len(), 2);
            for result in results {
                let error = result.expect_err(why);
                assert!(matches!(error, BrokerError::Unavailable { .. }), "{error}");
                assert!(error.to_string().contains(why), "{error}");
            }
        }
        assert!(broker.publish_all(messages("good")).await.iter().all(Result::is_ok));
        assert_eq!(broker.check(&Message::new("good", "1")), Ok(()), "it panics");
    }
}
