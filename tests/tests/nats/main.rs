//! Handlers on NATS JetStream: faults of servers, networks and other clients.

mod authentication;
mod delete_markers;
mod handlers;
mod leases;
mod malformed_messages;
mod memory;
mod permissions;
mod publish;
mod publish_all;
mod recovery;
mod replicas;
mod reused_positions;
mod start_position;
mod startup;
mod subject_moves;

#[cfg(feature = "postgres")]
mod cluster;
#[cfg(feature = "postgres")]
mod kill_campaign;

use std::time::Duration;

use inbox_runtime::{Inbox, InboxHandle, Nats};
use inbox_tests::{
    Flaky, JetStream, NatsJetStream, Probe, SqliteFile, TestBroker, TestDatabase, eventually,
    servers::{Proxy, nats::Nats as Server},
};

type World = inbox_tests::World<NatsJetStream, SqliteFile>;

/// A server for one test.
async fn server() -> Server {
    let started = tokio::task::spawn_blocking(Server::start).await;
    started.expect("it ends").expect("a NATS server")
}

/// A world on a server of its own.
async fn world_on(server: &Server) -> World {
    let broker = NatsJetStream::on(server).await;
    world_of(broker).await
}

async fn world_of(broker: NatsJetStream) -> World {
    World {
        flaky: Flaky::new(broker.connect()),
        broker,
        database: SqliteFile::fresh().await,
        probe: Probe::default(),
    }
}

/// A world on the shared server.
async fn world() -> World {
    World::new().await
}

/// The broker of that world, through a proxy.
fn through(world: &World, proxy: &Proxy) -> Nats {
    let url = world.broker.account().url();
    let (before, _) = url.rsplit_once(':').expect("a port");
    Nats::new(&format!("{before}:{}", proxy.port())).expect("a URL")
}

/// A world on a server of its own, whose stream is a work queue.
async fn work_queue(server: &Server) -> World {
    let world = world_on(server).await;
    let account = world.broker.account();
    account.api("STREAM.DELETE.TEST", serde_json::Value::Null).await;
    let config = serde_json::json!({ "retention": "workqueue" });
    account.make_stream("TEST", &["order.>"], config).await;
    world
}

/// Publishes `m<from>` to `m<to>`.
async fn publish(world: &World, from: usize, to: usize) {
    for number in from..=to {
        world.publish(&format!("m{number}")).await;
    }
}

/// Every message has exactly one effect, and none is dead-lettered.
async fn assert_all_done(world: &World, count: i64) {
    world.assert_each_done_once(count).await;
}

/// Waits until there are at least `count` effects.
async fn effects(world: &World, count: i64) {
    eventually(&format!("{count} effects"), || async {
        world.database.number("SELECT count(*) FROM effects").await >= count
    })
    .await;
}

/// Waits until health reports `ready`.
async fn ready(inbox: &InboxHandle, ready: bool) {
    eventually(&format!("ready is {ready}"), || async { inbox.health().ready == ready }).await;
}

async fn stop(inbox: InboxHandle) -> inbox_runtime::Report {
    inbox.stop();
    inbox.join().await.expect("a clean end")
}

/// Asserts that an inbox doesn't start; returns the error.
async fn refused(builder: inbox_runtime::InboxBuilder) -> String {
    match builder.build().await {
        Ok(_) => panic!("it started"),
        Err(error) => error.to_string(),
    }
}

/// Runs an inbox of the group in the background.
async fn run(world: &World, group: &str, ack_wait: Duration) -> InboxHandle {
    world
        .builder(&[group])
        .ack_wait(ack_wait)
        .spawn()
        .await
        .expect("an inbox")
}

/// Runs an inbox of the group `billing` on another connection than the world's.
async fn run_on(world: &World, broker: Nats) -> InboxHandle {
    let builder = world
        .builder(&["billing"])
        .broker(broker)
        .ack_wait(Duration::from_secs(1));
    builder.spawn().await.expect("an inbox")
}

async fn build(world: &World, group: &str, ack_wait: Duration) -> Inbox {
    world
        .builder(&[group])
        .ack_wait(ack_wait)
        .build()
        .await
        .expect("an inbox")
}

/// The JSON at a path of a server's monitoring endpoint.
async fn monitor(server: &Server, path: &'static str) -> serde_json::Value {
    let port = server.monitor_port();
    let answer = tokio::task::spawn_blocking(move || {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).expect("the monitor");
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").expect("asked");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    });
    let answer = answer.await.expect("it ends");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
    serde_json::from_str(body).expect("JSON")
}

/// The consumer info of a group on `order.created`.
async fn durable(account: &JetStream, group: &str) -> serde_json::Value {
    account
        .durable("TEST", group, "order.created")
        .await
        .expect("the durable")
}
