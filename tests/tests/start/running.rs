//! The ways to run an inbox, what they report, and where a new group begins.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use inbox_runtime::{Error, Outcome};
use inbox_tests::{
    EmbeddedMemory, Settled, SqliteFile, Step, TestBroker, TestDatabase, World, eventually, lean_suite, next,
    nothing_more,
};
use metrics::{Counter, CounterFn, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use tokio::sync::{Semaphore, oneshot};

lean_suite!(
    process_one_handles_one_message_and_waits_for_it,
    process_one_can_wait_for_ever,
    process_one_says_that_the_broker_fails,
    run_until_idle_reports_what_it_did_and_leaves_what_waits,
    no_handler_starves_another,
    spawn_can_be_watched_and_stopped,
    everything_can_be_spawned,
    run_ends_with_the_shutdown_future,
    a_dropped_run_stops_its_handlers,
    an_outage_of_the_database_is_no_attempt_and_shows_in_health,
    what_has_not_begun_is_released_at_once,
    select_narrows_what_the_groups_leave,
    f39_a_new_group_begins_where_its_handler_says,
    f47_a_message_is_redelivered_after_the_time_that_its_handler_asked_for,
    f51_failing_pulls_are_few_visible_and_survived,
);

async fn process_one_handles_one_message_and_waits_for_it<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(inbox.process_one(Duration::ZERO).await.expect("the broker"), None);
    let late = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        world.publish("m1").await;
        world.publish("m2").await;
    };
    let (outcome, ()) = tokio::join!(next(&mut inbox), late);
    assert_eq!(outcome, Outcome::Processed);
    assert_eq!(world.probe.total(), 1, "one and no more");
    world.assert_untouched("billing", "m2").await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    assert_eq!(inbox.report().processed, 2);
    assert!(world.settled("billing").await);
}

async fn process_one_can_wait_for_ever<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let mut inbox = world.inbox(&["billing"]).await;
    let late = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        world.publish("m1").await;
    };
    let (outcome, ()) = tokio::join!(inbox.process_one(Duration::MAX), late);
    assert_eq!(outcome.expect("the broker"), Some(Outcome::Processed));
    world.assert_done("billing", "m1").await;
}

async fn process_one_says_that_the_broker_fails<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    let mut inbox = world.inbox(&["billing"]).await;
    world.flaky.fail_pulls(1);
    let failed = inbox.process_one(Duration::from_secs(60)).await;
    assert!(matches!(failed, Err(Error::Broker(_))), "{failed:?}");
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    world.assert_done("billing", "m1").await;
}

async fn run_until_idle_reports_what_it_did_and_leaves_what_waits<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.broker.spread("order.created").await;
    for id in ["m1", "m2", "m1"] {
        world.publish(id).await;
    }
    world.probe.script(|call| match (call.id.as_str(), call.run) {
        ("m2", 1) => Step::RetryAfter(Duration::from_secs(600)),
        _ => Step::Ok,
    });
    let mut inbox = world.inbox(&["billing"]).await;
    let first = inbox.run_until_idle().await.expect("the broker");
    assert_eq!(
        first.to_string(),
        "processed=1 skipped=0 duplicate=1 locked=0 failed=1 dead_lettered=0 deferred=0 acked=2 ack_failures=0"
    );
    assert_eq!(
        world.broker.settled("billing", "order.created").await,
        Some(Settled { waiting: 0, unacked: 1 })
    );
    world.publish("m3").await;
    let second = inbox.run_until_idle().await.expect("the broker");
    assert_eq!((second.processed, second.acked, second.failed), (1, 1, 0), "{second}");
    let all = inbox.report();
    assert_eq!((all.processed, all.failed, all.acked), (2, 1, 3), "{all}");
    assert_eq!(all.count(Outcome::Duplicate), 1);
}

async fn no_handler_starves_another<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let mut inbox = world.inbox(&["billing", "shipping"]).await;
    for number in 0..4 {
        world.publish(&format!("m{number}")).await;
    }
    for _ in 0..4 {
        next(&mut inbox).await;
    }
    let of = |group: &str| world.probe.calls().iter().filter(|call| call.group == group).count();
    assert_eq!((of("billing"), of("shipping")), (2, 2));
}

async fn spawn_can_be_watched_and_stopped<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let inbox = world.builder(&["billing"]).spawn().await.expect("an inbox");
    let health = inbox.health();
    assert!(health.live && health.ready, "{health:?}");
    world.publish("m1").await;
    eventually("m1 is settled", async || {
        world.settled("billing").await && inbox.report().processed == 1
    })
    .await;
    inbox.stop();
    let health = inbox.health();
    assert!(!health.ready, "{health:?}");
    assert!(health.reasons[0].contains("stop"), "{health:?}");
    eventually("it stops", async || !inbox.health().live).await;
    // Nobody handles this one.
    world.publish("m2").await;
    let report = inbox.join().await.expect("stopped");
    assert_eq!((report.processed, report.acked), (1, 1), "{report}");
    world.assert_done("billing", "m1").await;
    world.assert_untouched("billing", "m2").await;
}

async fn an_outage_of_the_database_is_no_attempt_and_shows_in_health<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let inbox = world.builder(&["billing"]).spawn().await.expect("an inbox");
    let rename = async |from: &str, to: &str| {
        let sql = format!("ALTER TABLE {from} RENAME TO {to}");
        world.database.exec(&sql).await;
    };
    rename("inbox_events", "hidden_events").await;
    world.publish("m1").await;
    eventually("it isn't ready", async || !inbox.health().ready).await;
    let health = inbox.health();
    assert!(health.live, "{health:?}");
    assert!(health.reasons[0].contains("inbox_events"), "{health:?}");
    assert_eq!(world.probe.total(), 0);

    rename("hidden_events", "inbox_events").await;
    eventually("m1 is settled", async || world.settled("billing").await).await;
    eventually("it is ready again", async || inbox.health().ready).await;
    inbox.stop();
    let report = inbox.join().await.expect("stopped");
    assert_eq!(
        (report.processed, report.failed, report.dead_lettered),
        (1, 0, 0),
        "{report}"
    );
    assert!(report.deferred > 0, "{report}");
    world.assert_done("billing", "m1").await;
    let attempts = "SELECT count(*) FROM inbox_attempts";
    assert_eq!(world.database.number(attempts).await, 0);
}

async fn everything_can_be_spawned<B: TestBroker, D: TestDatabase>() {
    fn send<F: Future + Send>(_: &F) {}
    let world = World::<B, D>::new().await;
    send(&world.builder(&["billing"]).build());
    send(&world.builder(&["billing"]).run());
    send(&world.builder(&["billing"]).spawn());
    let mut inbox = world.inbox(&["billing"]).await;
    send(&inbox.process_one(Duration::ZERO));
    send(&inbox.run_until_idle());
    send(&inbox.run());
    send(&inbox_runtime::migrate(&world.database.pool()));
}

async fn run_ends_with_the_shutdown_future<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    let (stop, stopped) = oneshot::channel::<()>();
    let builder = world.builder(&["billing"]).shutdown(async {
        let _ = stopped.await;
    });
    let stopping = async {
        eventually("m1 is settled", async || world.settled("billing").await).await;
        drop(stop);
    };
    let (report, ()) = tokio::join!(builder.run(), stopping);
    let report = report.expect("stopped");
    assert_eq!((report.processed, report.acked), (1, 1), "{report}");
    world.assert_done("billing", "m1").await;
}

async fn a_dropped_run_stops_its_handlers<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let gate = Arc::new(Semaphore::new(0));
    let wait = gate.clone();
    world.probe.script(move |_| Step::Gate(wait.clone()));
    world.publish("m1").await;
    let running = tokio::spawn(world.inbox(&["billing"]).await.run());
    eventually("m1 is being handled", async || Arc::strong_count(&gate) == 3).await;
    running.abort();
    eventually("its handler is gone", async || Arc::strong_count(&gate) == 2).await;
    gate.add_permits(1);
    world.assert_untouched("billing", "m1").await;

    world.lease_runs_out().await;
    let report = world
        .inbox(&["billing"])
        .await
        .run_until_idle()
        .await
        .expect("the broker");
    assert_eq!((report.processed, report.duplicate), (1, 0), "{report}");
    world.assert_done("billing", "m1").await;
    assert!(world.settled("billing").await);
}

/// A broker can be a user's code too.
/// A recorder of metrics that panics where the runtime counts what became of a delivery: no code that it contains.
struct PanickingRecorder;

impl Recorder for PanickingRecorder {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        match key.name() {
            "inbox_deliveries_total" => Counter::from_arc(Arc::new(Self)),
            _ => Counter::noop(),
        }
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

impl CounterFn for PanickingRecorder {
    fn increment(&self, _: u64) {
        panic!("in a counter");
    }

    fn absolute(&self, _: u64) {}
}

#[tokio::test]
async fn a_worker_that_panics_is_not_hidden() {
    let world = World::<EmbeddedMemory, SqliteFile>::new().await;
    let inbox = {
        // What is registered when the inbox is built is the test's.
        let _guard = metrics::set_default_local_recorder(&PanickingRecorder);
        world.inbox(&["billing", "shipping"]).await
    };
    world.publish("m1").await;
    let ended = tokio::time::timeout(Duration::from_mins(2), inbox.run()).await;
    let ended = ended.expect("it doesn't go on without its worker");
    assert!(matches!(ended, Err(Error::Task(_))), "{ended:?}");
}

async fn what_has_not_begun_is_released_at_once<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let gate = Arc::new(Semaphore::new(0));
    world.probe.script({
        let gate = gate.clone();
        move |call| match call.id.as_str() {
            "m1" => Step::Gate(gate.clone()),
            _ => Step::Ok,
        }
    });
    world.broker.spread("order.created").await;
    world.publish("m1").await;
    let inbox = world.builder(&["billing"]).spawn().await.expect("an inbox");
    eventually("one runs", async || world.probe.total() == 1).await;
    world.publish("m2").await;
    world.publish("m3").await;
    // The second one is prefetched by now, as each worker prefetches one.
    eventually("two are out", async || {
        let settled = world.broker.settled("billing", "order.created").await;
        settled.is_some_and(|settled| settled.unacked == 2) && world.probe.total() == 1
    })
    .await;
    inbox.stop();
    gate.add_permits(1);
    let report = inbox.join().await.expect("stopped");
    assert_eq!(
        (report.processed, report.acked),
        (1, 1),
        "what runs is finished: {report}"
    );
    world.assert_done("billing", "m1").await;
    for id in ["m2", "m3"] {
        world.assert_untouched("billing", id).await;
    }
    // No lease has to run out first.
    let mut inbox = world.inbox(&["billing"]).await;
    let report = inbox.run_until_idle().await.expect("the broker");
    assert_eq!((report.processed, report.acked), (2, 2), "{report}");
    assert!(world.settled("billing").await);
}

async fn select_narrows_what_the_groups_leave<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    let builder = world.builder(&["billing", "shipping"]);
    let mut inbox = builder
        .select(|meta| meta.short_name() == "shipping")
        .build()
        .await
        .expect("an inbox");
    let groups: Vec<_> = inbox.handlers().map(|meta| meta.group).collect();
    assert_eq!(groups, ["shipping"]);
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    nothing_more(&mut inbox).await;
    world.assert_done("shipping", "m1").await;
    world.assert_untouched("billing", "m1").await;
    assert_eq!(
        world.broker.settled("billing", "order.created").await,
        None,
        "what isn't selected isn't subscribed"
    );
}

async fn f39_a_new_group_begins_where_its_handler_says<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    for number in 0..10 {
        world.publish(&format!("old{number}")).await;
    }
    let mut billing = world.inbox(&["billing"]).await;
    assert_eq!(billing.run_until_idle().await.expect("the broker").processed, 10);

    let mut both = world.inbox(&["newest", "shipping"]).await;
    world.publish("new1").await;
    both.run_until_idle().await.expect("the broker");
    drop(both);
    // Only a new group has a start position; an existing one continues where it was.
    world.publish("new2").await;
    let mut both = world.inbox(&["newest", "shipping"]).await;
    both.run_until_idle().await.expect("the broker");
    for number in 0..10 {
        let id = format!("old{number}");
        world.assert_done("shipping", &id).await;
        world.assert_untouched("newest", &id).await;
    }
    for id in ["new1", "new2"] {
        world.assert_done("newest", id).await;
        world.assert_done("shipping", id).await;
    }
    assert!(world.settled("newest").await && world.settled("shipping").await);
}

async fn f47_a_message_is_redelivered_after_the_time_that_its_handler_asked_for<B: TestBroker, D: TestDatabase>() {
    const DELAY: Duration = Duration::from_secs(3);
    let world = World::<B, D>::new().await;
    world.probe.script(|call| match call.run {
        1 | 2 => Step::RetryAfter(DELAY),
        _ => Step::Ok,
    });
    world.publish("m1").await;
    // A lease that is longer than `eventually` waits: it is not the lease that ends.
    let builder = world.builder(&["patient"]).ack_wait(Duration::from_secs(300));
    let inbox = builder.spawn().await.expect("an inbox");
    eventually("m1 is settled", async || world.settled("patient").await).await;
    inbox.stop();
    inbox.join().await.expect("stopped");
    world.assert_done("patient", "m1").await;
    let calls = world.probe.calls();
    assert_eq!(calls.len(), 3);
    for pair in calls.windows(2) {
        let gap = pair[1].at - pair[0].at;
        assert!(gap >= DELAY.mul_f64(0.99), "{gap:?}");
    }
}

async fn f51_failing_pulls_are_few_visible_and_survived<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    world.flaky.fail_pulls(1000);
    let inbox = world.builder(&["billing"]).spawn().await.expect("an inbox");
    let start = Instant::now();
    eventually("it is tried again", async || world.flaky.pulls() >= 3).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (pulls, seconds) = (world.flaky.pulls(), start.elapsed().as_secs_f64());
    assert!(f64::from(pulls) < 3.0 + 3.0 * seconds, "{pulls} pulls in {seconds} s");
    let health = inbox.health();
    assert!(health.live && !health.ready, "{health:?}");
    assert!(health.reasons[0].contains("cut by the test"), "{health:?}");
    assert!(health.reasons[0].contains("::billing"), "it says whose: {health:?}");

    world.flaky.fail_pulls(0);
    eventually("m1 is settled", async || world.settled("billing").await).await;
    eventually("it is ready again", async || inbox.health().ready).await;
    inbox.stop();
    let report = inbox.join().await.expect("stopped");
    assert_eq!((report.processed, report.failed), (1, 0), "{report}");
    world.assert_done("billing", "m1").await;
}
