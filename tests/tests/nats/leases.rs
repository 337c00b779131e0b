//! Leases: renewed while a message waits or is handled, and not used once they may be lost.

use std::time::Duration;

use inbox_runtime::{Broker, BrokerError, Delivery, Lease, Nats, Outcome, Source, Subscription, nats::NatsSource};
use inbox_tests::{
    NatsJetStream, Settled, Step, TestBroker, TestDatabase, World as AnyWorld, eventually, next, servers::Proxy,
};
use serde_json::Value;

use super::{World, assert_all_done, durable, effects, publish, run, server, stop, through, world, world_of};

const SECOND: Duration = Duration::from_secs(1);

/// Two replicas share the work; the leases of prefetched messages are renewed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f42_a_prefetched_message_is_not_redelivered() {
    let world = world().await;
    publish(&world, 1, 8).await;
    world.probe.script(|_| Step::Sleep(Duration::from_millis(700)));
    let one = run(&world, "billing", SECOND).await;
    let other = run(&world, "billing", SECOND).await;
    effects(&world, 8).await;
    eventually("settled", || world.settled("billing")).await;
    let reports = (stop(one).await, stop(other).await);
    assert_eq!(reports.0.processed + reports.1.processed, 8, "{reports:?}");
    assert_eq!(world.probe.total(), 8, "no run was wasted");
    assert!(world.probe.calls().iter().all(|call| call.delivery_count == Some(1)));
    assert_all_done(&world, 8).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f43_a_handler_may_take_longer_than_the_ack_wait() {
    let world = world().await;
    publish(&world, 1, 1).await;
    world.probe.script(|_| Step::Sleep(Duration::from_millis(2_500)));
    let one = run(&world, "billing", SECOND).await;
    let other = run(&world, "billing", SECOND).await;
    effects(&world, 1).await;
    eventually("settled", || world.settled("billing")).await;
    stop(one).await;
    stop(other).await;
    assert_eq!(world.probe.total(), 1);
    assert_all_done(&world, 1).await;
}

/// Leases are renewed by the server's ack-wait, even if that was changed since.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f43_leases_are_renewed_by_the_ack_wait_of_the_server() {
    let world = world().await;
    let inbox = run(&world, "billing", Duration::from_secs(60)).await;
    publish(&world, 1, 1).await;
    effects(&world, 1).await;
    let account = world.broker.account();
    let mut config = durable(account, "billing").await["config"].clone();
    config["ack_wait"] = 8_000_000_000_u64.into();
    let body = serde_json::json!({ "stream_name": "TEST", "config": config, "action": "update" });
    let updated = account.api("CONSUMER.CREATE.TEST.billing@order,created", body).await;
    assert!(updated.get("error").is_none(), "{updated}");
    // The consumer's state is read every five seconds.
    tokio::time::sleep(Duration::from_secs(12)).await;
    world.probe.script(|_| Step::Sleep(Duration::from_secs(14)));
    publish(&world, 2, 2).await;
    effects(&world, 2).await;
    stop(inbox).await;
    assert_eq!(world.probe.total(), 2, "nothing was delivered twice");
}

async fn source(broker: &Nats, ack_wait: Duration) -> NatsSource {
    let subscription = Subscription::new("billing", "order.created").ack_wait(ack_wait);
    broker
        .subscribe(vec![subscription])
        .await
        .expect("subscribed")
        .remove(0)
}

async fn pull(source: &mut NatsSource) -> (Delivery, inbox_runtime::nats::NatsLease) {
    let mut pulled = source.pull(1, Duration::from_secs(30)).await.expect("the broker");
    assert_eq!(pulled.len(), 1);
    pulled.remove(0)
}

const IN_FLIGHT: Settled = Settled { waiting: 0, unacked: 1 };

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f44_a_late_nak_or_progress_does_not_touch_a_redelivery() {
    let world = world().await;
    publish(&world, 1, 1).await;
    let brokers = [
        world.broker.connect(),
        Nats::new(&world.broker.account().url()).expect("a URL"),
    ];
    const LEASE: Duration = Duration::from_secs(8);
    let (mut late, mut other) = (source(&brokers[0], LEASE).await, source(&brokers[1], LEASE).await);
    let (delivery, mine) = pull(&mut late).await;
    let (again, theirs) = pull(&mut other).await;
    assert_eq!(delivery.position, again.position);
    assert_eq!((delivery.delivery_count, again.delivery_count), (Some(1), Some(2)));
    assert!(!delivery.redelivered && again.redelivered);
    // A slow receiver believes its lease younger than it is.
    theirs.progress().await.expect("it is theirs");
    tokio::time::sleep(Duration::from_millis(300)).await;

    mine.nak(Duration::ZERO).await.expect("nothing happens");
    let lost = mine.ack_confirmed().await.expect_err("the lease is lost");
    assert!(matches!(lost, BrokerError::LeaseLost { .. }), "{lost}");
    assert!(matches!(mine.progress().await, Err(BrokerError::LeaseLost { .. })));
    assert_eq!(
        other
            .pull(1, Duration::from_millis(400))
            .await
            .expect("the broker")
            .len(),
        0
    );
    assert_eq!(world.broker.settled("billing", "order.created").await, Some(IN_FLIGHT));
    theirs.progress().await.expect("it is theirs");
    theirs.ack_confirmed().await.expect("settled");
    assert_eq!(
        world.broker.settled("billing", "order.created").await,
        Some(Settled::ALL)
    );
    // Late, but the work is done.
    mine.ack().await.expect("said");
}

/// A sequence number means another message in a recreated stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f44_an_ack_of_a_deleted_stream_settles_nothing_of_the_new_one() {
    let world = world().await;
    publish(&world, 1, 1).await;
    let broker = world.broker.connect();
    let mut source = source(&broker, Duration::from_secs(30)).await;
    let (old, lease) = pull(&mut source).await;
    let account = world.broker.account();
    account.api("STREAM.DELETE.TEST", Value::Null).await;
    account.make_stream("TEST", &["order.>"], Value::Null).await;
    publish(&world, 2, 2).await;
    let (new, _kept) = pull(&mut source).await;
    assert_ne!(old.position, new.position, "both are the first of their streams");
    assert!(matches!(lease.ack().await, Err(BrokerError::LeaseLost { .. })));
    lease.nak(Duration::ZERO).await.expect("nothing happens");
    assert_eq!(world.broker.settled("billing", "order.created").await, Some(IN_FLIGHT));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f47_a_nak_is_redelivered_after_its_delay() {
    let world = world().await;
    publish(&world, 1, 1).await;
    let delay = Duration::from_millis(800);
    world.probe.script(move |call| {
        if call.run < 3 {
            Step::RetryAfter(delay)
        } else {
            Step::Ok
        }
    });
    // A lease that is longer than `next` waits: it is not the lease that ends.
    let builder = world.builder(&["billing"]).ack_wait(Duration::from_secs(300));
    let mut inbox = builder.build().await.expect("an inbox");
    for outcome in [Outcome::Failed, Outcome::Failed, Outcome::Processed] {
        assert_eq!(next(&mut inbox).await, outcome);
    }
    let calls = world.probe.calls();
    for pair in calls.windows(2) {
        let gap = pair[1].at - pair[0].at;
        assert!(gap >= delay.mul_f64(0.8), "{gap:?}");
    }
}

/// The ack never reaches the server: it is counted, and the redelivery is deduplicated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f40_a_lost_ack_is_counted_and_its_redelivery_deduplicated() {
    let server = server().await;
    let world: World = world_of(NatsJetStream::on(&server).await).await;
    let proxy = Proxy::before(server.port()).await;
    let broker = through(&world, &proxy);
    publish(&world, 1, 1).await;
    let builder = world.builder(&["billing"]).broker(broker).ack_wait(SECOND);
    let mut inbox = builder.build().await.expect("an inbox");
    proxy.cut_once("+ACK", inbox_tests::servers::Cut::Request);
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    assert_eq!((inbox.report().acked, inbox.report().ack_failures), (0, 1));
    assert_eq!(next(&mut inbox).await, Outcome::Duplicate);
    assert_eq!(proxy.cuts(), 1);
    assert_eq!(world.probe.total(), 1);
    assert!(world.settled("billing").await);
}

/// A handler that hangs is aborted at its timeout, and its message redelivered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f43_the_message_of_a_hanging_handler_is_redelivered() {
    let world: World = AnyWorld::new().await;
    publish(&world, 1, 1).await;
    world
        .probe
        .script(|call| if call.run == 1 { Step::Hang } else { Step::Ok });
    let inbox = run(&world, "hasty", SECOND).await;
    effects(&world, 1).await;
    stop(inbox).await;
    assert_eq!(world.probe.total(), 2);
}

/// The stream limits `max_ack_pending`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f54_a_small_max_ack_pending_stalls_nothing() {
    let server = server().await;
    let world = super::world_on(&server).await;
    let account = world.broker.account();
    account.api("STREAM.DELETE.TEST", Value::Null).await;
    let limits = serde_json::json!({ "consumer_limits": { "max_ack_pending": 2 } });
    account.make_stream("TEST", &["order.>"], limits).await;
    publish(&world, 1, 10).await;
    world.probe.script(|_| Step::Sleep(Duration::from_millis(20)));
    let inbox = run(&world, "audit", SECOND).await;
    effects(&world, 10).await;
    stop(inbox).await;
    assert_all_done(&world, 10).await;
    let audit = account.durable("TEST", "audit", ">").await.expect("the durable");
    assert_eq!(audit["config"]["max_ack_pending"], 2);
}

/// Messages that a stream dropped in flight don't count against `max_ack_pending` for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f54_messages_that_expired_in_flight_block_nothing() {
    let server = server().await;
    let world = super::world_on(&server).await;
    let account = world.broker.account();
    account.api("STREAM.DELETE.TEST", Value::Null).await;
    account
        .make_stream(
            "TEST",
            &["order.>"],
            serde_json::json!({ "max_age": 3_000_000_000_u64, "duplicate_window": 1_000_000_000 }),
        )
        .await;
    publish(&world, 1, 4).await;
    let mut ghosts = source(&world.broker.connect(), SECOND).await;
    assert!(
        !ghosts
            .pull(4, Duration::from_secs(30))
            .await
            .expect("the broker")
            .is_empty()
    );
    drop(ghosts);
    tokio::time::sleep(Duration::from_secs(5)).await;
    publish(&world, 5, 5).await;
    let inbox = run(&world, "billing", SECOND).await;
    eventually("the new one is handled", || async {
        world.database.effects("billing", "m5").await == 1
    })
    .await;
    stop(inbox).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f55_a_message_may_be_removed_while_it_is_handled() {
    let server = server().await;
    let world = super::world_on(&server).await;
    let account = world.broker.account();
    account.api("STREAM.DELETE.TEST", Value::Null).await;
    account
        .make_stream("TEST", &["order.>"], serde_json::json!({ "max_msgs_per_subject": 1 }))
        .await;
    world.probe.script(|call| match call.id.as_str() {
        "m1" => Step::Sleep(Duration::from_millis(700)),
        _ => Step::Ok,
    });
    publish(&world, 1, 1).await;
    let inbox = run(&world, "billing", SECOND).await;
    eventually("it is handled", || async { world.probe.total() == 1 }).await;
    publish(&world, 2, 2).await;
    effects(&world, 2).await;
    let report = stop(inbox).await;
    assert_eq!(report.processed, 2, "{report}");
    assert_all_done(&world, 2).await;
}

/// A failed message blocks later ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ordered_is_strict_order() {
    let world = world().await;
    publish(&world, 1, 6).await;
    world.probe.script(|call| match (call.id.as_str(), call.run) {
        ("m2", 1..=2) => Step::Fail("not yet"),
        _ => Step::Ok,
    });
    let builder = world.builder_of(super::handlers::MODULE, &["strict"]);
    let inbox = builder.spawn().await.expect("an inbox");
    effects(&world, 6).await;
    stop(inbox).await;
    let order: Vec<_> = world.probe.calls().into_iter().map(|call| call.id).collect();
    assert_eq!(order, ["m1", "m2", "m2", "m2", "m3", "m4", "m5", "m6"]);
    let info = world
        .broker
        .account()
        .durable("TEST", "strict", "order.created")
        .await
        .expect("the durable");
    assert_eq!(info["config"]["max_ack_pending"], 1);
}
