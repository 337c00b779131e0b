//! Many messages at once: their order per key, whatever brokers do meanwhile, and what a refusal does to the others.

use std::time::Duration;

use inbox_runtime::{Broker, BrokerError, Kafka, Message};
use inbox_tests::{
    KafkaCluster, SqliteFile, TestBroker, eventually,
    ordered::{Stream, assert_in_order, numbered, publish_until_done},
    servers::kafka::{Kafka as Server, own},
};

use super::{KafkaWorld, world, world_on};

const SUBJECT: &str = "order.created";

fn keys(count: usize) -> Vec<String> {
    (0..count).map(|key| format!("k{key}")).collect()
}

/// Messages 0 to `count` of each key.
fn messages(keys: &[String], count: u32) -> Vec<Message> {
    let of = |number| keys.iter().map(move |key| numbered(SUBJECT, key, number));
    (0..count).flat_map(of).collect()
}

/// Kills the broker for longer than a message may take, and for less.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_order_of_each_key_survives_kills_of_the_broker() {
    let server = tokio::task::spawn_blocking(own).await.expect("a server");
    let set = |kafka: Kafka| kafka.property("message.timeout.ms", "2000");
    let world = world_on::<SqliteFile>(KafkaCluster::with(&server.brokers(), set)).await;
    world.broker.create_topic(SUBJECT, 4).await;
    let stream = Stream::start(world.broker.connect(), SUBJECT, keys(20));
    for pause in [0, 3, 0] {
        stream.goes_on().await;
        server.kill();
        tokio::time::sleep(Duration::from_secs(pause)).await;
        tokio::task::block_in_place(|| server.resume()).expect("the server");
    }
    stream.goes_on().await;
    let (count, failures) = stream.stop().await;
    assert!(failures > 0, "no kill was noticed");
    assert_in_order(&world.broker.connect(), SUBJECT, 20, count).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_stand_in_the_order_of_the_messages() {
    let world = KafkaWorld::new().await;
    let broker = world.broker.connect();
    for round in 0..2 {
        let results = broker.publish_all(messages(&keys(5), 100)).await;
        for (place, result) in results.iter().enumerate() {
            let position = &result.as_ref().expect("published").position;
            assert!(position.starts_with(world.broker.prefix()), "{position}");
            let offset: usize = position
                .rsplit(':')
                .next()
                .expect("an offset")
                .parse()
                .expect("a number");
            // A key's first message is sent before the others.
            assert_eq!(offset / 500, round, "{place}: {position}");
            assert_eq!(offset % 500 < 5, place < 5, "{place}: {position}");
        }
    }
    assert_in_order(&broker, SUBJECT, 5, 100).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_without_a_key_are_in_order_on_one_partition() {
    let world = KafkaWorld::new().await;
    let broker = world.broker.connect();
    let keyless = |number| {
        let mut message = numbered(SUBJECT, "none", number);
        message.key = None;
        message
    };
    let results = broker.publish_all((0..500).map(keyless).collect()).await;
    for (place, result) in results.iter().enumerate() {
        let position = &result.as_ref().expect("published").position;
        assert!(position.ends_with(&format!(":0:{place}")), "{place}: {position}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_has_the_partition_that_publish_gives_it() {
    let world = world(|kafka| kafka).await;
    world.broker.create_topic(SUBJECT, 8).await;
    let broker = world.broker.connect();
    let keys = keys(40);
    let together = broker.publish_all(messages(&keys, 1)).await;
    for (key, together) in keys.iter().zip(together) {
        let alone = broker.publish(numbered(SUBJECT, key, 1)).await.expect("published");
        let partition = |position: &str| position.rsplit(':').nth(1).expect("a partition").to_owned();
        assert_eq!(
            partition(&together.expect("published").position),
            partition(&alone.position),
            "{key}"
        );
    }
}

/// What the producer refuses by itself, and what the brokers refuse: a batch with others in it. The producer is at its end then, and
/// the next call has another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_is_refused_keeps_none_back_and_no_other_is_refused_with_it() {
    let world = world(|kafka| kafka).await;
    let settings = [("max.message.bytes", "20000")];
    world.broker.create_topic_with(SUBJECT, 1, &settings).await;
    let broker = world.broker.connect();
    let mut batch = messages(&keys(5), 40);
    batch[40].subject = "order.*".to_owned();
    for (place, size) in [(50, 2_000_000), (60, 30_000), (61, 30_000), (120, 30_000)] {
        batch[place].payload = Some(vec![b'x'; size].into());
    }
    let refused = [40, 50, 60, 61, 120];
    for round in 0..2 {
        let results = broker.publish_all(batch.clone()).await;
        for (place, result) in results.iter().enumerate() {
            match result {
                Ok(_) if !refused.contains(&place) => {}
                Err(BrokerError::Refused { .. }) if refused.contains(&place) => {}
                other => panic!("{round} {place}: {other:?}"),
            }
        }
    }
    let later = (40..50).map(|number| numbered(SUBJECT, "later", number - 40)).collect();
    assert!(broker.publish_all(later).await.iter().all(Result::is_ok));
    assert_eq!(broker.max_payload(), Some(1_000_000), "librdkafka's default");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_does_not_exist_keeps_only_itself_back() {
    let world = world(|kafka| kafka.property("topic.metadata.propagation.max.ms", "1000")).await;
    world.broker.create_topic(SUBJECT, 1).await;
    let broker = world.broker.connect();
    let message = |number: u32| match number % 2 {
        0 => numbered(SUBJECT, "k", number / 2),
        _ => numbered("not.there", "k", number / 2),
    };
    let all: Vec<_> = (0..100).map(message).collect();
    let results = broker.publish_all(all.clone()).await;
    for (place, result) in results.iter().enumerate() {
        match result {
            Ok(_) if place % 2 == 0 => {}
            Err(BrokerError::NotNow { message, .. }) if place == 1 => {
                assert!(message.contains("doesn't exist"), "{message}");
            }
            Err(BrokerError::NotNow { message, .. }) if place % 2 == 1 => {
                assert!(message.contains("an earlier message"), "{message}");
            }
            other => panic!("{place}: {other:?}"),
        }
    }
    world.broker.create_topic("not.there", 1).await;
    let missing: Vec<_> = all
        .into_iter()
        .filter(|message| message.subject == "not.there")
        .collect();
    let failures = publish_until_done(&broker, missing).await;
    println!("{failures} failures until the topic was found");
    assert_in_order(&broker, SUBJECT, 1, 50).await;
    assert_in_order(&broker, "not.there", 1, 50).await;
}

/// One of three brokers is killed: the keys of its partitions wait, the others go on. Then brokers that have copies of each other's
/// partitions are killed in turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_order_of_each_key_survives_kills_of_one_broker_of_three() {
    let cluster = tokio::task::spawn_blocking(Server::start_three).await.expect("it ends");
    let cluster = cluster.expect("three servers");
    let brokers: Vec<_> = cluster.iter().map(Server::brokers).collect();
    let set = |kafka: Kafka| kafka.property("message.timeout.ms", "3000");
    let world = world_on::<SqliteFile>(KafkaCluster::with(&brokers.join(","), set)).await;
    world.broker.create_topic(SUBJECT, 6).await;
    let settings = [("min.insync.replicas", "2")];
    world
        .broker
        .create_replicated_topic("order.copied", 4, 3, &settings)
        .await;
    let broker = world.broker.connect();
    let keys = keys(40);
    assert!(broker.publish_all(messages(&keys, 1)).await.iter().all(Result::is_ok));

    let leaders = world.broker.leaders(SUBJECT).await.expect("leaders");
    let victim = &cluster[usize::try_from(leaders[0] - 1).expect("a node")];
    victim.kill();
    let later: Vec<_> = messages(&keys, 3).split_off(keys.len());
    let results = broker.publish_all(later.clone()).await;
    let waiting: Vec<_> = results.iter().map(Result::is_err).collect();
    assert_eq!(
        waiting[..40],
        waiting[40..],
        "the second message of a key waits with the first"
    );
    assert!(waiting.contains(&true) && waiting.contains(&false), "{waiting:?}");
    for error in results.into_iter().filter_map(Result::err) {
        assert!(matches!(error, BrokerError::NotNow { .. }), "{error}");
    }
    tokio::task::block_in_place(|| victim.resume()).expect("restarted");
    let waiting = later
        .into_iter()
        .zip(waiting)
        .filter_map(|(message, waits)| waits.then_some(message));
    publish_until_done(&broker, waiting.collect()).await;
    assert_in_order(&broker, SUBJECT, 40, 3).await;

    let stream = Stream::start(broker.clone(), "order.copied", keys);
    for server in &cluster {
        stream.goes_on().await;
        server.kill();
        tokio::task::block_in_place(|| server.resume()).expect("restarted");
        eventually("it has caught up", async || {
            world.broker.in_sync("order.copied").await == Some(3)
        })
        .await;
    }
    let (count, failures) = stream.stop().await;
    println!("{failures} answers were failures");
    assert_in_order(&broker, "order.copied", 40, count).await;
}

/// Dropped half-way, again and again: what is stored is in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_are_dropped_leave_no_gap() {
    let world = KafkaWorld::new().await;
    let broker = world.broker.connect();
    let all = messages(&keys(4), 200);
    for millis in [1, 5, 10, 20, 40, 80] {
        let call = broker.publish_all(all.clone());
        let _ = tokio::time::timeout(Duration::from_millis(millis), call).await;
    }
    publish_until_done(&broker, all).await;
    assert_in_order(&broker, SUBJECT, 4, 200).await;
}

/// How fast it is, for whoever asks: `cargo test --test kafka -- --ignored --nocapture messages_per_second`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn messages_per_second_of_distinct_keys() {
    const COUNT: u32 = 20_000;
    let world = world(|kafka| kafka).await;
    world.broker.create_topic(SUBJECT, 8).await;
    let broker = world.broker.connect();
    broker.publish_all(messages(&keys(100), 1)).await;
    for keys in [COUNT, 1000, 10, 1] {
        for per_call in [COUNT, 500] {
            let message = |number: u32| numbered(SUBJECT, &format!("k{}", number % keys), number / keys);
            let begun = std::time::Instant::now();
            for first in (0..COUNT).step_by(per_call as usize) {
                let messages = (first..first + per_call).map(message).collect();
                assert!(broker.publish_all(messages).await.iter().all(Result::is_ok));
            }
            let rate = f64::from(COUNT) / begun.elapsed().as_secs_f64();
            println!("{keys} keys, {per_call} in a call: {rate:.0} messages/s");
        }
    }
}
