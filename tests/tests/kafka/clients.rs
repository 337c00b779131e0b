//! Clients: errors of publishing, the client id, logs, and invalid properties.

use std::time::Duration;

use inbox_runtime::{BrokerError, Kafka, Message};
use inbox_tests::{
    KafkaCluster, SqliteFile, TestBroker, TestDatabase, eventually,
    process::{Mode, WorkerCommand},
    servers::{CLOSED_PORT, kafka::Shared},
};
use rdkafka::{
    ClientConfig,
    consumer::{BaseConsumer, Consumer},
    groups::GroupInfo,
};

use super::{KafkaWorld, stop, wait_for_reason, world, world_on};

/// All but the warnings about the tests' own variables.
const LOG: &str = "info,inbox_runtime::config=off";
const WORKER: &str = env!("CARGO_BIN_EXE_worker");

/// A world in which a failed publish returns soon.
async fn impatient() -> KafkaWorld {
    world(|kafka| {
        kafka
            .property("message.timeout.ms", "5000")
            .property("topic.metadata.propagation.max.ms", "1000")
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g52_errors_of_publish_are_of_three_kinds() {
    let world = impatient().await;
    let kafka = world.broker.connect();
    world.broker.create_topic("order.created", 1).await;
    world
        .broker
        .create_topic_with("small", 1, &[("max.message.bytes", "1000")])
        .await;
    world
        .broker
        .create_topic_with("compacted", 1, &[("cleanup.policy", "compact")])
        .await;
    for (subject, size, expected) in [
        // Larger than the producer allows.
        ("order.created", 2_000_000, "max.message.bytes"),
        // Larger than the topic allows.
        ("small", 5_000, "max.message.bytes"),
        ("compacted", 1, "key"),
        ("order/created", 1, "order/created"),
        ("order.créé", 1, "order.cr"),
        (&"a".repeat(250), 1, "249"),
        ("order.*", 1, "order.*"),
        ("", 1, "subject"),
    ] {
        let error = kafka.publish(Message::new(subject, "x".repeat(size))).await;
        let error = error.expect_err(subject);
        assert!(matches!(error, BrokerError::Refused { .. }), "{subject}: {error:?}");
        assert!(error.to_string().contains(expected), "{subject}: {error}");
    }
    let error = kafka.publish(Message::new("missing", "{}")).await;
    let error = error.expect_err("no topic");
    assert!(matches!(error, BrokerError::NotNow { .. }), "{error:?}");
    assert!(error.to_string().contains("missing`: it doesn't exist"), "{error}");
    // The producer still works after that.
    let published = kafka.publish(Message::new("compacted", "{}").key("k")).await;
    published.expect("published");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g52_without_brokers_publishing_says_why() {
    let kafka = Kafka::new(format!("127.0.0.1:{CLOSED_PORT}")).property("message.timeout.ms", "2000");
    let error = kafka
        .publish(Message::new("orders", "{}"))
        .await
        .expect_err("nobody is there");
    assert!(matches!(error, BrokerError::Unavailable { .. }), "{error:?}");
    let source = std::error::Error::source(&error).expect("a cause").to_string();
    assert!(source.contains("refused"), "{source}");
}

/// A topic that is created while a publish waits for it, or after it has failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g52_a_topic_that_is_created_later_can_be_published_to() {
    let world = impatient().await;
    let kafka = world.broker.connect();
    let error = kafka.publish(Message::new("late", "{}")).await.expect_err("no topic");
    assert!(matches!(error, BrokerError::NotNow { .. }), "{error:?}");
    world.broker.create_topic("late", 1).await;
    eventually("it can be published to", async || {
        kafka.publish(Message::new("late", "{}")).await.is_ok()
    })
    .await;
}

/// Another member of the group, with another assignment strategy, as other libraries have.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g71_a_group_with_another_strategy_is_named_with_the_setting() {
    let world = KafkaWorld::new().await;
    let group = format!("{}billing", world.broker.prefix());
    let topic = format!("{}order.created", world.broker.prefix());
    let (joined, join) = std::sync::mpsc::channel::<()>();
    let (leave, left) = std::sync::mpsc::channel::<()>();
    let brokers = Shared::get().brokers();
    let other = std::thread::spawn(move || {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", brokers)
            .set("group.id", group)
            .set("partition.assignment.strategy", "cooperative-sticky")
            .create()
            .expect("a consumer");
        consumer.subscribe(&[&topic]).expect("a subscription");
        while left.try_recv().is_err() {
            consumer.poll(Duration::from_millis(100));
            if consumer.assignment().is_ok_and(|assignment| assignment.count() > 0) {
                let _ = joined.send(());
            }
        }
    });
    tokio::task::spawn_blocking(move || join.recv_timeout(Duration::from_secs(60)).expect("joined"))
        .await
        .expect("joined");
    let inbox = world.builder(&["billing"]).spawn().await.expect("an inbox");
    wait_for_reason(&inbox, "Inconsistent group protocol").await;
    wait_for_reason(&inbox, "INBOX_KAFKA_PARTITION_ASSIGNMENT_STRATEGY").await;
    assert!(!inbox.health().ready);
    leave.send(()).expect("a receiver");
    tokio::task::spawn_blocking(move || other.join())
        .await
        .expect("joined")
        .expect("no panic");
    world.publish("m1").await;
    eventually("m1 is settled once the other has left", || world.settled("billing")).await;
    eventually("it is ready", async || inbox.health().ready).await;
    stop(inbox).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g55_the_brokers_know_a_client_by_its_group_and_host() {
    let world = KafkaWorld::new().await;
    let inbox = world.builder(&["billing"]).spawn().await.expect("an inbox");
    world.publish("m1").await;
    eventually("m1 is settled", || world.settled("billing")).await;
    let group = format!("{}billing", world.broker.prefix());
    let ids = tokio::task::spawn_blocking({
        let group = group.clone();
        move || {
            let client: BaseConsumer = ClientConfig::new()
                .set("bootstrap.servers", Shared::get().brokers())
                .create()
                .expect("a consumer");
            let groups = client.fetch_group_list(Some(&group), Duration::from_secs(20));
            let groups = groups.expect("the group");
            let members = groups.groups().iter().flat_map(GroupInfo::members);
            members.map(|member| member.client_id().to_owned()).collect::<Vec<_>>()
        }
    });
    let ids = ids.await.expect("an answer");
    assert!(
        ids.len() == 1 && ids[0].starts_with(&format!("{group}@")) && ids[0].len() > group.len() + 1,
        "{ids:?}"
    );
    stop(inbox).await;
}

/// The warnings and errors of a log.
fn warnings(log: &[String]) -> Vec<&String> {
    log.iter()
        .filter(|line| line.contains("WARN") || line.contains("ERROR"))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g62_a_clean_stop_logs_no_warning() {
    let world = KafkaWorld::new().await;
    world.publish("m1").await;
    let mut worker = WorkerCommand::on(WORKER, Mode::Run, &world, "billing")
        .env("RUST_LOG", LOG)
        .start();
    worker.says("run billing m1").await;
    eventually("m1 is settled", || world.settled("billing")).await;
    let ended = worker.stop().await;
    assert_eq!(warnings(&ended.log), [""; 0], "{:#?}", ended.log);
}

/// An outage logs one line when it begins and one when it ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g55_an_outage_logs_one_line() {
    let database = SqliteFile::fresh().await;
    let broker = format!("kafka://127.0.0.1:{CLOSED_PORT}");
    let mut worker = WorkerCommand::new(WORKER, Mode::Run, &broker, &database.url(), "billing")
        .env("INBOX_TEST_HANDLERS", SqliteFile::HANDLERS)
        .env("INBOX_KAFKA_RECONNECT_BACKOFF_MAX_MS", "100")
        .env("RUST_LOG", LOG)
        .start();
    worker.says("ready").await;
    worker.logs("Kafka doesn't answer").await;
    // Some twenty reconnects.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let ended = worker.stop().await;
    let outages: Vec<_> = warnings(&ended.log)
        .into_iter()
        .filter(|line| line.contains("Kafka doesn't answer"))
        .collect();
    assert!(outages.len() == 1 && outages[0].contains("refused"), "{outages:#?}");
    assert!(warnings(&ended.log).len() <= 4, "{:#?}", ended.log);
    let own = ended.log.iter().filter(|line| line.contains("librdkafka")).count();
    assert!(own <= 2, "{:#?}", ended.log);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g80_invalid_values_are_start_errors_with_their_variables() {
    let database = SqliteFile::fresh().await;
    let worker = WorkerCommand::new(WORKER, Mode::Run, "kafka://127.0.0.1:1", &database.url(), "billing")
        .env("INBOX_TEST_HANDLERS", SqliteFile::HANDLERS)
        .env("INBOX_KAFKA_SESSION_TIMEOUT_MS", "6s")
        .env("INBOX_KAFKA_SESION_TIMEOUT_MS", "6000")
        .env("INBOX_KAFKA_DELIVERY_REPORT_ONLY_ERROR", "true")
        .env("INBOX_KAFKA_SASL_PASWORD", "the-canary")
        .start();
    let ended = worker.end().await;
    assert!(!ended.status.success());
    let log = ended.log.join("\n");
    for expected in [
        "INBOX_KAFKA_SESSION_TIMEOUT_MS: ",
        "6000",
        "INBOX_KAFKA_SESION_TIMEOUT_MS: ",
        "INBOX_KAFKA_DELIVERY_REPORT_ONLY_ERROR: ",
        "INBOX_KAFKA_SASL_PASWORD: ",
        "the nearest is `sasl.password`",
    ] {
        assert!(log.contains(expected), "{expected}: {log}");
    }
    assert!(!log.contains("canary"), "{log}");
    assert!(!log.contains("INBOX_BROKER_URL"), "the URL is not to blame: {log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g80_properties_of_kafka_with_another_broker_are_warned_of() {
    let database = SqliteFile::fresh().await;
    let mut worker = WorkerCommand::new(WORKER, Mode::Run, "embedded:memory", &database.url(), "billing")
        .env("INBOX_TEST_HANDLERS", SqliteFile::HANDLERS)
        .env("INBOX_KAFKA_SESSION_TIMEOUT_MS", "6000")
        .start();
    worker.says("ready").await;
    worker.logs("INBOX_KAFKA_SESSION_TIMEOUT_MS").await;
    worker.stop().await;
}

/// A misspelt host name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g55_an_unknown_host_is_named() {
    let cluster = tokio::task::spawn_blocking(|| {
        KafkaCluster::with(&Shared::get().brokers(), |_| Kafka::new("no-such-host.invalid:9092"))
    });
    let world = world_on::<SqliteFile>(cluster.await.expect("a server")).await;
    let inbox = world.builder(&["billing"]).spawn().await.expect("an inbox");
    wait_for_reason(&inbox, "no-such-host.invalid").await;
    wait_for_reason(&inbox, "no broker answers: ").await;
    stop(inbox).await;
}
