//! With exactly the permissions that the guide lists, with fewer, and with prefixes.

use std::time::{Duration, Instant};

use inbox_runtime::{Broker, BrokerError, Message, Nats, Source, Subscription};
use inbox_tests::{JetStream, NatsJetStream, eventually, in_time, servers::nats::Nats as Server};
use serde_json::json;

use super::{World, assert_all_done, effects, publish, ready, world_of};

/// Those in the guide, for the group `billing`, the subject `order.created` and the stream TEST.
const LEAST: [&str; 5] = [
    "$JS.API.STREAM.INFO.TEST",
    "$JS.API.CONSUMER.INFO.TEST.billing@order,created",
    "$JS.API.CONSUMER.CREATE.TEST.billing@order,created",
    "$JS.API.CONSUMER.MSG.NEXT.TEST.billing@order,created",
    "$JS.ACK.TEST.billing@order,created.>",
];
/// Also needed unless the handler names the stream.
const NAMES: &str = "$JS.API.STREAM.NAMES";

fn quoted(subjects: &[&str]) -> String {
    let quoted: Vec<_> = subjects.iter().map(|subject| format!("\"{subject}\"")).collect();
    quoted.join(", ")
}

fn user(name: &str, publish: &[&str], subscribe: &[&str]) -> String {
    format!(
        "{{ user: {name}, password: {name}, permissions: {{ publish: [{}], subscribe: [{}] }} }}",
        quoted(publish),
        quoted(subscribe)
    )
}

/// A server with a user without restrictions, and these.
async fn server_of(users: &[String]) -> Server {
    let config = format!(
        "authorization {{ users: [{{ user: admin, password: admin }}, {}] }}",
        users.join(", ")
    );
    let started = tokio::task::spawn_blocking(move || Server::start_with(&config)).await;
    started.expect("it ends").expect("a NATS server")
}

async fn world_with(server: &Server) -> World {
    let admin = JetStream::on(server).as_user("admin");
    world_of(NatsJetStream::of(admin).await).await
}

fn url(server: &Server, user: &str, more: &str) -> String {
    format!("nats://{user}:{user}@127.0.0.1:{}{more}", server.port())
}

fn broker(server: &Server, user: &str, more: &str) -> Nats {
    Nats::new(&url(server, user, more)).expect("a URL")
}

#[test]
fn g59_the_guide_lists_the_tested_permissions() {
    let page = include_str!("../../../inbox-runtime/docs/nats.md");
    for right in LEAST.iter().chain([&NAMES]) {
        let line = format!("| publish | `{}` |", right.replace(".TEST", ".ORDERS"));
        assert!(page.contains(&line), "{line}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g59_the_least_permissions_suffice() {
    let mut publish_permissions = LEAST.to_vec();
    publish_permissions.push(NAMES);
    let server = server_of(&[user("least", &publish_permissions, &["_INBOX_least.>"])]).await;
    let world = world_with(&server).await;
    publish(&world, 1, 3).await;
    let broker = broker(&server, "least", "?inbox_prefix=_INBOX_least");
    let builder = || {
        world
            .builder(&["billing"])
            .broker(broker.clone())
            .ack_wait(Duration::from_secs(1))
    };
    let inbox = builder().spawn().await.expect("an inbox");
    effects(&world, 3).await;
    eventually("settled", || world.settled("billing")).await;
    ready(&inbox, true).await;
    // Recreating the durable and reconnecting need no more.
    let account = world.broker.account();
    account
        .api("CONSUMER.DELETE.TEST.billing@order,created", serde_json::Value::Null)
        .await;
    publish(&world, 4, 5).await;
    effects(&world, 5).await;
    server.kill();
    tokio::task::block_in_place(|| server.resume()).expect("the server");
    publish(&world, 6, 7).await;
    effects(&world, 7).await;
    ready(&inbox, true).await;
    eventually("no lag", || async { inbox.health().handlers[0].lag == Some(0) }).await;
    super::stop(inbox).await;
    assert_all_done(&world, 7).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g59_denied_optional_requests_cost_no_time() {
    let mut publish_permissions = LEAST.to_vec();
    publish_permissions.push(NAMES);
    let server = server_of(&[user("least", &publish_permissions, &["_INBOX.>"])]).await;
    let world = world_with(&server).await;
    publish(&world, 1, 1).await;
    in_time(Duration::from_secs(4), || async {
        let begun = Instant::now();
        let subscription = Subscription::new("billing", "order.created");
        let broker = broker(&server, "least", "");
        let mut source = broker
            .subscribe(vec![subscription])
            .await
            .expect("subscribed")
            .remove(0);
        assert!(source.status().reasons().is_empty(), "{:?}", source.status());
        source.pull(1, Duration::ZERO).await.expect("the broker");
        begun.elapsed()
    })
    .await;
}

/// Each one is named in health, with what to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g59_a_missing_permission_is_named() {
    let mut rights = LEAST.to_vec();
    rights.push(NAMES);
    let without = |missing: &str| -> Vec<&str> { rights.iter().copied().filter(|right| *right != missing).collect() };
    let needed: Vec<_> = rights.iter().filter(|right| !right.starts_with("$JS.ACK")).collect();
    let mut users: Vec<_> = needed
        .iter()
        .enumerate()
        .map(|(number, missing)| user(&format!("u{number}"), &without(missing), &["_INBOX.>"]))
        .collect();
    users.push(user("deaf", &rights, &["nothing"]));
    let server = server_of(&users).await;
    let world = world_with(&server).await;
    let says = async |user: &str, expected: &[&str]| {
        let inbox = world
            .builder(&["billing"])
            .broker(broker(&server, user, ""))
            .spawn()
            .await
            .expect("an inbox");
        eventually(&format!("{user} hears of {expected:?}"), || async {
            let health = inbox.health();
            let said = |reason: &String| expected.iter().all(|expected| reason.contains(expected));
            !health.ready && health.reasons.iter().any(said)
        })
        .await;
        super::stop(inbox).await;
    };
    for (number, missing) in needed.iter().enumerate() {
        // An earlier user has created the durable.
        if missing.contains("CONSUMER.CREATE") {
            let account = world.broker.account();
            account
                .api("CONSUMER.DELETE.TEST.billing@order,created", serde_json::Value::Null)
                .await;
        }
        says(&format!("u{number}"), &["Permissions Violation", missing]).await;
    }
    says("deaf", &["inbox_prefix"]).await;
}

/// And no other. What is denied is refused at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g59_a_publisher_needs_the_permission_for_its_subject() {
    let server = server_of(&[user("shop", &["order.created"], &["_INBOX.>"])]).await;
    let world = world_with(&server).await;
    let broker = broker(&server, "shop", "");
    let published = broker
        .publish(Message::new("order.created", "{}").id("m1"))
        .await
        .expect("published");
    assert!(published.position.starts_with("nats:TEST:"), "{published:?}");
    assert!(published.position.ends_with(":1"), "{published:?}");
    let problem = broker
        .publish(Message::new("order.other", "{}"))
        .await
        .expect_err("denied");
    assert!(matches!(problem, BrokerError::Denied { .. }), "{problem}");
    let text = problem.to_string();
    assert!(
        text.contains("Permissions Violation") && text.contains("order.other"),
        "{text}"
    );
    // The connection is still usable.
    broker
        .publish(Message::new("order.created", "{}").id("m2"))
        .await
        .expect("published");
    drop(world);
}

/// The JetStream API of another account, imported under another prefix.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g59_an_imported_api_has_another_prefix() {
    let config = r#"accounts {
        HUB { jetstream: enabled, users: [{ user: hub, password: hub }], exports: [
            { service: "$JS.API.>", response_type: stream }, { service: "$JS.ACK.>" }, { service: "order.created" },
            { stream: "deliver.>" } ] }
        SHOP { users: [{ user: shop, password: shop }], imports: [
            { service: { account: HUB, subject: "$JS.API.>" }, to: "JS.hub.API.>" },
            { service: { account: HUB, subject: "$JS.ACK.>" } },
            { service: { account: HUB, subject: "order.created" } } ] }
    }"#;
    let started = tokio::task::spawn_blocking(move || Server::start_with(config)).await;
    let server = started.expect("it ends").expect("a NATS server");
    let hub = JetStream::on(&server).as_user("hub");
    let world = world_of(NatsJetStream::of(hub).await).await;
    let broker = Nats::new(&url(&server, "shop", ""))
        .and_then(|broker| broker.api_prefix("JS.hub.API"))
        .expect("a broker");
    broker
        .publish(
            Message::json("order.created", &json!({ "order_id": "o1" }))
                .expect("JSON")
                .id("m1"),
        )
        .await
        .expect("published");
    publish(&world, 2, 3).await;
    let inbox = world
        .builder(&["billing"])
        .broker(broker)
        .spawn()
        .await
        .expect("an inbox");
    effects(&world, 3).await;
    eventually("settled", || world.settled("billing")).await;
    super::stop(inbox).await;
    assert_all_done(&world, 3).await;
}

/// With the domain of the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g59_a_domain_is_a_prefix() {
    let started = tokio::task::spawn_blocking(|| Server::start_with("jetstream { domain: hub }")).await;
    let server = started.expect("it ends").expect("a NATS server");
    let world = world_of(NatsJetStream::on(&server).await).await;
    let at = |domain: &str| Nats::new(&format!("nats://127.0.0.1:{}?domain={domain}", server.port())).expect("a URL");
    publish(&world, 1, 2).await;
    let inbox = world
        .builder(&["billing"])
        .broker(at("hub"))
        .spawn()
        .await
        .expect("an inbox");
    effects(&world, 2).await;
    super::stop(inbox).await;
    // Another domain has no responders.
    let subscription = Subscription::new("billing", "order.created");
    let source = at("nowhere")
        .subscribe(vec![subscription])
        .await
        .expect("it is waited for")
        .remove(0);
    let reasons = source.status().reasons();
    assert!(reasons[0].contains("$JS.nowhere.API"), "{reasons:?}");
}
