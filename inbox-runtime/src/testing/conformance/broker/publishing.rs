//! Many messages that are published at once: their order, and what is told of each.

use std::{collections::BTreeMap, time::Duration};

use super::{Client, next};
use crate::{
    broker::{Broker, BrokerError, Lease, Published},
    delivery::{Delivery, Message},
};

const KEYS: [&str; 3] = ["a", "b", "c"];
/// How many messages of each key there are.
const PER_KEY: usize = 20;

impl<B: Broker + Clone> Client<B> {
    /// Message `number` of a key, whose payload says both.
    fn of(&self, key: &'static str, number: usize) -> Message {
        let text = format!("{key}-{number}");
        Message::new(self.rules.subject, text.clone()).id(text).key(key)
    }

    /// Messages of all keys, in turns.
    fn of_all(&self) -> Vec<Message> {
        let numbers = 0..PER_KEY;
        numbers
            .flat_map(|number| KEYS.map(|key| self.of(key, number)))
            .collect()
    }

    async fn publish_all(&self, messages: Vec<Message>) -> Vec<Result<Published, BrokerError>> {
        let count = messages.len();
        let results = self.broker.publish_all(messages).await;
        assert_eq!(
            results.len(),
            count,
            "`publish_all` returns one result for each message"
        );
        results
    }

    pub(super) async fn what_is_published_at_once_keeps_the_order_of_each_key(self) {
        self.publish_all(Vec::new()).await;
        let results = self.publish_all(self.of_all()).await;
        let positions: Vec<_> = results
            .into_iter()
            .map(|result| result.expect("a message can be published").position)
            .collect();
        let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
        let mut source = self.group().await;
        for _ in 0..positions.len() {
            let (delivery, lease) = next::<B>(&mut source).await;
            let (key, number) = said(&delivery);
            let next = numbers.entry(key).or_default();
            assert_eq!(
                number, *next,
                "messages of a key are stored in the order in which they were given"
            );
            *next += 1;
            let place = number * KEYS.len() + KEYS.iter().position(|of| *of == key).expect("a key");
            assert_eq!(
                delivery.position, positions[place],
                "the results of `publish_all` stand in the order of its messages"
            );
            lease.ack().await.expect("a delivery can be acked");
        }
    }

    pub(super) async fn a_message_that_is_refused_keeps_none_of_its_key_back(self) {
        self.broker
            .publish(self.of("a", 0))
            .await
            .expect("a message can be published");
        let Some(max) = self.broker.max_payload() else { return };
        let mut messages: Vec<_> = (1..4).map(|number| self.of("a", number)).collect();
        messages[1].payload = Some(vec![b'x'; max + 1].into());
        let results = self.publish_all(messages).await;
        assert!(
            matches!(results[1], Err(BrokerError::Refused { .. })),
            "a message that is larger than `max_payload` is refused: {:?}",
            results[1]
        );
        assert!(
            results[0].is_ok() && results[2].is_ok(),
            "a message that is refused keeps none of its key back: {results:?}"
        );
        let mut source = self.group().await;
        for expected in [0, 1, 3] {
            let (delivery, lease) = next::<B>(&mut source).await;
            assert_eq!(
                said(&delivery),
                ("a", expected),
                "a message that is refused is not stored"
            );
            lease.ack().await.expect("a delivery can be acked");
        }
    }

    pub(super) async fn a_publish_that_is_dropped_leaves_no_gap(self) {
        for micros in [0, 100, 1_000, 5_000, 20_000] {
            let call = self.broker.publish_all(self.of_all());
            let _ = tokio::time::timeout(Duration::from_micros(micros), call).await;
        }
        for result in self.publish_all(self.of_all()).await {
            result.expect("a message can be published");
        }
        let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
        let mut source = self.group().await;
        while numbers.values().sum::<usize>() < KEYS.len() * PER_KEY {
            let (delivery, lease) = next::<B>(&mut source).await;
            let (key, number) = said(&delivery);
            let next = numbers.entry(key).or_default();
            assert!(
                number <= *next,
                "no message of a key is stored before the one before it"
            );
            *next = (*next).max(number + 1);
            lease.ack().await.expect("a delivery can be acked");
        }
    }
}

/// The key and the number in a payload.
fn said(delivery: &Delivery) -> (&'static str, usize) {
    let payload = delivery
        .payload
        .as_deref()
        .and_then(|payload| std::str::from_utf8(payload).ok());
    let said = payload.and_then(|payload| {
        let (key, number) = payload.split_once('-')?;
        let key = KEYS.into_iter().find(|of| *of == key)?;
        Some((key, number.parse().ok()?))
    });
    said.expect("a delivery has the payload of its message")
}
