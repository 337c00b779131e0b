//! The checks that every broker passes, those of this crate among them.

mod publishing;

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use crate::{
    broker::{Broker, Lease, Source, Subscription},
    delivery::{Delivery, Message},
};

/// How long a message that must come is waited for.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long nothing must come.
const QUIET: Duration = Duration::from_millis(300);

type LeaseOf<B> = <<B as Broker>::Source as Source>::Lease;
type Taken<B> = (Delivery, LeaseOf<B>);

/// What a broker does differently from the one that all is said of, which is NATS JetStream.
#[derive(Clone, Copy, Debug)]
pub struct BrokerRules {
    subject: &'static str,
    leases: bool,
    counts: bool,
}

impl Default for BrokerRules {
    fn default() -> Self {
        Self {
            subject: "conformance.created",
            leases: true,
            counts: true,
        }
    }
}

impl BrokerRules {
    /// The subject of every message that the checks publish (default `conformance.created`), where a broker must be told of it before.
    #[must_use]
    pub const fn subject(mut self, subject: &'static str) -> Self {
        self.subject = subject;
        self
    }

    /// Whether the lease of a delivery runs out, after which another consumer gets the message (the default). On Kafka the message
    /// stays with the consumer that has its partition.
    #[must_use]
    pub const fn leases(mut self, leases: bool) -> Self {
        self.leases = leases;
        self
    }

    /// Whether the broker counts the deliveries of a message (the default).
    #[must_use]
    pub const fn counts(mut self, counts: bool) -> Self {
        self.counts = counts;
        self
    }
}

/// Puts a broker to every check, one after the other. `fresh` makes a broker without groups, on which nothing was published to
/// the subject; it is called once for each check. A clone of a broker is another client of the same one.
///
/// It takes some seconds, since leases have to run out.
///
/// # Panics
///
/// With the rule that the broker breaks.
///
/// # Cancel safety
///
/// Dropped, it leaves messages and groups on the brokers that were made.
///
/// # Examples
///
/// ```
/// use inbox_runtime::{
///     Embedded,
///     testing::conformance::{self, BrokerRules},
/// };
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// conformance::broker(BrokerRules::default(), async || Embedded::memory()).await;
/// # }
/// ```
pub async fn broker<B: Broker + Clone>(rules: BrokerRules, fresh: impl AsyncFn() -> B) {
    let client = async || Client {
        broker: fresh().await,
        rules,
    };
    client().await.a_message_arrives_as_it_was_published().await;
    client().await.what_is_acked_is_not_redelivered().await;
    client().await.what_is_nakked_is_redelivered_after_its_delay().await;
    client().await.every_group_gets_every_message().await;
    client().await.a_pull_returns_no_more_than_it_was_asked_for().await;
    client().await.a_pull_that_is_dropped_loses_nothing().await;
    client().await.a_confirmed_ack_is_final().await;
    client()
        .await
        .what_a_closed_source_has_not_returned_goes_to_another()
        .await;
    client()
        .await
        .what_is_published_at_once_keeps_the_order_of_each_key()
        .await;
    client()
        .await
        .a_message_that_is_refused_keeps_none_of_its_key_back()
        .await;
    client().await.a_publish_that_is_dropped_leaves_no_gap().await;
    if rules.leases {
        client().await.a_lease_that_runs_out_is_redelivered().await;
        client().await.progress_prolongs_a_lease().await;
    }
}

struct Client<B> {
    broker: B,
    rules: BrokerRules,
}

impl<B: Broker + Clone> Client<B> {
    async fn publish(&self, id: impl Into<String>) {
        let id = id.into();
        let message = Message::new(self.rules.subject, format!("payload of {id}")).id(id);
        self.broker.publish(message).await.expect("a message can be published");
    }

    async fn source(&self, group: &str, ack_wait: Duration) -> B::Source {
        let subscription = Subscription::new(group, self.rules.subject)
            .ack_wait(ack_wait)
            .max_in_flight(16);
        let sources = self.broker.clone().subscribe(vec![subscription]).await;
        let mut sources = sources.expect("a group can subscribe");
        assert_eq!(sources.len(), 1, "a subscription has one source");
        sources.remove(0)
    }

    async fn group(&self) -> B::Source {
        self.source("conformance", Duration::from_secs(30)).await
    }

    async fn a_message_arrives_as_it_was_published(self) {
        self.publish("m1").await;
        let (delivery, lease) = next::<B>(&mut self.group().await).await;
        assert_eq!(
            delivery.subject, self.rules.subject,
            "a delivery has the subject of its message"
        );
        let payload = delivery.payload.as_deref();
        assert_eq!(
            payload,
            Some(b"payload of m1".as_slice()),
            "a delivery has the payload of its message"
        );
        let id = delivery
            .headers
            .iter()
            .any(|(_, value)| value == Some(b"m1".as_slice()));
        assert!(
            id,
            "a delivery has the headers of its message, its id among them: {:?}",
            delivery.headers
        );
        if self.rules.counts {
            assert_eq!(delivery.delivery_count, Some(1), "a first delivery is counted as such");
            assert!(!delivery.redelivered, "a first delivery is no redelivery");
        }
        lease.ack().await.expect("a delivery can be acked");
    }

    async fn what_is_acked_is_not_redelivered(self) {
        self.publish("m1").await;
        self.publish("m2").await;
        let mut source = self.group().await;
        let (first, lease) = next::<B>(&mut source).await;
        lease.ack().await.expect("a delivery can be acked");
        let (second, lease) = next::<B>(&mut source).await;
        assert_ne!(
            first.position, second.position,
            "each message has a position of its own"
        );
        lease.ack().await.expect("a delivery can be acked");
        nothing::<B>(&mut source, "a message that was acked").await;
        // Where an ack is confirmed later, it is when the source is closed.
        source.close().await;
        self.publish("m3").await;
        let (third, lease) = next::<B>(&mut self.group().await).await;
        let acked = [first.position, second.position];
        assert!(
            !acked.contains(&third.position),
            "what was acked is not delivered to the group's next consumer"
        );
        lease.ack().await.expect("a delivery can be acked");
    }

    async fn what_is_nakked_is_redelivered_after_its_delay(self) {
        self.publish("m1").await;
        let mut source = self.group().await;
        let (first, lease) = next::<B>(&mut source).await;
        lease.nak(Duration::ZERO).await.expect("a delivery can be nak'ed");
        let (again, lease) = next::<B>(&mut source).await;
        assert_eq!(first.position, again.position, "a message keeps its position");
        assert!(again.redelivered, "a redelivery is marked as one");
        if self.rules.counts {
            assert_eq!(again.delivery_count, Some(2), "a redelivery is counted");
        }
        let (start, delay) = (Instant::now(), Duration::from_secs(1));
        lease.nak(delay).await.expect("a delivery can be nak'ed");
        let (_, lease) = next::<B>(&mut source).await;
        // Clocks are compared, and none of them is finer than a few milliseconds.
        let early = delay.saturating_sub(Duration::from_millis(50));
        assert!(
            start.elapsed() >= early,
            "a message is not redelivered before its delay is over"
        );
        lease.ack().await.expect("a delivery can be acked");
    }

    async fn every_group_gets_every_message(self) {
        for number in 0..3 {
            self.publish(format!("m{number}")).await;
        }
        let mut positions = Vec::new();
        for group in ["conformance-one", "conformance-two"] {
            let mut source = self.source(group, Duration::from_secs(30)).await;
            let mut of_group = BTreeSet::new();
            for _ in 0..3 {
                let (delivery, lease) = next::<B>(&mut source).await;
                of_group.insert(delivery.position);
                lease.ack().await.expect("a delivery can be acked");
            }
            assert_eq!(of_group.len(), 3, "a group gets each message once");
            positions.push(of_group);
        }
        assert_eq!(positions[0], positions[1], "a message has one position for all groups");
    }

    async fn a_pull_returns_no_more_than_it_was_asked_for(self) {
        let mut source = self.group().await;
        let (start, wait) = (Instant::now(), Duration::from_millis(200));
        let pulled = source.pull(2, wait).await.expect("a pull works");
        assert!(pulled.is_empty(), "nothing was published");
        assert!(start.elapsed() < PATIENCE, "a pull ends when its wait is over");
        for number in 0..5 {
            self.publish(format!("m{number}")).await;
        }
        let mut positions = BTreeSet::new();
        while positions.len() < 5 {
            let pulled = source.pull(2, PATIENCE).await.expect("a pull works");
            assert!(!pulled.is_empty(), "a pull waits for a message that is there");
            assert!(pulled.len() <= 2, "a pull returns at most as many as it was asked for");
            for (delivery, lease) in pulled {
                assert!(positions.insert(delivery.position), "no message is delivered twice");
                lease.ack().await.expect("a delivery can be acked");
            }
        }
    }

    async fn a_pull_that_is_dropped_loses_nothing(self) {
        let mut source = self.group().await;
        for number in 0..5 {
            self.publish(format!("m{number}")).await;
            for micros in [0, 100, 1_000, 5_000] {
                let pull = source.pull(1, PATIENCE);
                if let Ok(pulled) = tokio::time::timeout(Duration::from_micros(micros), pull).await {
                    for (_, lease) in pulled.expect("a pull works") {
                        lease.nak(Duration::ZERO).await.expect("a delivery can be nak'ed");
                    }
                }
            }
        }
        let mut positions = BTreeSet::new();
        while positions.len() < 5 {
            let (delivery, lease) = next::<B>(&mut source).await;
            positions.insert(delivery.position);
            lease.ack().await.expect("a delivery can be acked");
        }
    }

    async fn a_confirmed_ack_is_final(self) {
        self.publish("m1").await;
        let mut source = self.group().await;
        let (first, lease) = next::<B>(&mut source).await;
        lease.ack_confirmed().await.expect("an ack is confirmed");
        // Nothing has to be told any more.
        drop((lease, source));
        self.publish("m2").await;
        let (second, lease) = next::<B>(&mut self.group().await).await;
        assert_ne!(
            first.position, second.position,
            "a message whose ack was confirmed is not redelivered"
        );
        lease.ack().await.expect("a delivery can be acked");
    }

    async fn what_a_closed_source_has_not_returned_goes_to_another(self) {
        for number in 0..3 {
            self.publish(format!("m{number}")).await;
        }
        let mut source = self.group().await;
        let (first, lease) = next::<B>(&mut source).await;
        lease.ack().await.expect("a delivery can be acked");
        source.close().await;
        let start = Instant::now();
        let mut other = self.group().await;
        let mut positions = BTreeSet::new();
        while positions.len() < 2 {
            let (delivery, lease) = next::<B>(&mut other).await;
            assert_ne!(delivery.position, first.position, "what was acked is not redelivered");
            positions.insert(delivery.position);
            lease.ack().await.expect("a delivery can be acked");
        }
        if self.rules.leases {
            assert!(
                start.elapsed() < Duration::from_secs(25),
                "a closed source releases what it has, before its leases run out"
            );
        }
    }

    async fn a_lease_that_runs_out_is_redelivered(self) {
        self.publish("m1").await;
        let ack_wait = Duration::from_secs(1);
        let mut source = self.source("conformance", ack_wait).await;
        assert_eq!(source.ack_wait(), ack_wait, "a lease lasts as long as it was asked for");
        let (first, lost) = next::<B>(&mut source).await;
        let mut other = self.source("conformance", ack_wait).await;
        let (again, lease) = next::<B>(&mut other).await;
        assert_eq!(
            first.position, again.position,
            "the message of a lease that ran out is redelivered"
        );
        assert!(again.redelivered, "a redelivery is marked as one");
        let late = lost.ack_confirmed().await;
        assert!(late.is_err(), "a lease that has passed on confirms nothing");
        lease.ack().await.expect("a delivery can be acked");
    }

    async fn progress_prolongs_a_lease(self) {
        self.publish("m1").await;
        let ack_wait = Duration::from_secs(4);
        let mut source = self.source("conformance", ack_wait).await;
        let (_, lease) = next::<B>(&mut source).await;
        let mut other = self.source("conformance", ack_wait).await;
        for _ in 0..6 {
            lease.progress().await.expect("progress can be told");
            nothing::<B>(&mut other, "a message whose lease is kept alive").await;
            tokio::time::sleep(Duration::from_millis(700)).await;
        }
        lease.ack().await.expect("a delivery can be acked");
    }
}

/// The next delivery.
async fn next<B: Broker>(source: &mut B::Source) -> Taken<B> {
    let start = Instant::now();
    loop {
        let pulled = source.pull(1, Duration::from_secs(1)).await.expect("a pull works");
        if let Some(delivery) = pulled.into_iter().next() {
            return delivery;
        }
        assert!(start.elapsed() < PATIENCE, "a message that is there is delivered");
    }
}

async fn nothing<B: Broker>(source: &mut B::Source, what: &str) {
    let pulled = source.pull(1, QUIET).await.expect("a pull works");
    assert!(pulled.is_empty(), "{what} was delivered");
}
