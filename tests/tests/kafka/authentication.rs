//! Authentication and authorization: wrong passwords, missing permissions, wrong protocols. Health has the broker's
//! error and what to do.

use std::sync::OnceLock;

use inbox_runtime::{BrokerError, InboxHandle, Kafka, Message};
use inbox_tests::{
    KafkaCluster, Order, SqliteFile, TestBroker, TestDatabase, eventually,
    process::{Mode, WorkerCommand},
    servers::{
        acl::{Operation, Resource, grant, revoke},
        kafka::{self, ADMIN, USER},
    },
};

use super::{KafkaWorld, stop, wait_for_reason, world_on};

const WORKER: &str = env!("CARGO_BIN_EXE_worker");

/// The server with users that these tests share.
pub(crate) fn server() -> &'static kafka::Kafka {
    static SERVER: OnceLock<kafka::Kafka> = OnceLock::new();
    SERVER.get_or_init(|| kafka::Kafka::start_secure().unwrap_or_else(|error| panic!("{error}")))
}

/// A client with a user name and a password.
pub(crate) fn login((user, password): (&str, &str)) -> Kafka {
    Kafka::new(server().sasl_brokers())
        .property("security.protocol", "sasl_plaintext")
        .property("sasl.mechanism", "PLAIN")
        .property("sasl.username", user)
        .property("sasl.password", password)
}

/// A world whose inbox uses that client, with a topic.
pub(crate) async fn world_of(client: impl FnOnce() -> Kafka + Send + 'static) -> KafkaWorld {
    let cluster = tokio::task::spawn_blocking(move || {
        KafkaCluster::with(&server().brokers(), |_| {
            let quick = [
                ("topic.metadata.refresh.interval.ms", "300"),
                // A failed publish returns soon.
                ("message.timeout.ms", "6000"),
                ("topic.metadata.propagation.max.ms", "1000"),
            ];
            quick
                .iter()
                .fold(client(), |client, (name, value)| client.property(name, value))
        })
    });
    let world = world_on::<SqliteFile>(cluster.await.expect("a server")).await;
    world.broker.create_topic("order.created", 1).await;
    world
}

/// The full name of a topic or a group.
fn full(world: &KafkaWorld, name: &str) -> String {
    format!("{}{name}", world.broker.prefix())
}

async fn spawn(world: &KafkaWorld) -> InboxHandle {
    world.builder(&["billing"]).spawn().await.expect("an inbox")
}

/// The reason in health that has that text.
async fn reason(inbox: &InboxHandle, text: &str) -> String {
    wait_for_reason(inbox, text).await;
    let reasons = inbox.health().reasons;
    let found = reasons.iter().find(|reason| reason.contains(text));
    found.unwrap_or_else(|| panic!("it was cleared: {reasons:?}")).clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g55_a_wrong_password_is_the_reason_in_health_and_in_the_error() {
    let world = world_of(|| login((USER.0, "the-canary"))).await;
    let inbox = spawn(&world).await;
    let reason = reason(&inbox, "Invalid username or password").await;
    assert!(reason.contains("INBOX_KAFKA_SASL_PASSWORD"), "{reason}");
    assert!(!inbox.health().ready);
    let error = world
        .broker
        .connect()
        .publish(Message::new("order.created", "{}"))
        .await;
    let error = error.expect_err("a wrong password");
    assert!(matches!(error, BrokerError::Unavailable { .. }), "{error:?}");
    let error = format!("{error:?} {error}");
    assert!(error.contains("Invalid username or password"), "{error}");
    let health = format!("{:?}", inbox.health());
    stop(inbox).await;
    for text in [reason, error, health, format!("{:?}", world.broker.connect())] {
        assert!(!text.contains("canary"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g55_a_client_without_sasl_learns_the_protocol() {
    let world = world_of(|| Kafka::new(server().sasl_brokers())).await;
    let inbox = spawn(&world).await;
    let reason = reason(&inbox, "security.protocol").await;
    assert!(
        reason.contains("INBOX_KAFKA_SECURITY_PROTOCOL") && !inbox.health().ready,
        "{reason}"
    );
    stop(inbox).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g55_missing_permissions_are_named_and_granting_them_helps() {
    let world = world_of(|| login(USER)).await;
    let order = Order::new("o").to("order.created").id("m1");
    world.broker.publish_to(order, 0).await;
    let (topic, group) = (full(&world, "order.created"), full(&world, "billing"));
    let port = server().port();
    let inbox = spawn(&world).await;
    let reason = reason(&inbox, "Group authorization failed").await;
    assert!(reason.contains("READ on the group"), "{reason}");
    grant(port, USER.0, Resource::Group(&group), Operation::Read);
    let reason = self::reason(&inbox, "Topic authorization failed").await;
    assert!(
        reason.contains(&topic) && reason.contains("READ on the topic"),
        "{reason}"
    );
    // The topic may be described, but not read.
    grant(port, USER.0, Resource::Topic(&topic), Operation::Describe);
    let reason = self::reason(&inbox, &format!("{topic}:0 waits: ")).await;
    assert!(
        reason.contains("Topic authorization failed") && reason.contains("READ on the topic"),
        "{reason}"
    );
    assert!(!inbox.health().ready);
    grant(port, USER.0, Resource::Topic(&topic), Operation::Read);
    eventually("m1 is handled", async || world.probe.runs("billing", "m1") == 1).await;
    eventually("it is ready", async || inbox.health().ready).await;
    // The permission is revoked.
    revoke(port, USER.0, Resource::Topic(&topic), Operation::Read);
    let order = Order::new("o").to("order.created").id("m2");
    world.broker.publish_to(order, 0).await;
    wait_for_reason(&inbox, "Topic authorization failed").await;
    stop(inbox).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g52_publishing_without_permission_is_refused() {
    let world = world_of(|| login(USER)).await;
    world.broker.create_topic("order.paid", 1).await;
    let (topic, other) = (full(&world, "order.created"), full(&world, "order.paid"));
    let port = server().port();
    let kafka = world.broker.connect();
    let publish = async || kafka.publish(Message::new("order.created", "{}")).await;
    // The topic may not be described.
    let error = publish().await.expect_err("no permission");
    assert!(matches!(error, BrokerError::Denied { .. }), "{error:?}");
    // It may be described, but without WRITE on any topic there is no idempotent producer.
    grant(port, USER.0, Resource::Topic(&topic), Operation::Describe);
    eventually(
        "the error names the missing permission",
        async || matches!(publish().await, Err(error) if error.to_string().contains("WRITE")),
    )
    .await;
    // A permission for another topic.
    grant(port, USER.0, Resource::Topic(&other), Operation::Write);
    eventually("the other topic can be written to", async || {
        kafka.publish(Message::new("order.paid", "{}")).await.is_ok()
    })
    .await;
    let error = publish().await.expect_err("no permission");
    assert!(matches!(error, BrokerError::Denied { .. }), "{error:?}");
    assert!(error.to_string().contains(&topic), "{error}");
    // A refused message doesn't affect others.
    kafka
        .publish(Message::new("order.paid", "{}"))
        .await
        .expect("published");
    grant(port, USER.0, Resource::Topic(&topic), Operation::Write);
    eventually("it can be written to", async || publish().await.is_ok()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_with_all_permissions_is_served() {
    let world = world_of(|| login(ADMIN)).await;
    let inbox = spawn(&world).await;
    world.publish("m1").await;
    eventually("m1 is settled", || world.settled("billing")).await;
    assert!(inbox.health().ready, "{:?}", inbox.health());
    stop(inbox).await;
    world.assert_done("billing", "m1").await;
}

/// With librdkafka's full debug log and the inbox's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g54_the_log_never_has_the_password() {
    let database = SqliteFile::fresh().await;
    let broker = tokio::task::spawn_blocking(|| format!("kafka://{}", server().sasl_brokers()));
    let broker = broker.await.expect("a server");
    let mut worker = WorkerCommand::new(WORKER, Mode::Run, &broker, &database.url(), "billing")
        .env("INBOX_TEST_HANDLERS", SqliteFile::HANDLERS)
        .env("INBOX_KAFKA_SECURITY_PROTOCOL", "sasl_plaintext")
        .env("INBOX_KAFKA_SASL_MECHANISM", "PLAIN")
        .env("INBOX_KAFKA_SASL_USERNAME", USER.0)
        .env("INBOX_KAFKA_SASL_PASSWORD", "the-canary")
        .env("INBOX_KAFKA_DEBUG", "all")
        .env("RUST_LOG", "trace")
        .start();
    worker.says("ready").await;
    worker.logs("Invalid username or password").await;
    let ended = worker.stop().await;
    let debug = ended.log.iter().filter(|line| line.contains("librdkafka")).count();
    assert!(debug > 20, "librdkafka logs too little: {:#?}", ended.log);
    let leaks: Vec<_> = ended.log.iter().filter(|line| line.contains("canary")).collect();
    assert_eq!(leaks, [""; 0]);
}
