//! Prefetch: a worker takes the next record of a partition while it handles one, and never handles it out of order.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use inbox_runtime::OutboxMode;
use inbox_tests::{
    KafkaCluster, Order, PostgresDatabase, Step, TestBroker, TestDatabase, World, eventually, pool,
    servers::{Proxy, postgres::Shared},
};
use tokio::sync::Semaphore;

use super::{stop, world_on};

type PostgresKafkaWorld = World<KafkaCluster, PostgresDatabase>;

async fn world() -> PostgresKafkaWorld {
    world_on(KafkaCluster::fresh().await).await
}

async fn publish(world: &PostgresKafkaWorld, count: usize) -> Vec<String> {
    let ids: Vec<_> = (0..count).map(|number| format!("m{number}")).collect();
    for id in &ids {
        world.publish(id).await;
    }
    ids
}

/// The ids of every run, in the order in which they began.
fn order(world: &PostgresKafkaWorld) -> Vec<String> {
    world.probe.calls().into_iter().map(|call| call.id).collect()
}

async fn assert_done(world: &PostgresKafkaWorld, ids: &[String]) {
    for id in ids {
        world.assert_done("billing", id).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prefetched_record_takes_two_round_trips() {
    let Shared::Own(server) = Shared::get() else {
        println!("skipped: DATABASE_URL names a server that isn't ours; unset it");
        return;
    };
    let proxy = Proxy::before(server.port()).await;
    let mut world = world().await;
    let url = proxy.url(&world.database.url());
    world.database = world.database.with_pool(pool(url.parse().expect("a URL"), 10));
    let ids = publish(&world, 100).await;
    // A relay would look at the outbox meanwhile.
    let builder = world.builder(&["billing"]).outbox(OutboxMode::Off);
    let inbox = builder.build().await.expect("an inbox");
    let (start, before) = (Instant::now(), proxy.round_trips());
    let inbox = inbox.spawn();
    eventually("all is settled", || world.settled("billing")).await;
    let (taken, seconds) = (proxy.round_trips() - before, start.elapsed().as_secs());
    stop(inbox).await;
    assert_done(&world, &ids).await;
    assert_eq!(order(&world), ids);
    println!("{:.2} round trips a message", taken as f64 / 100.0);
    // Plus connecting, preparing statements, the first and the last transaction, and every five seconds a query for
    // dead letters to replay and one of the server's settings.
    let allowed = 200..260 + 2 * seconds;
    assert!(
        allowed.contains(&taken),
        "{taken} round trips for 100 messages in {seconds} s"
    );
}

/// The commit fails when the next record is prefetched already.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f60_a_record_that_fails_at_its_commit_is_redelivered_before_the_next() {
    let world = world().await;
    world
        .database
        .exec("CREATE TABLE strict (n int UNIQUE DEFERRABLE INITIALLY DEFERRED); INSERT INTO strict VALUES (1)")
        .await;
    let ids = publish(&world, 10).await;
    world.probe.script(|call| match (call.id.as_str(), call.run) {
        ("m3" | "m4" | "m8", 1) => Step::Swallow("INSERT INTO strict VALUES (1)", Box::new(Step::Ok)),
        _ => Step::Ok,
    });
    let inbox = world.builder(&["billing"]).spawn().await.expect("an inbox");
    eventually("all is settled", || world.settled("billing")).await;
    stop(inbox).await;
    assert_done(&world, &ids).await;
    let expected = [
        "m0", "m1", "m2", "m3", "m3", "m4", "m4", "m5", "m6", "m7", "m8", "m8", "m9",
    ];
    assert_eq!(order(&world), expected);
}

/// A stop between two records releases the prefetched one, and the next process handles it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_releases_the_prefetched_record() {
    let world = world().await;
    let ids = publish(&world, 40).await;
    world.probe.script(|_| Step::Sleep(Duration::from_millis(15)));
    let mut starts = 0;
    while !world.settled("billing").await {
        starts += 1;
        assert!(starts < 40, "no progress: {:?}", order(&world));
        let inbox = world.builder(&["billing"]).spawn().await.expect("an inbox");
        let before = world.probe.total();
        eventually("some are handled", async || {
            world.probe.total() >= (before + 5).min(ids.len()) || world.settled("billing").await
        })
        .await;
        stop(inbox).await;
    }
    assert!(starts > 2, "it never stopped between two records");
    assert_done(&world, &ids).await;
    assert_eq!(order(&world), ids, "each once, in order");
}

/// A handler runs for longer than the drain timeout of a revocation, while the message of the other partition waits for
/// the same worker, when that partition moves to another member.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g15_a_message_of_a_revoked_partition_is_not_begun() {
    let world = world().await;
    world.broker.grow_topic("order.created", 2).await;
    // By these names the first member gets partition 0, and the second one partition 1.
    let member = |name: &str| {
        let kafka = world.broker.connect();
        kafka
            .property("partition.assignment.strategy", "range")
            .property("group.instance.id", name)
            .property("session.timeout.ms", "20000")
    };
    let order = |id: &str| Order::new("o").to("order.created").id(id.to_owned());
    world.broker.publish_to(order("slow"), 0).await;
    let gate = Arc::new(Semaphore::new(0));
    let wait = gate.clone();
    world.probe.script(move |call| match (call.id.as_str(), call.run) {
        ("slow", 1) => Step::Gate(wait.clone()),
        _ => Step::Ok,
    });
    let group = &["at-least-once"];
    let first = world
        .builder(group)
        .broker(member("a"))
        .spawn()
        .await
        .expect("an inbox");
    eventually("the slow one is handled", async || world.probe.total() == 1).await;
    world.broker.publish_to(order("waiting"), 1).await;
    eventually("both are in flight", async || first.health().handlers[0].in_flight == 2).await;
    let second = world
        .builder(group)
        .broker(member("b"))
        .spawn()
        .await
        .expect("an inbox");
    eventually("the second one has handled its message", async || {
        world.probe.runs("at-least-once", "waiting") == 1
    })
    .await;
    gate.add_permits(1);
    eventually("everything is settled", || world.settled("at-least-once")).await;
    eventually("nothing is in flight", async || {
        first.health().handlers[0].in_flight == 0
    })
    .await;
    stop(first).await;
    stop(second).await;
    assert_eq!(world.probe.runs("at-least-once", "waiting"), 1);
}
