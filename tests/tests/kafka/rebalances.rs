//! Rebalances: partitions move, each effect happens once, and no committed offset decreases.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use inbox_tests::{
    KafkaCluster, Step, eventually,
    process::{Mode, Signal, WorkerCommand},
};
use tokio::task::JoinHandle;

use super::{KafkaWorld, stop, world};

/// Checks a group's committed offsets ten times a second.
pub(super) struct OffsetWatch {
    stop: Arc<AtomicBool>,
    task: JoinHandle<u32>,
}

impl OffsetWatch {
    pub(super) fn start(cluster: &KafkaCluster, group: &'static str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (cluster, stopped) = (cluster.clone(), stop.clone());
        let task = tokio::spawn(async move {
            let mut last = Vec::new();
            let mut polls = 0;
            while !stopped.load(Ordering::Relaxed) {
                if let Some(now) = cluster.try_committed(group, "order.created").await {
                    for (partition, (before, now)) in last.iter().zip(&now).enumerate() {
                        assert!(
                            before <= now,
                            "partition {partition} went back from {before:?} to {now:?}"
                        );
                    }
                    last = now;
                    polls += 1;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            polls
        });
        Self { stop, task }
    }

    /// Stops, and returns the number of checks.
    pub(super) async fn end(self) -> u32 {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.expect("no offset decreases")
    }
}

/// Two partitions, of which one moves to a member that joins while handlers run, and back when it leaves.
async fn a_member_joins_and_leaves(set: impl Fn(inbox_runtime::Kafka) -> inbox_runtime::Kafka + Send + 'static) {
    let world = world(set).await;
    world.broker.create_topic("order.created", 2).await;
    let order = |id: &str| inbox_tests::Order::new("o").to("order.created").id(id.to_owned());
    for number in 0..10 {
        world.broker.publish_to(order(&format!("m{number}")), number % 2).await;
    }
    world.probe.script(|call| match (call.id.as_str(), call.run) {
        ("m0" | "m1", 1) => Step::Sleep(Duration::from_millis(700)),
        _ => Step::Sleep(Duration::from_millis(20)),
    });
    let watch = OffsetWatch::start(&world.broker, "audit");
    let first = world.builder(&["audit"]).spawn().await.expect("an inbox");
    eventually("it is in its handlers", async || world.probe.total() >= 1).await;
    let second = world.builder(&["audit"]).spawn().await.expect("an inbox");
    eventually("half of it is done", async || world.probe.total() >= 5).await;
    stop(second).await;
    eventually("everything is settled", || world.settled("audit")).await;
    assert!(first.health().live && first.health().ready, "{:?}", first.health());
    stop(first).await;
    assert!(watch.end().await > 0);
    for number in 0..10 {
        world.assert_done("audit", &format!("m{number}")).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b3_f62_an_eager_rebalance_drains_and_leaves_every_effect_once() {
    a_member_joins_and_leaves(|kafka| kafka.property("partition.assignment.strategy", "range")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b3_f62_a_cooperative_rebalance_drains_and_leaves_every_effect_once() {
    a_member_joins_and_leaves(|kafka| kafka.property("partition.assignment.strategy", "cooperative-sticky")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b3_f62_the_new_protocol_drains_and_leaves_every_effect_once() {
    a_member_joins_and_leaves(|kafka| {
        kafka
            .property("group.protocol", "consumer")
            // Broker settings, with this protocol.
            .property("session.timeout.ms", "")
            .property("heartbeat.interval.ms", "")
    })
    .await;
}

/// A process is suspended while a handler runs, and its partition moves to another member. When it is resumed, it
/// finishes, and commits for a partition that it no longer has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f63_f64_offsets_of_a_lost_partition_are_never_committed() {
    let world = KafkaWorld::new().await;
    for number in 0..5 {
        world.publish(&format!("m{number}")).await;
    }
    let watch = OffsetWatch::start(&world.broker, "billing");
    let mut suspended = WorkerCommand::on(env!("CARGO_BIN_EXE_worker"), Mode::Run, &world, "billing")
        .script("m2=sleep:500ms")
        .start();
    suspended.says("run billing m2").await;
    suspended.signal(Signal::STOP);
    let other = world.builder(&["billing"]).spawn().await.expect("an inbox");
    // The suspended process holds the lock of the database file.
    eventually("the other one has its partition", async || other.report().deferred > 0).await;
    suspended.signal(Signal::CONT);
    eventually("everything is settled", || world.settled("billing")).await;
    // Both are still running, and share the group.
    assert!(!suspended.is_over());
    world.publish("m5").await;
    eventually("m5 is settled", || world.settled("billing")).await;
    suspended.stop().await;
    stop(other).await;
    assert!(watch.end().await > 0);
    for number in 0..6 {
        world.assert_done("billing", &format!("m{number}")).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f74_a_member_whose_instance_id_another_one_has_ends_and_says_so() {
    let world = world(|kafka| kafka.property("group.instance.id", "pod-1")).await;
    world.broker.create_topic("order.created", 1).await;
    // Two groups of one process may have the same id.
    let first = world.builder(&["billing", "shipping"]).spawn().await.expect("an inbox");
    world.publish("m1").await;
    eventually("both have handled it", async || {
        world.settled("billing").await && world.settled("shipping").await
    })
    .await;
    assert!(first.health().ready, "{:?}", first.health());
    // A second member with the same id fences the first one, which ends with an error.
    let second = world.builder(&["billing"]).spawn().await.expect("an inbox");
    let ended = tokio::time::timeout(Duration::from_mins(2), first.join()).await;
    let error = ended.expect("it ends").expect_err("by an error");
    assert!(matches!(error, inbox_runtime::Error::Broker(_)), "{error:?}");
    for part in ["the group", "billing`", "can't go on", "enced"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    world.publish("m2").await;
    eventually("the second one handles it", async || {
        world.probe.runs("billing", "m2") == 1
    })
    .await;
    assert!(second.health().ready, "{:?}", second.health());
    stop(second).await;
}
