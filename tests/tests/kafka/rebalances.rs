//! Members that come and go: partitions move, effects stay single, and no offset goes back.

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

use super::{Kafkaesque, stop, world};

/// Watches a group's offsets ten times a second.
pub(super) struct Watch {
    over: Arc<AtomicBool>,
    task: JoinHandle<u32>,
}

impl Watch {
    pub(super) fn begin(cluster: &KafkaCluster, group: &'static str) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let (cluster, end) = (cluster.clone(), over.clone());
        let task = tokio::spawn(async move {
            let mut last = Vec::new();
            let mut looks = 0;
            while !end.load(Ordering::Relaxed) {
                if let Some(now) = cluster.try_committed(group, "order.created").await {
                    for (partition, (before, now)) in last.iter().zip(&now).enumerate() {
                        assert!(
                            before <= now,
                            "partition {partition} went from {before:?} back to {now:?}"
                        );
                    }
                    last = now;
                    looks += 1;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            looks
        });
        Self { over, task }
    }

    /// Ends it, and says how often it has looked.
    pub(super) async fn end(self) -> u32 {
        self.over.store(true, Ordering::Relaxed);
        self.task.await.expect("no offset goes back")
    }
}

/// Two partitions, of which one goes to a member that joins in the middle of their handlers, and comes back when it leaves.
async fn a_member_joins_and_leaves(set: impl Fn(inbox_runtime::Kafka) -> inbox_runtime::Kafka + Send + 'static) {
    let world = world(set).await;
    world.broker.make_topic("order.created", 2).await;
    let order = |id: &str| inbox_tests::Order::new("o").to("order.created").id(id.to_owned());
    for number in 0..10 {
        world.broker.publish_to(order(&format!("m{number}")), number % 2).await;
    }
    world.probe.script(|call| match (call.id.as_str(), call.run) {
        ("m0" | "m1", 1) => Step::Sleep(Duration::from_millis(700)),
        _ => Step::Sleep(Duration::from_millis(20)),
    });
    let watch = Watch::begin(&world.broker, "audit");
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
            // The brokers decide on them.
            .property("session.timeout.ms", "")
            .property("heartbeat.interval.ms", "")
    })
    .await;
}

/// A process sleeps in the middle of a handler, and its partition goes to another member, which goes on. When it wakes it
/// finishes, and commits for a partition that isn't its own any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f63_f64_a_lost_partition_is_never_committed_for() {
    let world = Kafkaesque::new().await;
    for number in 0..5 {
        world.publish(&format!("m{number}")).await;
    }
    let watch = Watch::begin(&world.broker, "billing");
    let mut sleeper = WorkerCommand::on(env!("CARGO_BIN_EXE_worker"), Mode::Run, &world, "billing")
        .script("m2=sleep:500ms")
        .start();
    sleeper.says("run billing m2").await;
    sleeper.signal(Signal::STOP);
    let other = world.builder(&["billing"]).spawn().await.expect("an inbox");
    // The file is locked by the one that sleeps.
    eventually("the other one has its partition", async || other.report().deferred > 0).await;
    sleeper.signal(Signal::CONT);
    eventually("everything is settled", || world.settled("billing")).await;
    // Neither of them has ended by that, and both share what comes.
    assert!(!sleeper.is_over());
    world.publish("m5").await;
    eventually("m5 is settled", || world.settled("billing")).await;
    sleeper.stop().await;
    stop(other).await;
    assert!(watch.end().await > 0);
    for number in 0..6 {
        world.assert_done("billing", &format!("m{number}")).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f74_a_member_whose_instance_id_another_one_has_ends_and_says_so() {
    let world = world(|kafka| kafka.property("group.instance.id", "pod-1")).await;
    world.broker.make_topic("order.created", 1).await;
    // Two groups of one process have the id each, which is no conflict.
    let first = world.builder(&["billing", "shipping"]).spawn().await.expect("an inbox");
    world.publish("m1").await;
    eventually("both have handled it", async || {
        world.settled("billing").await && world.settled("shipping").await
    })
    .await;
    assert!(first.health().ready, "{:?}", first.health());
    // A second member of the same id pushes the first one out, which can't go on and says so.
    let second = world.builder(&["billing"]).spawn().await.expect("an inbox");
    let ended = tokio::time::timeout(Duration::from_secs(30), first.join()).await;
    let error = ended.expect("it ends").expect_err("by an error");
    assert!(matches!(error, inbox_runtime::Error::Broker(_)), "{error:?}");
    for part in ["the group", "billing`", "can't go on", "enced"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    world.publish("m2").await;
    eventually("the second one goes on", async || {
        world.probe.runs("billing", "m2") == 1
    })
    .await;
    assert!(second.health().ready, "{:?}", second.health());
    stop(second).await;
}
