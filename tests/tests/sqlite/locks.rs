//! A foreign connection that holds the write lock of the file, and what must not be held while a broker is waited for.

use std::{sync::Arc, time::Duration};

use inbox_runtime::{
    Inbox, Outcome,
    sqlx::{
        SqlitePool,
        sqlite::{SqliteConnectOptions, SqlitePoolOptions},
    },
};
use inbox_tests::{Step, TestBroker, TestDatabase, eventually, next};
use tokio::{sync::Semaphore, time::timeout};

use super::{HANG, Here};

const MESSAGES: usize = 12;

async fn patient_pool(world: &Here, busy_timeout: Duration) -> SqlitePool {
    let options = SqliteConnectOptions::new()
        .filename(world.database.path())
        .busy_timeout(busy_timeout);
    SqlitePoolOptions::new().connect_with(options).await.expect("a pool")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g32_a_foreign_writer_is_waited_for_in_order() {
    // However patient the pool is, health says why.
    for busy_timeout in [Duration::ZERO, Duration::from_secs(1), Duration::from_secs(600)] {
        let world = Here::new().await;
        let pool = patient_pool(&world, busy_timeout).await;
        // The first one has failed before, so that its attempt is counted before it is made.
        world.probe.script(|call| match (call.id.as_str(), call.run) {
            ("m0", 1) => Step::RetryAfter(Duration::from_millis(500)),
            _ => Step::Ok,
        });
        let handle = world.builder(&["billing"]).store(pool).spawn().await.expect("an inbox");
        world.publish("m0").await;
        eventually("it has failed once", async || handle.report().failed == 1).await;
        let lock = world.database.lock_claim("billing", "m0").await;
        // Its back-off passes meanwhile.
        tokio::time::sleep(Duration::from_secs(1)).await;
        for number in 1..MESSAGES {
            world.publish(&format!("m{number}")).await;
        }
        eventually("not ready, with the cause", async || {
            let health = handle.health();
            health
                .reasons
                .iter()
                .any(|reason| reason.contains("has held the write lock of") && reason.contains("app.db"))
        })
        .await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(!handle.health().ready);
        world.database.unlock(lock).await;

        eventually("everything is done", || world.settled("billing")).await;
        eventually("ready", async || handle.health().ready).await;
        let ids: Vec<_> = world.probe.calls().into_iter().skip(1).map(|call| call.id).collect();
        let wanted: Vec<_> = (0..MESSAGES).map(|number| format!("m{number}")).collect();
        assert_eq!(ids, wanted, "in their order");
        handle.stop();
        let report = handle.join().await.expect("stopped");
        assert_eq!(
            (report.processed, report.failed, report.locked, report.dead_lettered),
            (12, 1, 0, 0),
            "{report}"
        );
        assert!(report.deferred > 0, "{report}");
        assert_eq!(world.letters("billing").await, []);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g32_all_handlers_of_the_file_say_why() {
    let world = Here::new().await;
    let handle = world
        .builder(&["billing", "shipping", "audit", "patient", "at-most-once"])
        .spawn()
        .await
        .expect("an inbox");
    let lock = world.database.lock_claim("billing", "m0").await;
    for number in 0..MESSAGES {
        world.publish(&format!("m{number}")).await;
    }
    eventually("each says why", async || {
        let handlers = handle.health().handlers;
        let locked = |why: &Option<String>| why.as_ref().is_some_and(|why| why.contains("write lock"));
        handlers.len() == 5 && handlers.iter().all(|handler| locked(&handler.database))
    })
    .await;
    world.database.unlock(lock).await;
    eventually("everything is done", async || handle.report().acked == 60).await;
    handle.stop();
    let report = handle.join().await.expect("stopped");
    assert_eq!((report.processed, report.failed), (60, 0), "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g32_a_stop_does_not_wait_for_the_lock() {
    let world = Here::new().await;
    let pool = patient_pool(&world, Duration::from_secs(600)).await;
    let handle = world
        .builder(&["billing", "at-most-once", "audit"])
        .store(pool)
        .spawn()
        .await
        .expect("an inbox");
    let lock = world.database.lock_claim("billing", "m0").await;
    world.publish("m0").await;
    eventually("not ready", async || !handle.health().ready).await;
    handle.stop();
    timeout(HANG, handle.join()).await.expect("in time").expect("stopped");
    world.database.unlock(lock).await;
    assert_eq!(world.probe.total(), 0);
    let mut inbox = world.inbox(&["billing"]).await;
    world.broker.pass(Duration::from_secs(60)).await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
}

/// An inbox whose acknowledgements reach the broker, beside one whose do not.
fn other_inbox(world: &Here) -> inbox_runtime::InboxBuilder {
    world.builder(&["billing"]).broker(world.broker.connect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g31_a_refused_acknowledgement_stops_nobody_else() {
    let world = Here::new().await;
    world.flaky.lose_acks(u32::MAX);
    let first = world.builder(&["at-most-once"]).spawn().await.expect("an inbox");
    world.publish("m0").await;
    eventually("its acknowledgement is refused", async || first.report().deferred > 0).await;
    beside(&world, &other_inbox(&world).spawn().await.expect("an inbox")).await;
    assert_eq!(world.probe.runs("at-most-once", "m0"), 0);
    world.flaky.lose_acks(0);
    eventually("it is done", || world.settled("at-most-once")).await;
    first.stop();
    let report = first.join().await.expect("stopped");
    assert_eq!((report.processed, report.failed), (21, 0), "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g31_an_acknowledgement_that_is_not_confirmed_stops_nobody_else() {
    let world = Here::new().await;
    let (asked, answer) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (asking, answered) = (asked.clone(), answer.clone());
    world.flaky.watch_acks(move || {
        let (asking, answered) = (asking.clone(), answered.clone());
        async move {
            asking.add_permits(1);
            answered.acquire().await.expect("open").forget();
        }
    });
    let first = world.builder(&["at-most-once"]).spawn().await.expect("an inbox");
    world.publish("m0").await;
    asked.acquire().await.expect("open").forget();
    beside(&world, &other_inbox(&world).spawn().await.expect("an inbox")).await;
    answer.add_permits(1000);
    eventually("it is done", || world.settled("at-most-once")).await;
    first.stop();
    first.join().await.expect("stopped");
}

/// The other handlers on the same file go on.
async fn beside(world: &Here, other: &inbox_runtime::InboxHandle) {
    for number in 1..=20 {
        world.publish(&format!("m{number}")).await;
    }
    eventually("the others are handled", || world.settled("billing")).await;
    assert_eq!(other.report().processed, 21);
    other.stop();
}

/// Under `at_most_once` the message is acknowledged before its transaction begins: somebody else who takes the lock in
/// between is waited for, since a message that is given up then is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g31_a_lock_that_is_taken_after_the_acknowledgement_loses_nothing() {
    let world = Here::new().await;
    world.publish("m0").await;
    let lock = Arc::new(tokio::sync::Mutex::new(None));
    let (held, database) = (lock.clone(), world.database.clone());
    world.flaky.watch_acks(move || {
        let (held, database) = (held.clone(), database.clone());
        async move {
            *held.lock().await = Some(database.lock_claim("at-most-once", "m0").await);
        }
    });
    let pool = patient_pool(&world, Duration::from_secs(5)).await;
    let mut inbox: Inbox = world
        .builder(&["at-most-once"])
        .store(pool)
        .build()
        .await
        .expect("an inbox");
    let database = world.database.clone();
    let unlock = async {
        eventually("acknowledged", async || lock.lock().await.is_some()).await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        database.unlock(lock.lock().await.take().expect("held")).await;
    };
    let (outcome, ()) = tokio::join!(next(&mut inbox), unlock);
    assert_eq!(outcome, Outcome::Processed);
}
