//! Many messages at once: their order per key, whatever servers do meanwhile, and how many are on their way together.

use std::time::{Duration, Instant};

use inbox_runtime::{Broker, BrokerError, Message, Nats};
use inbox_tests::{
    NatsJetStream, TestBroker, eventually,
    ordered::{Stream, assert_in_order, numbered},
    servers::nats::NatsCluster,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};

use super::{server, world, world_of};

const SUBJECT: &str = "order.created";

fn keys(count: usize) -> Vec<String> {
    (0..count).map(|key| format!("k{key}")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_order_of_each_key_survives_kills_of_the_server() {
    let server = server().await;
    let world = world_of(NatsJetStream::on(&server).await).await;
    let stream = Stream::start(world.broker.connect(), SUBJECT, keys(20));
    for _ in 0..3 {
        stream.goes_on().await;
        server.kill();
        tokio::task::block_in_place(|| server.resume()).expect("the server");
    }
    stream.goes_on().await;
    let (count, failures) = stream.stop().await;
    assert!(failures > 0, "no kill was noticed");
    assert_in_order(&world.broker.connect(), SUBJECT, 20, count).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_order_of_each_key_survives_changes_of_the_leader() {
    let cluster = tokio::task::spawn_blocking(NatsCluster::start).await.expect("it ends");
    let cluster = cluster.expect("a cluster");
    let broker = NatsJetStream::on_cluster(&cluster, json!({})).await;
    let stream = Stream::start(broker.connect(), SUBJECT, keys(20));
    let mut leaders = 0;
    while leaders < 5 {
        stream.goes_on().await;
        let answer = broker.account().api("STREAM.LEADER.STEPDOWN.TEST", Value::Null).await;
        leaders += u32::from(answer["success"] == true);
    }
    stream.goes_on().await;
    let (count, failures) = stream.stop().await;
    println!("{failures} answers were failures");
    assert_in_order(&broker.connect(), SUBJECT, 20, count).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_is_refused_keeps_none_of_its_key_back() {
    let world = world().await;
    let broker = world.broker.connect();
    assert_eq!(broker.max_payload(), None, "nothing is known before the first connect");
    let mut messages: Vec<_> = (0..100).map(|number| numbered(SUBJECT, "k", number)).collect();
    messages[40] = Message::new("order.*", "k 40").key("k");
    messages[50].payload = Some(vec![b'x'; 2_000_000].into());
    let results = broker.publish_all(messages).await;
    for (place, result) in results.iter().enumerate() {
        match result {
            Ok(published) if place != 40 && place != 50 => {
                let seq = place + 1 - usize::from(place > 40) - usize::from(place > 50);
                assert!(
                    published.position.ends_with(&format!(":{seq}")),
                    "{place}: {published:?}"
                );
            }
            Err(BrokerError::Refused { .. }) if place == 40 || place == 50 => {}
            other => panic!("{place}: {other:?}"),
        }
    }
    assert_eq!(broker.max_payload(), Some(1 << 20), "the server's default");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subject_without_a_stream_keeps_only_itself_back() {
    let world = world().await;
    let broker = world.broker.connect();
    let message = |number: u32| match number % 2 {
        0 => numbered(SUBJECT, "k", number / 2),
        _ => numbered("nowhere.at.all", "k", number / 2),
    };
    let results = broker.publish_all((0..100).map(message).collect()).await;
    for (place, result) in results.iter().enumerate() {
        match result {
            Ok(_) if place % 2 == 0 => {}
            Err(BrokerError::NotNow { message, .. }) if place == 1 => {
                assert!(message.contains("no stream"), "{message}");
            }
            Err(BrokerError::NotNow { message, .. }) if place % 2 == 1 => {
                assert!(message.contains("an earlier message"), "{message}");
            }
            other => panic!("{place}: {other:?}"),
        }
    }
    assert_in_order(&broker, SUBJECT, 1, 50).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_more_is_sent_when_the_server_is_gone() {
    let server = server().await;
    let world = world_of(NatsJetStream::on(&server).await).await;
    let broker = world.broker.connect();
    broker.publish(numbered(SUBJECT, "k0", 0)).await.expect("published");
    server.kill();
    let messages = keys(1000).iter().map(|key| numbered(SUBJECT, key, 1)).collect();
    let results = broker.publish_all(messages).await;
    assert_eq!(results.len(), 1000);
    for result in results {
        assert!(matches!(result, Err(BrokerError::Unavailable { .. })), "{result:?}");
    }
}

/// Answers publishes as a stream would, when the test says so.
struct Responder(BufReader<TcpStream>);

impl Responder {
    async fn on(port: u16, subject: &str) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).await.expect("the server");
        let mut responder = Self(BufReader::new(stream));
        let hello = format!("CONNECT {{\"verbose\":false,\"headers\":true}}\r\nSUB {subject} 1\r\nPING\r\n");
        responder.0.write_all(hello.as_bytes()).await.expect("sent");
        while responder.line().await != "PONG" {}
        responder
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).await.expect("a line");
        line.trim().to_owned()
    }

    /// The next message: its payload, and where to answer.
    async fn next(&mut self) -> (String, String) {
        loop {
            let line = self.line().await;
            let words: Vec<_> = line.split(' ').collect();
            let (reply, headers, total) = match words[..] {
                ["HMSG", _, _, reply, headers, total] => (reply, headers.parse().expect("a size"), total),
                ["MSG", _, _, reply, total] => (reply, 0, total),
                ["PING"] => {
                    self.0.write_all(b"PONG\r\n").await.expect("sent");
                    continue;
                }
                _ => panic!("{line}"),
            };
            let mut bytes = vec![0; total.parse::<usize>().expect("a size") + 2];
            self.0.read_exact(&mut bytes).await.expect("a message");
            let payload = String::from_utf8_lossy(&bytes[headers..bytes.len() - 2]).into_owned();
            return (payload, reply.to_owned());
        }
    }

    async fn confirm(&mut self, reply: &str) {
        let ack = r#"{"stream":"HELD","seq":1}"#;
        let message = format!("PUB {reply} {}\r\n{ack}\r\n", ack.len());
        self.0.write_all(message.as_bytes()).await.expect("sent");
    }
}

/// The first message of every key is sent before any is confirmed, and the next one of a key when the one before it is, whatever the
/// others do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_do_not_wait_for_each_other() {
    let server = server().await;
    let mut responder = Responder::on(server.port(), "held.>").await;
    let broker = Nats::new(&server.url()).expect("a URL");
    let all = keys(10);
    let messages = (0..3).flat_map(|number| all.iter().map(move |key| numbered("held.a", key, number)));
    let messages = messages.collect();
    let publishing = tokio::spawn(async move { broker.publish_all(messages).await });
    let mut held = Vec::new();
    for key in &all {
        let (payload, reply) = responder.next().await;
        assert_eq!(payload, format!("{key} 0"));
        held.push(reply);
    }
    for number in [1, 2] {
        for (key, held) in all.iter().zip(&mut held).rev() {
            responder.confirm(held).await;
            let (payload, reply) = responder.next().await;
            assert_eq!(
                payload,
                format!("{key} {number}"),
                "it is sent when the one before it is confirmed"
            );
            *held = reply;
        }
    }
    for reply in &held {
        responder.confirm(reply).await;
    }
    let results = publishing.await.expect("it ends");
    assert!(results.len() == 30 && results.iter().all(Result::is_ok), "{results:?}");
}

/// No extra request: each message, its confirmation, and one question for the stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn publishing_many_takes_one_request_for_each() {
    let server = server().await;
    let world = world_of(NatsJetStream::on(&server).await).await;
    let broker = world.broker.connect();
    let received = async || {
        super::monitor(&server, "/varz").await["in_msgs"]
            .as_u64()
            .expect("a number")
    };
    let before = received().await;
    let messages = keys(1000).iter().map(|key| numbered(SUBJECT, key, 0)).collect();
    assert!(broker.publish_all(messages).await.iter().all(Result::is_ok));
    let received = received().await - before;
    assert!((1001..1010).contains(&received), "{received} messages");
}

/// Dropped half-way, again and again: what is stored is in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_are_dropped_leave_no_gap() {
    let world = world().await;
    let broker = world.broker.connect();
    let messages: Vec<_> = (0..200)
        .flat_map(|number| keys(4).into_iter().map(move |key| numbered(SUBJECT, &key, number)))
        .collect();
    for micros in [100, 1000, 5000, 20_000] {
        let call = broker.publish_all(messages.clone());
        let _ = tokio::time::timeout(Duration::from_micros(micros), call).await;
    }
    eventually("all are published", async || {
        broker.publish_all(messages.clone()).await.iter().all(Result::is_ok)
    })
    .await;
    assert_in_order(&broker, SUBJECT, 4, 200).await;
}

/// How fast it is, for whoever asks: `cargo test --test nats -- --ignored --nocapture messages_per_second`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn messages_per_second_of_distinct_keys() {
    const COUNT: u32 = 20_000;
    let server = server().await;
    let world = world_of(NatsJetStream::on(&server).await).await;
    let broker = world.broker.connect();
    broker.publish(numbered(SUBJECT, "first", 0)).await.expect("published");
    for keys in [COUNT, 1000, 100, 10, 1] {
        let message = |number: u32| numbered(SUBJECT, &format!("k{}", number % keys), number / keys);
        let messages = (0..COUNT).map(message).collect();
        let begun = Instant::now();
        assert!(broker.publish_all(messages).await.iter().all(Result::is_ok));
        println!(
            "{keys} keys: {:.0} messages/s",
            f64::from(COUNT) / begun.elapsed().as_secs_f64()
        );
    }
}
