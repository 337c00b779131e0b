//! Commits whose answer is lost, and how many round trips a message takes.

use std::{sync::Arc, time::Instant};

use inbox_runtime::{OutboxMode, Outcome};
use inbox_tests::{
    Step, TestDatabase, eventually, next, pool,
    servers::{Cut, Proxy},
};

use tokio::sync::Semaphore;

use crate::{World, assert_all_done, publish, settle, shared, world_with};

/// A world whose inbox reaches the database through a proxy.
async fn proxied() -> Option<(World, Proxy)> {
    let proxy = Proxy::before(shared()?.port()).await;
    let world = world_with(|database| {
        let url = proxy.url(&database.url());
        pool(url.parse().expect("a URL"), 10)
    })
    .await;
    Some((world, proxy))
}

async fn cut(cut: Cut, runs: u32, then: Outcome) {
    let Some((world, proxy)) = proxied().await else { return };
    let mut inbox = world.inbox(&["billing"]).await;
    // Prepared statements and tables are there.
    world.publish("m0").await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    world.publish("m1").await;
    proxy.cut_once("COMMIT", cut);
    assert_eq!(next(&mut inbox).await, Outcome::Deferred);
    assert_eq!(proxy.cuts(), 1);
    assert!(
        !world.settled("billing").await,
        "acknowledged without a confirmed commit"
    );
    assert_eq!(settle(&mut inbox).await, then);
    assert_eq!(world.probe.runs("billing", "m1"), runs);
    assert!(world.settled("billing").await);
    assert_all_done(&world, "billing", 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f12_committed_and_the_answer_is_lost() {
    cut(Cut::Answer, 1, Outcome::Duplicate).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f12_the_commit_never_arrives() {
    cut(Cut::Request, 2, Outcome::Processed).await;
}

/// The same where the commit also begins the next transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f12_under_load() {
    let Some((world, proxy)) = proxied().await else { return };
    publish(&world, 60).await;
    let cutter = async {
        for round in 0..6 {
            let before = proxy.cuts();
            proxy.cut_once("COMMIT", if round % 2 == 0 { Cut::Answer } else { Cut::Request });
            while proxy.cuts() == before && !world.settled("billing").await {
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    world.probe.script(|_| Step::Sleep(std::time::Duration::from_millis(5)));
    let inbox = world.inbox(&["billing"]).await.spawn();
    cutter.await;
    eventually("all is settled", || world.settled("billing")).await;
    inbox.stop();
    let report = inbox.join().await.expect("stopped");
    assert!(report.deferred >= 3, "{report}");
    assert_all_done(&world, "billing", 60).await;
}

/// The handler's statement, and one simple query that seals, commits, begins the next transaction and claims its message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_follows_another_takes_two_round_trips() {
    let Some((world, proxy)) = proxied().await else { return };
    publish(&world, 100).await;
    let gate = Arc::new(Semaphore::new(0));
    let wait = gate.clone();
    world.probe.script(move |_| Step::Gate(wait.clone()));
    // A relay would look at the outbox meanwhile.
    let builder = world.builder(&["billing"]).outbox(OutboxMode::Off);
    let inbox = builder.build().await.expect("an inbox");
    let (start, before) = (Instant::now(), proxy.round_trips());
    let inbox = inbox.spawn();
    for number in 1..=100 {
        // A message is always prefetched, however slow the machine is: this one is not handled before the next is published.
        eventually("the next one is there", async || {
            let handling = world.probe.total() == number && inbox.report().acked + 1 == number as u64;
            handling && (number == 100 || inbox.health().handlers[0].in_flight >= 2)
        })
        .await;
        gate.add_permits(1);
    }
    eventually("all is settled", || world.settled("billing")).await;
    let (taken, seconds) = (proxy.round_trips() - before, start.elapsed().as_secs());
    inbox.stop();
    inbox.join().await.expect("stopped");
    assert_all_done(&world, "billing", 100).await;
    println!("{:.2} round trips a message", taken as f64 / 100.0);
    // In addition: the connection and its statements, the first and the last transaction, and every five seconds a query for
    // due replays and one for the server's settings.
    let allowed = 200..260 + 2 * seconds;
    assert!(
        allowed.contains(&taken),
        "{taken} round trips for 100 messages in {seconds} s"
    );
}
