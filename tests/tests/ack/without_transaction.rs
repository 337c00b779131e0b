//! Handlers without a transaction: what they do, their attempts and their dead letters.

use std::time::Duration;

use inbox_runtime::{DeadLetterReason, Handled, HandlerError, Inbox, Json, Meta, Outcome, State, inbox_handler, sqlx};
use inbox_tests::{Order, Probe, Step, TestBroker, TestDatabase, World, next, suite};

suite!(
    a_failing_handler_is_retried_then_dead_lettered,
    b16_on_persist_records_the_failure_then_acknowledges,
    b15_at_most_once_is_acknowledged_first,
    an_outage_of_its_own_connection_is_no_attempt,
);

/// Does what the probe says; only what needs no transaction makes sense.
fn act(order: Order, meta: &Meta, probe: &Probe) -> Result<Handled, HandlerError> {
    match probe.enter(meta, order).1 {
        Step::Fail(text) => Err(text.into()),
        // Its stand-in for a pool that has no connection.
        Step::Hang => Err(sqlx::Error::PoolTimedOut.into()),
        _ => Ok(Handled::Processed),
    }
}

macro_rules! handler {
    ($name:ident, $($attribute:tt)*) => {
        #[inbox_handler(subject = "order.created", backoff = "1ms", $($attribute)*)]
        async fn $name(Json(order): Json<Order>, meta: Meta, State(probe): State<Probe>) -> Result<Handled, HandlerError> {
            tokio::task::yield_now().await;
            act(order, &meta, &probe)
        }
    };
}

handler!(notify, group = "notify", ack = "at_least_once", max_attempts = 3);
handler!(record, group = "record", ack = "at_least_once", commit = "on_persist");
handler!(count, group = "count", ack = "at_most_once");

async fn inbox<B: TestBroker, D: TestDatabase>(world: &World<B, D>, group: &str) -> Inbox {
    world.publish("m1").await;
    let builder = Inbox::builder()
        .store(world.database.pool())
        .broker(world.flaky.clone());
    builder
        .state(world.probe.clone())
        .groups([group])
        .build()
        .await
        .expect("an inbox")
}

async fn a_failing_handler_is_retried_then_dead_lettered<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.probe.script(|_| Step::Fail("no network"));
    let mut inbox = inbox(&world, "notify").await;
    for outcome in [Outcome::Failed, Outcome::Failed, Outcome::DeadLettered] {
        assert_eq!(next(&mut inbox).await, outcome);
    }
    let letter = world.letter("notify").await;
    assert_eq!(
        (letter.reason, letter.attempts, letter.error.as_str()),
        (DeadLetterReason::Exhausted, 3, "no network")
    );
    assert_eq!(world.probe.total(), 3);
    assert!(world.settled("notify").await);

    world.probe.script(|_| Step::Ok);
    world.dead_letters().replay(letter.id).await.expect("marked");
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    assert_eq!(world.letters("notify").await, []);
    assert_eq!(world.attempts("notify").await, 0);
}

async fn b16_on_persist_records_the_failure_then_acknowledges<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.probe.script(|_| Step::Fail("no network"));
    let mut inbox = inbox(&world, "record").await;
    assert_eq!(next(&mut inbox).await, Outcome::DeadLettered);
    assert_eq!(world.letter("record").await.reason, DeadLetterReason::Persisted);
    assert!(world.settled("record").await);
    assert_eq!(world.probe.total(), 1);
}

async fn b15_at_most_once_is_acknowledged_first<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.probe.script(|_| Step::Fail("no network"));
    let mut inbox = inbox(&world, "count").await;
    world.flaky.lose_acks(1);
    assert_eq!(next(&mut inbox).await, Outcome::Deferred);
    assert_eq!(world.probe.total(), 0);
    world.broker.pass(Duration::from_secs(60)).await;
    assert_eq!(next(&mut inbox).await, Outcome::Failed);
    assert_eq!(world.probe.total(), 1);
    assert!(world.settled("count").await);
    assert_eq!(world.letters("count").await, []);
}

async fn an_outage_of_its_own_connection_is_no_attempt<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.probe.script(|_| Step::Hang);
    let mut inbox = inbox(&world, "notify").await;
    assert_eq!(next(&mut inbox).await, Outcome::Deferred);
    assert_eq!(world.attempts("notify").await, 0);
    assert!(!world.settled("notify").await);
}
