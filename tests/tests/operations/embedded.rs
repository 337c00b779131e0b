//! The embedded broker under an inbox: its lag, what it says of durables that nobody reads, and a file that is locked at the
//! end.

use std::{sync::Arc, time::Duration};

use inbox_runtime::{
    Broker, Embedded, Message, Subscription,
    sqlx::{self, Connection, SqliteConnection, sqlite::SqliteConnectOptions},
};
use inbox_tests::{EmbeddedFile, SqliteFile, Step, TestDatabase, World, eventually};
use tokio::sync::{Mutex, Semaphore};

use crate::capture::captured;

type OneFile = World<EmbeddedFile, SqliteFile>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g38_the_lag_is_reported_and_comes_to_nothing() {
    let world = OneFile::new().await;
    for number in 0..30 {
        world.publish(&format!("m{number}")).await;
    }
    let gate = Arc::new(Semaphore::new(0));
    world.probe.script({
        let gate = gate.clone();
        move |_| Step::Gate(gate.clone())
    });
    let inbox = world.builder(&["billing"]).spawn().await.expect("an inbox");
    let lag = || inbox.health().handlers[0].lag;
    eventually("all are waiting", async || lag() == Some(30)).await;
    gate.add_permits(30);
    eventually("none is", async || lag() == Some(0)).await;
    inbox.stop();
    inbox.join().await.expect("stopped");
}

/// The file is locked by another program when the acknowledgement is written: the work is done, and nobody knows it there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g18_acknowledgements_that_are_not_confirmed_at_the_end_are_counted_and_reported() {
    let _ = captured();
    let world = OneFile::new().await;
    let options = SqliteConnectOptions::new().filename(world.broker.path());
    let other: Arc<Mutex<Option<SqliteConnection>>> = Arc::default();
    world.flaky.watch_acks({
        let other = other.clone();
        move || {
            let (other, options) = (other.clone(), options.clone());
            async move {
                let mut connection = SqliteConnection::connect_with(&options).await.expect("a connection");
                sqlx::raw_sql("BEGIN IMMEDIATE")
                    .execute(&mut connection)
                    .await
                    .expect("the lock");
                *other.lock().await = Some(connection);
            }
        }
    });
    world.publish("m1").await;
    let builder = world.builder(&["billing"]).shutdown_timeout(Duration::from_millis(500));
    let inbox = builder.spawn().await.expect("an inbox");
    eventually("the acknowledgement waits", async || other.lock().await.is_some()).await;
    inbox.stop();
    let report = inbox.join().await.expect("stopped");
    assert_eq!(
        (
            report.processed,
            report.acked + report.ack_failures + report.unconfirmed
        ),
        (1, 1),
        "{report}"
    );
    assert_eq!(report.acked, 0, "{report}");
    drop(other.lock().await.take());
    assert_eq!(world.database.effects("billing", "m1").await, 1);
    let log = captured().log();
    assert!(
        log.contains("an acknowledgement was not confirmed by the broker")
            || log.contains("the acknowledgement failed"),
        "it is logged"
    );

    world.flaky.watch_acks(async || {});
    let mut inbox = world.inbox(&["billing"]).await;
    world.lease_runs_out().await;
    let report = inbox.run_until_idle().await.expect("the broker");
    // What had been sent to SQLite may have been written when the lock was gone.
    assert_eq!((report.processed, report.duplicate), (0, report.acked), "{report}");
    eventually("it is settled", async || world.settled("billing").await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_durable_that_nobody_reads_is_warned_of_and_keeps_its_messages() {
    let seen = captured();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("broker.db");
    let broker = Embedded::file(&file);
    let sources = broker
        .subscribe(vec![
            Subscription::new("forgotten", "lonely.>"),
            Subscription::new("forgotten", "done"),
        ])
        .await
        .expect("durables");
    for number in 0..3 {
        broker
            .publish(Message::new("lonely.x", number.to_string()))
            .await
            .expect("published");
    }
    drop((sources, broker));

    let broker = Embedded::file(&file).keep_for(Duration::ZERO);
    broker.advance_clock(Duration::from_secs(2 * 86_400));
    let _source = broker
        .subscribe(vec![Subscription::new("present", "other")])
        .await
        .expect("a durable");
    eventually("it is warned of the one that keeps messages", async || {
        let log = seen.log();
        log.lines().any(|line| {
            [
                "WARN",
                "keeps 3 messages",
                "2days",
                "forgotten",
                "lonely.>",
                "remove_consumer",
            ]
            .iter()
            .all(|part| line.contains(part))
        })
    })
    .await;
    assert!(
        !seen.log().contains("remove_consumer(\"forgotten\", \"done\")"),
        "it keeps none"
    );
    let kept = broker
        .consumer("forgotten", "lonely.>")
        .await
        .expect("the broker")
        .expect("the durable");
    assert_eq!(kept.waiting, 3);
}
