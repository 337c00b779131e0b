//! Publishing as an outbox does it: many messages at once, in order per key, and again from the first that is not confirmed. And the
//! check of what the broker then has.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use inbox_runtime::{Broker, BrokerError, Lease, Message, Source, Subscription};
use tokio::task::JoinHandle;

use crate::world::eventually;

/// How many messages a call of a [`Stream`] has for each key.
const PER_KEY: u32 = 50;

/// The pause between two calls of a [`Stream`].
const PAUSE: Duration = Duration::from_millis(50);

/// Message `number` of a key: its payload says both.
#[must_use]
pub fn numbered(subject: &str, key: &str, number: u32) -> Message {
    Message::new(subject, format!("{key} {number}")).key(key.to_owned())
}

/// Publishes messages until each is confirmed or refused. Returns how many answers were neither.
pub async fn publish_until_done(broker: &impl Broker, mut messages: Vec<Message>) -> u32 {
    let mut failures = 0;
    while !messages.is_empty() {
        let results = broker.publish_all(messages.clone()).await;
        assert_eq!(results.len(), messages.len(), "there is a result for each message");
        let mut results = results.into_iter();
        messages.retain(|_| match results.next() {
            Some(Ok(_) | Err(BrokerError::Refused { .. })) => false,
            Some(Err(BrokerError::NotNow { .. } | BrokerError::Unavailable { .. })) => true,
            Some(Err(error)) => panic!("{error}"),
            None => unreachable!("there is a result for each message"),
        });
        failures += u32::try_from(messages.len()).expect("few");
        if !messages.is_empty() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    failures
}

/// Publishes messages of several keys, call after call, until it is stopped.
#[derive(Debug)]
pub struct Stream {
    stop: Arc<AtomicBool>,
    confirmed: Arc<AtomicU32>,
    task: JoinHandle<u32>,
}

impl Stream {
    /// Starts it: messages 0, 1, and so on of each key, 50 of each in a call.
    pub fn start(broker: impl Broker, subject: &'static str, keys: Vec<String>) -> Self {
        let (stop, confirmed) = (Arc::<AtomicBool>::default(), Arc::<AtomicU32>::default());
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&confirmed));
        let task = tokio::spawn(async move {
            let mut failures = 0;
            while !stopped.load(Ordering::SeqCst) {
                let first = count.load(Ordering::SeqCst);
                let of = |number| keys.iter().map(move |key| numbered(subject, key, number));
                let messages = (first..first + PER_KEY).flat_map(of).collect();
                failures += publish_until_done(&broker, messages).await;
                count.fetch_add(PER_KEY, Ordering::SeqCst);
                // Outages last for seconds, in which there would be more than can be read again.
                tokio::time::sleep(PAUSE).await;
            }
            failures
        });
        Self { stop, confirmed, task }
    }

    /// Waits for some more calls.
    pub async fn goes_on(&self) {
        let before = self.confirmed.load(Ordering::SeqCst);
        eventually("messages are published", async || {
            self.confirmed.load(Ordering::SeqCst) >= before + 2 * PER_KEY
        })
        .await;
    }

    /// Stops it. Returns how many messages of each key are confirmed, and how many answers were failures.
    ///
    /// # Panics
    ///
    /// When a message was refused, or an error was of another kind.
    pub async fn stop(self) -> (u32, u32) {
        self.stop.store(true, Ordering::SeqCst);
        let failures = self.task.await.expect("no other error");
        (self.confirmed.load(Ordering::SeqCst), failures)
    }
}

/// Asserts that the messages 0 to `count` of each key were stored, each for the first time after the one before it. There may be
/// copies.
///
/// # Panics
///
/// When one is missing, or before its predecessor.
pub async fn assert_in_order(broker: &impl Broker, subject: &str, keys: usize, count: u32) {
    let subscription = Subscription::new("ordered-reader", subject).max_in_flight(512);
    let mut source = broker
        .subscribe(vec![subscription])
        .await
        .expect("subscribed")
        .remove(0);
    let mut next: BTreeMap<String, u32> = BTreeMap::new();
    let mut copies = 0;
    while next.len() < keys || next.values().any(|next| *next < count) {
        let pulled = source.pull(512, Duration::from_secs(60)).await.expect("the broker");
        assert!(!pulled.is_empty(), "messages are missing: {next:?} of {count}");
        for (delivery, lease) in pulled {
            let payload = String::from_utf8(delivery.payload.expect("a payload").to_vec()).expect("text");
            let (key, number) = payload.split_once(' ').expect("a key and a number");
            let (number, next) = (
                number.parse::<u32>().expect("a number"),
                next.entry(key.to_owned()).or_default(),
            );
            assert!(number <= *next, "{key}: {number} is stored before {next}");
            copies += u32::from(number < *next);
            *next = (*next).max(number + 1);
            lease.ack().await.expect("acknowledged");
        }
    }
    println!("{keys} keys with {count} messages each, {copies} copies");
    source.close().await;
}
