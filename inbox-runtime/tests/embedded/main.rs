//! The embedded broker through its public API: leases, redelivery, sharing a file, faults.
#![cfg(feature = "embedded")]

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::{Child, Command},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use inbox_runtime::{
    Broker, BrokerError, Delivery, Embedded, Lease, Message, Source, StartPosition, Subscription,
    embedded::{ConsumerInfo, EmbeddedLease, EmbeddedSource},
    sqlx::{self, Connection, SqliteConnection, sqlite::SqliteConnectOptions},
};
use tempfile::TempDir;
use tokio::time::timeout;

mod faults;
mod publish_all;
mod retention;
mod start;

const NOW: Duration = Duration::ZERO;
const SECOND: Duration = Duration::from_secs(1);
/// An ack-wait longer than any test.
const HOUR: Duration = Duration::from_secs(3600);

type Pulled = (Delivery, EmbeddedLease);

fn file() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("broker.db");
    (dir, path)
}

async fn open(broker: &Embedded, subscription: Subscription) -> EmbeddedSource {
    broker.subscribe(vec![subscription]).await.unwrap().remove(0)
}

async fn source(broker: &Embedded, group: &str, subject: &str) -> EmbeddedSource {
    open(broker, Subscription::new(group, subject)).await
}

async fn publish(broker: &Embedded, subject: &str, payloads: impl IntoIterator<Item = impl ToString>) {
    for payload in payloads {
        broker
            .publish(Message::new(subject, payload.to_string()))
            .await
            .unwrap();
    }
}

async fn pull(source: &mut EmbeddedSource, max: usize) -> Vec<Pulled> {
    source.pull(max, NOW).await.unwrap()
}

async fn one(source: &mut EmbeddedSource) -> Pulled {
    let mut pulled = pull(source, 1).await;
    assert_eq!(pulled.len(), 1, "a delivery is ready");
    pulled.remove(0)
}

async fn none(source: &mut EmbeddedSource) {
    assert_eq!(texts(&pull(source, 100).await), [""; 0]);
}

fn text(delivery: &Delivery) -> String {
    String::from_utf8(delivery.payload.clone().unwrap().to_vec()).unwrap()
}

fn texts(pulled: &[Pulled]) -> Vec<String> {
    pulled.iter().map(|(delivery, _)| text(delivery)).collect()
}

async fn info(broker: &Embedded, group: &str, subject: &str) -> ConsumerInfo {
    broker
        .consumer(group, subject)
        .await
        .unwrap()
        .expect("the durable is there")
}

/// Waiting, pending, acknowledged.
async fn counts(broker: &Embedded, group: &str, subject: &str) -> (u64, u64, u64) {
    let info = info(broker, group, subject).await;
    (info.waiting, info.ack_pending, info.acked)
}

async fn raw(path: &Path) -> SqliteConnection {
    let options = SqliteConnectOptions::new().filename(path).create_if_missing(true);
    SqliteConnection::connect_with(&options).await.unwrap()
}

/// Waits until `is_so`, for as long as a busy machine may need.
async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !is_so().await {
        assert!(start.elapsed() < 60 * SECOND, "never: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

// === deliveries ===

#[tokio::test]
async fn a_message_is_delivered_once_and_settled_by_its_ack() {
    let broker = Embedded::memory();
    let before = SystemTime::now() - SECOND;
    let published = broker
        .publish(Message::new("order.created", "one").id("evt-1"))
        .await
        .unwrap();
    assert!(!published.duplicate);
    let mut source = source(&broker, "billing", "order.created").await;
    assert_eq!(counts(&broker, "billing", "order.created").await, (1, 0, 0));

    let (delivery, lease) = one(&mut source).await;
    assert_eq!(
        (delivery.subject.as_str(), text(&delivery).as_str()),
        ("order.created", "one")
    );
    assert_eq!(delivery.headers.get("message_id"), Some(&b"evt-1"[..]));
    assert_eq!(delivery.position, published.position);
    assert_eq!((delivery.delivery_count, delivery.redelivered), (Some(1), false));
    assert!((before..SystemTime::now() + SECOND).contains(&delivery.published_at.unwrap()));
    none(&mut source).await;
    assert_eq!(counts(&broker, "billing", "order.created").await, (0, 1, 0));

    lease.ack().await.unwrap();
    assert_eq!(counts(&broker, "billing", "order.created").await, (0, 0, 1));
    broker.advance_clock(HOUR);
    none(&mut source).await;
}

#[tokio::test]
async fn a_pull_takes_at_most_max_and_does_not_wait_for_more() {
    let broker = Embedded::memory();
    let mut source = source(&broker, "g", "a").await;
    publish(&broker, "a", 0..5).await;
    assert!(source.pull(0, HOUR).await.unwrap().is_empty());
    assert_eq!(texts(&source.pull(3, HOUR).await.unwrap()), ["0", "1", "2"]);
    assert_eq!(texts(&source.pull(3, HOUR).await.unwrap()), ["3", "4"]);
    let start = Instant::now();
    assert!(source.pull(3, Duration::from_millis(100)).await.unwrap().is_empty());
    assert!(start.elapsed() >= Duration::from_millis(100), "{:?}", start.elapsed());
}

#[tokio::test]
async fn f40_an_unacknowledged_message_is_redelivered_after_the_ack_wait() {
    let broker = Embedded::memory();
    let mut source = source(&broker, "g", "a").await;
    publish(&broker, "a", ["x"]).await;
    for count in 1..=5 {
        let (delivery, _) = one(&mut source).await;
        assert_eq!(
            (delivery.delivery_count, delivery.redelivered),
            (Some(count), count > 1)
        );
        broker.advance_clock(Duration::from_secs(29));
        none(&mut source).await;
        broker.advance_clock(SECOND);
    }
}

#[tokio::test]
async fn f40_a_waiting_pull_gets_an_expired_lease() {
    let broker = Embedded::memory();
    let mut source = open(
        &broker,
        Subscription::new("g", "a").ack_wait(Duration::from_millis(300)),
    )
    .await;
    publish(&broker, "a", ["x"]).await;
    let start = Instant::now();
    one(&mut source).await;
    let pulled = timeout(30 * SECOND, source.pull(1, HOUR)).await.expect("in time");
    assert_eq!(pulled.unwrap().len(), 1);
    assert!(start.elapsed() >= Duration::from_millis(300), "{:?}", start.elapsed());
}

#[tokio::test]
async fn redeliveries_come_first_and_the_oldest_before_the_rest() {
    let broker = Embedded::memory();
    let mut source = source(&broker, "g", "a").await;
    publish(&broker, "a", 0..6).await;
    let pulled = pull(&mut source, 4).await;
    for (_, lease) in pulled.iter().rev() {
        lease.nak(NOW).await.unwrap();
    }
    assert_eq!(texts(&pull(&mut source, 3).await), ["0", "1", "2"]);
    let rest = pull(&mut source, 9).await;
    assert_eq!(texts(&rest), ["3", "4", "5"]);
    assert_eq!(
        rest.iter().map(|(d, _)| d.delivery_count.unwrap()).collect::<Vec<_>>(),
        [2, 1, 1]
    );
}

#[tokio::test]
async fn an_ordered_subscription_waits_for_pending_messages() {
    let broker = Embedded::memory();
    publish(&broker, "a", [1, 2, 3]).await;
    let mut source = open(&broker, Subscription::new("g", "a").ordered(true)).await;
    let (_, first) = one_of(&mut source, "1").await;
    none(&mut source).await;
    first.nak(HOUR).await.unwrap();
    none(&mut source).await;
    broker.advance_clock(HOUR);
    let (_, again) = one_of(&mut source, "1").await;
    again.ack().await.unwrap();
    let (_, second) = one_of(&mut source, "2").await;
    none(&mut source).await;
    second.ack().await.unwrap();
    one_of(&mut source, "3").await;
}

/// Pulls all that are ready: one, with the expected text.
async fn one_of(source: &mut EmbeddedSource, expected: &str) -> Pulled {
    let mut pulled = pull(source, 10).await;
    assert_eq!(texts(&pulled), [expected]);
    pulled.remove(0)
}

#[tokio::test]
async fn f47_a_nak_is_redelivered_after_its_delay_by_the_clock() {
    let broker = Embedded::memory();
    let mut source = source(&broker, "g", "a").await;
    publish(&broker, "a", ["x"]).await;
    for seconds in [2_u64, 4, 300] {
        let delay = Duration::from_secs(seconds);
        one(&mut source).await.1.nak(delay).await.unwrap();
        broker.advance_clock(delay.mul_f64(0.9));
        none(&mut source).await;
        broker.advance_clock(delay.mul_f64(0.1) + Duration::from_millis(1));
    }
    assert_eq!(one(&mut source).await.0.delivery_count, Some(4));
}

#[tokio::test]
async fn f47_a_nak_is_redelivered_after_its_delay_in_real_time() {
    let broker = Embedded::memory();
    let mut source = source(&broker, "g", "a").await;
    publish(&broker, "a", ["x"]).await;
    let (_, mut lease) = one(&mut source).await;
    let mut late = Vec::new();
    for delay in [300, 500, 700, 400, 600].map(Duration::from_millis) {
        let start = Instant::now();
        lease.nak(delay).await.unwrap();
        lease = source.pull(1, 30 * SECOND).await.unwrap().remove(0).1;
        let gap = start.elapsed();
        assert!(gap >= delay, "{gap:?} instead of {delay:?}");
        late.push(gap.as_secs_f64() / delay.as_secs_f64());
    }
    // The fastest of several: a busy machine may be late at any time.
    late.sort_by(f64::total_cmp);
    assert!(late[0] <= 1.5, "{late:?} times the delay");
}

#[tokio::test]
async fn the_longest_delays_and_ack_waits_are_accepted() {
    let broker = Embedded::memory();
    let mut source = open(&broker, Subscription::new("g", "a").ack_wait(Duration::MAX)).await;
    publish(&broker, "a", ["x"]).await;
    let (_, lease) = one(&mut source).await;
    lease.progress().await.unwrap();
    lease.nak(Duration::MAX).await.unwrap();
    assert!(source.pull(1, Duration::from_millis(50)).await.unwrap().is_empty());
    let mut source = open(&broker, Subscription::new("g", "a").ack_wait(Duration::ZERO)).await;
    assert!(source.ack_wait() > Duration::ZERO);
    assert!(timeout(SECOND, source.pull(1, Duration::MAX)).await.is_err());
}

#[tokio::test]
async fn f43_progress_renews_a_lease() {
    let broker = Embedded::memory();
    let mut source = source(&broker, "g", "a").await;
    assert_eq!(source.ack_wait(), Duration::from_secs(30));
    publish(&broker, "a", ["x"]).await;
    let (_, lease) = one(&mut source).await;
    for _ in 0..10 {
        broker.advance_clock(Duration::from_secs(20));
        lease.progress().await.unwrap();
        none(&mut source).await;
    }
    broker.advance_clock(Duration::from_secs(31));
    assert_eq!(one(&mut source).await.0.delivery_count, Some(2));
}

#[tokio::test]
async fn f44_a_late_nak_or_progress_does_not_touch_the_next_lease() {
    let broker = Embedded::memory();
    let mut source = source(&broker, "g", "a").await;
    publish(&broker, "a", ["x"]).await;
    let (_, late) = one(&mut source).await;
    broker.advance_clock(Duration::from_secs(31));
    let (_, current) = one(&mut source).await;

    late.nak(NOW).await.unwrap();
    none(&mut source).await;
    broker.advance_clock(Duration::from_secs(20));
    let error = late.progress().await.unwrap_err().to_string();
    assert!(error.contains("has passed on"), "{error}");
    broker.advance_clock(Duration::from_secs(9));
    none(&mut source).await;

    current.nak(NOW).await.unwrap();
    assert_eq!(one(&mut source).await.0.delivery_count, Some(3));
}

#[tokio::test]
async fn f44_a_late_ack_settles_the_message() {
    let broker = Embedded::memory();
    let mut source = source(&broker, "g", "a").await;
    publish(&broker, "a", ["x", "y"]).await;
    for _ in 0..2 {
        let (_, late) = one(&mut source).await;
        broker.advance_clock(Duration::from_secs(31));
        let (_, current) = one(&mut source).await;
        late.ack().await.unwrap();
        assert!(current.progress().await.is_err());
        current.nak(NOW).await.unwrap();
        current.ack().await.unwrap();
        broker.advance_clock(HOUR);
    }
    none(&mut source).await;
    assert_eq!(counts(&broker, "g", "a").await, (0, 0, 2));
}

#[tokio::test]
async fn f44_ack_confirmed_succeeds_for_one_lease_only() {
    let broker = Embedded::memory();
    let mut source = source(&broker, "g", "a").await;
    publish(&broker, "a", ["x"]).await;
    let (_, late) = one(&mut source).await;
    broker.advance_clock(Duration::from_secs(31));
    let (_, current) = one(&mut source).await;
    let refused = |confirmed| assert!(matches!(confirmed, Err(BrokerError::LeaseLost { .. })), "{confirmed:?}");
    refused(late.ack_confirmed().await);
    current.ack_confirmed().await.unwrap();
    refused(late.ack_confirmed().await);
    refused(current.ack_confirmed().await);
    assert_eq!(counts(&broker, "g", "a").await, (0, 0, 1));
}

#[tokio::test]
async fn a_closed_source_releases_what_it_did_not_return() {
    let broker = Embedded::memory();
    let mut closing = source(&broker, "g", "a").await;
    publish(&broker, "a", ["x", "y"]).await;
    // A pull that is dropped during a fetch leaves its messages in the source.
    let _ = timeout(NOW, closing.pull(2, HOUR)).await;
    closing.close().await;
    let mut source = source(&broker, "g", "a").await;
    assert_eq!(source.pull(2, NOW).await.unwrap().len(), 2);
}

#[tokio::test]
async fn f45_the_ack_wait_is_that_of_the_newest_subscription() {
    let broker = Embedded::memory();
    let mut old = source(&broker, "g", "a").await;
    let new = open(&broker, Subscription::new("g", "a").ack_wait(5 * SECOND)).await;
    assert_eq!(new.ack_wait(), 5 * SECOND);
    assert_eq!(info(&broker, "g", "a").await.ack_wait, 5 * SECOND);
    publish(&broker, "a", ["x"]).await;
    let (_, lease) = one(&mut old).await;
    assert_eq!(old.ack_wait(), 5 * SECOND, "progress is paced by what the broker does");
    broker.advance_clock(4 * SECOND);
    lease.progress().await.unwrap();
    broker.advance_clock(6 * SECOND);
    one(&mut old).await;
}

#[tokio::test]
async fn a_lease_from_the_future_has_expired_when_the_clock_is_put_back() {
    let broker = Embedded::memory();
    let mut source = source(&broker, "g", "a").await;
    publish(&broker, "a", ["leased", "nakked"]).await;
    let pulled = pull(&mut source, 2).await;
    pulled[1].1.nak(HOUR).await.unwrap();
    broker.turn_clock_back(24 * HOUR);
    let again = pull(&mut source, 9).await;
    assert_eq!(texts(&again), ["leased", "nakked"]);
    // New leases are valid.
    again[0].1.progress().await.unwrap();
    again[1].1.nak(HOUR).await.unwrap();
    none(&mut source).await;
    broker.advance_clock(Duration::from_secs(31));
    assert_eq!(texts(&pull(&mut source, 9).await), ["leased"]);
}

// === consumers ===

#[tokio::test]
async fn f39_the_start_of_a_group_is_decided_when_it_is_created() {
    let broker = Embedded::memory();
    publish(&broker, "a", ["old"]).await;
    let mut first = source(&broker, "first", "a").await;
    let new = || Subscription::new("new", "a").start(StartPosition::New);
    let mut source = open(&broker, new()).await;
    none(&mut source).await;
    publish(&broker, "a", ["while it is there"]).await;
    drop(source);
    publish(&broker, "a", ["while it is away"]).await;
    // A second subscription finds the durable, whatever its `start`.
    let mut source = open(&broker, new()).await;
    assert_eq!(texts(&pull(&mut source, 1).await), ["while it is there"]);
    let mut source = open(&broker, new().start(StartPosition::First)).await;
    assert_eq!(texts(&pull(&mut source, 9).await), ["while it is away"]);
    assert_eq!(
        texts(&pull(&mut first, 9).await),
        ["old", "while it is there", "while it is away"]
    );
}

#[tokio::test]
async fn wildcards_match() {
    let broker = Embedded::memory();
    let mut sources = Vec::new();
    for subject in ["a.*", "a.>", "*.b", ">", "a.b", "*.b.>", "a.*.c"] {
        sources.push((subject, source(&broker, "g", subject).await));
    }
    for subject in ["a.b", "a.b.c", "a", "b.b", "A.b", "x.y.b.z"] {
        publish(&broker, subject, [subject]).await;
    }
    for (subject, source) in &mut sources {
        let expected: &[&str] = match *subject {
            "a.*" | "a.b" => &["a.b"],
            "a.>" => &["a.b", "a.b.c"],
            "*.b" => &["a.b", "b.b", "A.b"],
            "*.b.>" | "a.*.c" => &["a.b.c"],
            _ => &["a.b", "a.b.c", "a", "b.b", "A.b", "x.y.b.z"],
        };
        let waiting = info(&broker, "g", subject).await.waiting;
        assert_eq!(waiting, expected.len() as u64, "{subject}");
        // One by one, so that a scan also ends in the middle.
        let mut found = Vec::new();
        while let Some((delivery, lease)) = pull(source, 1).await.pop() {
            found.push(text(&delivery));
            lease.ack().await.unwrap();
        }
        assert_eq!(found, expected, "{subject}");
        assert!(info(&broker, "g", subject).await.is_idle());
    }
    assert_eq!(broker.consumers().await.unwrap().len(), 7);
}

#[tokio::test]
async fn a_rare_subject_is_found_after_many_others() {
    let broker = Embedded::memory();
    publish(&broker, "common", 0..9000).await;
    publish(&broker, "rare.one", ["x"]).await;
    publish(&broker, "common", 0..10).await;
    let mut source = source(&broker, "g", "rare.*").await;
    assert_eq!(texts(&pull(&mut source, 1).await), ["x"]);
    none(&mut source).await;
    publish(&broker, "rare.two", ["y"]).await;
    assert_eq!(texts(&pull(&mut source, 9).await), ["y"]);
}

#[tokio::test]
async fn f23_groups_are_independent() {
    let broker = Embedded::memory();
    let mut failing = source(&broker, "failing", "a").await;
    let mut working = source(&broker, "working", "a").await;
    publish(&broker, "a", 0..3).await;
    for (_, lease) in pull(&mut working, 9).await {
        lease.ack().await.unwrap();
    }
    for _ in 0..3 {
        for (_, lease) in pull(&mut failing, 9).await {
            lease.nak(NOW).await.unwrap();
        }
    }
    assert_eq!(counts(&broker, "working", "a").await, (0, 0, 3));
    assert_eq!(counts(&broker, "failing", "a").await, (0, 3, 0));
    assert_eq!(broker.consumer("failing", "b").await.unwrap(), None);
    assert_eq!(broker.consumer("other", "a").await.unwrap(), None);
}

#[tokio::test]
async fn null_is_not_empty_and_headers_are_kept_as_they_are() {
    let (_dir, path) = file();
    let broker = Embedded::file(&path);
    let mut sent = Message::tombstone("a")
        .header("k", "1")
        .header("k", "2")
        .header("K", vec![0, 0xff])
        .header("empty", "");
    sent.headers.append_null("null");
    broker.publish(sent.clone()).await.unwrap();
    broker.publish(Message::new("a", "")).await.unwrap();
    broker.publish(Message::new("a", vec![0, 0xff])).await.unwrap();

    let mut source = source(&broker, "g", "a").await;
    let pulled = pull(&mut source, 9).await;
    assert_eq!(pulled[0].0.headers, sent.headers);
    let payloads: Vec<_> = pulled.iter().map(|(delivery, _)| delivery.payload.as_deref()).collect();
    assert_eq!(payloads, [None, Some(&b""[..]), Some(&[0, 0xff][..])]);
}

#[tokio::test]
async fn f53_names_that_brokers_forbid_are_refused() {
    let broker = Embedded::memory();
    for subject in ["", "a b", "a.*", ">", "a..b", "café", "a?", "[a]", &"x".repeat(300)] {
        let error = broker.publish(Message::new(subject, "x")).await.unwrap_err();
        assert!(matches!(error, BrokerError::Refused { .. }), "{subject}: {error}");
    }
    for (group, subject) in [
        ("", "a"),
        ("a b", "a"),
        ("*", "a"),
        ("café", "a"),
        ("g", "a.>.b"),
        ("g", "a*"),
        ("g", ""),
    ] {
        let error = broker
            .subscribe(vec![Subscription::new(group, subject)])
            .await
            .unwrap_err();
        assert!(matches!(error, BrokerError::Invalid(_)), "{group} {subject}: {error}");
    }
    source(&broker, "billing.v2", "a").await;
}

// === waiting and cancelling ===

#[tokio::test]
async fn a_waiting_pull_is_woken_by_a_publish_a_nak_and_the_clock() {
    let broker = Embedded::memory();
    let mut waiting = source(&broker, "g", "a").await;
    let waiting = tokio::spawn(async move {
        let mut pulled = Vec::new();
        while pulled.len() < 3 {
            pulled.extend(waiting.pull(1, HOUR).await.unwrap());
            if let Some((_, lease)) = pulled.get(1) {
                lease.nak(HOUR).await.unwrap();
            }
        }
        pulled
            .into_iter()
            .map(|(delivery, _)| delivery.delivery_count.unwrap())
            .collect::<Vec<_>>()
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    publish(&broker, "a", ["x"]).await;
    while info(&broker, "g", "a").await.ack_pending == 0 {
        tokio::task::yield_now().await;
    }
    broker.advance_clock(Duration::from_secs(31));
    tokio::time::sleep(Duration::from_millis(100)).await;
    broker.advance_clock(2 * HOUR);
    let counts = timeout(60 * SECOND, waiting).await.unwrap().unwrap();
    assert_eq!(counts, [1, 2, 3]);
}

async fn cancelled_pulls_lose_nothing(broker: &Embedded) {
    let mut source = open(broker, Subscription::new("g", "a").ack_wait(HOUR)).await;
    publish(broker, "a", 0..100).await;
    let (mut got, mut cancelled) = (Vec::new(), 0);
    let start = Instant::now();
    let mut step = 0_u64;
    while got.len() < 100 {
        assert!(
            start.elapsed() < 60 * SECOND,
            "{} of 100 after {cancelled} cancelled pulls",
            got.len()
        );
        step += 1;
        // Every other one is dropped at its first await, the others at any time.
        let limit = Duration::from_micros(if step.is_multiple_of(2) { step * 37 % 1500 } else { 0 });
        let pulled = tokio::select! {
            biased;
            pulled = source.pull(3, SECOND) => pulled.unwrap(),
            () = spin(limit) => {
                cancelled += 1;
                continue;
            }
        };
        assert!(pulled.len() <= 3);
        got.extend(pulled);
    }
    assert!(cancelled > 20, "{cancelled}");
    let expected: Vec<_> = (0..100).map(|n| n.to_string()).collect();
    assert_eq!(texts(&got), expected);
    assert!(got.iter().all(|(delivery, _)| delivery.delivery_count == Some(1)));
    none(&mut source).await;
}

/// Waits more precisely than a timer.
async fn spin(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_cancelled_pull_loses_nothing_in_memory() {
    cancelled_pulls_lose_nothing(&Embedded::memory()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_pull_loses_nothing_in_a_file() {
    let (_dir, path) = file();
    cancelled_pulls_lose_nothing(&Embedded::file(&path)).await;
}

/// Polls a pull once, drops it, and waits until its fetch has ended.
async fn cancel_a_pull(source: &mut EmbeddedSource, broker: &Embedded) {
    let pending = info(broker, "g", "a").await.ack_pending;
    tokio::select! {
        biased;
        _ = source.pull(9, SECOND) => panic!("it can't be ready at once"),
        () = std::future::ready(()) => {}
    }
    while info(broker, "g", "a").await.ack_pending == pending {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn f42_leases_left_by_a_cancelled_pull_are_renewed_or_dropped() {
    let broker = Embedded::memory();
    let mut source = source(&broker, "g", "a").await;
    publish(&broker, "a", ["x", "y"]).await;
    cancel_a_pull(&mut source, &broker).await;
    broker.advance_clock(Duration::from_secs(20));
    let (_, lease) = one(&mut source).await;
    broker.advance_clock(Duration::from_secs(20));
    lease.progress().await.expect("it was renewed when it was handed over");
    lease.ack().await.unwrap();

    // The other one is still in the source when its lease expires and another source gets the message.
    broker.advance_clock(HOUR);
    let mut other = open(&broker, Subscription::new("g", "a")).await;
    let (delivery, lease) = one(&mut other).await;
    assert_eq!((text(&delivery).as_str(), delivery.delivery_count), ("y", Some(2)));
    none(&mut source).await;
    lease.progress().await.unwrap();
}

#[tokio::test]
async fn a_dropped_source_releases_what_it_did_not_return() {
    let broker = Embedded::memory();
    let mut dropped = source(&broker, "g", "a").await;
    publish(&broker, "a", ["x", "y"]).await;
    cancel_a_pull(&mut dropped, &broker).await;
    drop(dropped);
    let mut source = source(&broker, "g", "a").await;
    let pulled = timeout(SECOND, async {
        let mut pulled = Vec::new();
        while pulled.len() < 2 {
            pulled.extend(source.pull(2, SECOND).await.unwrap());
        }
        pulled
    });
    let pulled = pulled.await.unwrap();
    assert_eq!(texts(&pulled), ["x", "y"]);
    assert!(pulled.iter().all(|(delivery, _)| !delivery.redelivered));
}

// === files ===

#[tokio::test]
async fn a_file_keeps_messages_positions_and_leases() {
    let (_dir, path) = file();
    let broker = Embedded::file(&path);
    let first = broker.publish(Message::new("a", "acked")).await.unwrap();
    publish(&broker, "a", ["leased", "nakked", "waiting"]).await;
    let mut source = source(&broker, "g", "a").await;
    let pulled = pull(&mut source, 3).await;
    pulled[0].1.ack().await.unwrap();
    pulled[2].1.nak(HOUR).await.unwrap();
    let before = info(&broker, "g", "a").await;
    drop((pulled, source, broker));

    let broker = Embedded::file(&path);
    assert_eq!(info(&broker, "g", "a").await, before);
    assert_eq!(
        (before.waiting, before.ack_pending, before.acked, before.position),
        (1, 2, 1, 3)
    );
    let mut source = self::source(&broker, "g", "a").await;
    assert_eq!(texts(&pull(&mut source, 9).await), ["waiting"]);
    broker.advance_clock(Duration::from_secs(31));
    assert_eq!(texts(&pull(&mut source, 1).await), ["leased"]);
    broker.advance_clock(HOUR);
    assert_eq!(texts(&pull(&mut source, 9).await), ["leased", "nakked", "waiting"]);

    let next = broker.publish(Message::new("a", "x")).await.unwrap().position;
    let instance = first.position.strip_suffix(":1").unwrap();
    assert!(instance.starts_with("embedded:"));
    assert_eq!(next, format!("{instance}:5"));
}

#[tokio::test]
async fn f27_positions_of_different_brokers_differ() {
    let (_dir, path) = file();
    let mut positions = BTreeSet::new();
    for broker in [
        Embedded::file(&path),
        Embedded::file(path.with_extension("other")),
        Embedded::memory(),
    ] {
        for _ in 0..2 {
            positions.insert(broker.publish(Message::new("a", "same")).await.unwrap().position);
        }
    }
    std::fs::remove_file(&path).unwrap();
    positions.insert(
        Embedded::file(&path)
            .publish(Message::new("a", "same"))
            .await
            .unwrap()
            .position,
    );
    assert_eq!(positions.len(), 7);
}

#[tokio::test]
async fn describe_names_version_and_place() {
    let memory = Embedded::memory();
    assert_eq!(memory.file(), None);
    let text = memory.describe().await.unwrap();
    assert!(
        text.starts_with(concat!("embedded ", env!("CARGO_PKG_VERSION"), " (memory, SQLite 3.")),
        "{text}"
    );
    let (_dir, path) = file();
    let broker = Embedded::file(&path);
    assert_eq!(broker.file(), Some(path.clone()));
    assert!(!path.exists(), "nothing is made before it is used");
    let text = broker.describe().await.unwrap();
    assert!(text.contains(&format!("(file {}, SQLite 3.", path.display())), "{text}");
    assert!(Embedded::file("orders.db").file().unwrap().is_absolute());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_brokers_on_one_file_share_the_work() {
    const MESSAGES: usize = 500;
    let (_dir, path) = file();
    let brokers = [Embedded::file(&path), Embedded::file(&path)];
    let mut pullers = Vec::new();
    let done = Arc::new(std::sync::Mutex::new(Vec::new()));
    for puller in 0..4 {
        let mut source = open(&brokers[puller % 2], Subscription::new("g", "a.*").ack_wait(HOUR)).await;
        let done = Arc::clone(&done);
        pullers.push(tokio::spawn(async move {
            while done.lock().unwrap().len() < MESSAGES {
                for (delivery, lease) in source.pull(7, Duration::from_millis(50)).await.unwrap() {
                    assert_eq!(delivery.delivery_count, Some(1));
                    lease.ack().await.unwrap();
                    done.lock().unwrap().push(delivery.position);
                }
            }
        }));
    }
    let mut publishers = Vec::new();
    for (index, broker) in brokers.iter().cloned().enumerate() {
        publishers.push(tokio::spawn(async move {
            publish(&broker, &format!("a.{index}"), 0..MESSAGES / 2).await;
        }));
    }
    for task in publishers.into_iter().chain(pullers) {
        timeout(Duration::from_secs(60), task).await.unwrap().unwrap();
    }
    let done = std::mem::take(&mut *done.lock().unwrap());
    assert_eq!(
        (done.len(), done.iter().collect::<BTreeSet<_>>().len()),
        (MESSAGES, MESSAGES)
    );
    assert_eq!(counts(&brokers[0], "g", "a.*").await, (0, 0, MESSAGES as u64));
}

#[tokio::test]
async fn a_pull_is_woken_by_another_broker_on_the_file() {
    let (_dir, path) = file();
    let (here, there) = (Embedded::file(&path), Embedded::file(&path));
    let mut source = source(&here, "g", "a").await;
    let mut latencies = Vec::new();
    for _ in 0..5 {
        let publishing = async {
            tokio::time::sleep(Duration::from_millis(70)).await;
            publish(&there, "a", ["x"]).await;
            Instant::now()
        };
        let pulling = async {
            let pulled = source.pull(1, 5 * SECOND).await.unwrap();
            assert_eq!(pulled.len(), 1);
            Instant::now()
        };
        let (published, pulled) = tokio::join!(publishing, pulling);
        latencies.push(pulled.saturating_duration_since(published));
    }
    // The fastest of several, and far less than the pull waits for: a busy machine may be late at any time.
    latencies.sort();
    assert!(latencies[0] < 2 * SECOND, "{latencies:?}");
}

#[test]
fn f16_eight_threads_create_one_file() {
    for _ in 0..5 {
        let (_dir, path) = file();
        let barrier = std::sync::Barrier::new(8);
        let positions = std::thread::scope(|scope| {
            let run = || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .unwrap();
                barrier.wait();
                runtime.block_on(subscribe_and_publish(&path))
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(run)).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect::<BTreeSet<_>>()
        });
        assert_eq!(positions.len(), 8, "{positions:?}");
        let instances: BTreeSet<_> = positions.iter().map(|p| p.rsplit_once(':').unwrap().0).collect();
        assert_eq!(instances.len(), 1, "{positions:?}");
    }
}

async fn subscribe_and_publish(path: &Path) -> String {
    let broker = Embedded::file(path);
    source(&broker, "g", "a").await;
    broker.publish(Message::new("a", "x")).await.unwrap().position
}

const CHILD_FILE: &str = "EMBEDDED_TEST_FILE";

/// Runs `test` of this file in a process of its own.
fn child(test: &str, path: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env(CHILD_FILE, path);
    command.stdout(std::process::Stdio::null()).spawn().unwrap()
}

#[tokio::test]
async fn f16_eight_processes_create_one_file_and_share_the_work() {
    let (_dir, path) = file();
    let children: Vec<_> = (0..8).map(|_| child("child_publishes_and_handles", &path)).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let broker = Embedded::file(&path);
    let info = info(&broker, "g", "a").await;
    assert_eq!(info.position, 80);
    assert_eq!((info.waiting, info.ack_pending, info.acked), (0, 0, 80));
}

#[tokio::test]
#[ignore = "a process of f16_eight_processes_create_one_file_and_share_the_work"]
async fn child_publishes_and_handles() {
    // Not started as a child, but with all ignored tests.
    let Some(path) = std::env::var_os(CHILD_FILE) else {
        return;
    };
    let broker = Embedded::file(path);
    let mut source = open(&broker, Subscription::new("g", "a").ack_wait(HOUR)).await;
    publish(&broker, "a", 0..10).await;
    let start = Instant::now();
    // Until all eight have published; the count includes messages that others handled.
    while info(&broker, "g", "a").await.acked < 80 {
        assert!(start.elapsed() < Duration::from_secs(60));
        for (delivery, lease) in source.pull(3, Duration::from_millis(50)).await.unwrap() {
            assert_eq!(delivery.delivery_count, Some(1));
            lease.ack_confirmed().await.unwrap();
        }
    }
}

// === faults ===

async fn refusal(path: &Path) -> String {
    let error = Embedded::file(path).publish(Message::new("a", "x")).await.unwrap_err();
    assert!(matches!(error, BrokerError::Invalid(_)), "{error:?}");
    error.to_string()
}

#[tokio::test]
async fn a_file_of_another_program_is_refused_and_left_unchanged() {
    let (_dir, path) = file();
    let mut application = raw(&path).await;
    sqlx::raw_sql("CREATE TABLE invoices (id TEXT)")
        .execute(&mut application)
        .await
        .unwrap();
    application.close().await.unwrap();
    let before = std::fs::read(&path).unwrap();
    let error = refusal(&path).await;
    assert!(
        error.contains("database of another program") && error.contains("broker.db"),
        "{error}"
    );
    assert_eq!(std::fs::read(&path).unwrap(), before);

    std::fs::write(&path, "name,amount\nfoo,1\n".repeat(100)).unwrap();
    let error = refusal(&path).await;
    assert!(error.contains("no SQLite database"), "{error}");

    let path = path.with_extension("newer");
    publish(&Embedded::file(&path), "a", ["x"]).await;
    let mut newer = raw(&path).await;
    sqlx::raw_sql("PRAGMA user_version = 99")
        .execute(&mut newer)
        .await
        .unwrap();
    let error = refusal(&path).await;
    assert!(
        error.contains("have version 99") && error.contains("update the program"),
        "{error}"
    );
}

#[tokio::test]
async fn an_empty_file_becomes_a_broker() {
    let (_dir, path) = file();
    std::fs::write(&path, "").unwrap();
    publish(&Embedded::file(&path), "a", ["x"]).await;
}

#[tokio::test]
async fn f51_a_file_that_cannot_be_opened_is_retried_by_each_call() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("missing/broker.db");
    let broker = Embedded::file(&path);
    for _ in 0..3 {
        let error = broker.subscribe(vec![Subscription::new("g", "a")]).await.unwrap_err();
        assert!(matches!(error, BrokerError::Unavailable { .. }), "{error:?}");
        assert!(error.to_string().contains("missing/broker.db"), "{error}");
        assert!(broker.publish(Message::new("a", "x")).await.is_err());
    }
    std::fs::create_dir(path.parent().unwrap()).unwrap();
    let mut source = source(&broker, "g", "a").await;
    publish(&broker, "a", ["x"]).await;
    one(&mut source).await;
}

#[tokio::test]
async fn f51_each_pull_on_a_broken_file_is_an_error_and_the_source_survives() {
    let (_dir, path) = file();
    let broker = Embedded::file(&path);
    let mut source = source(&broker, "g", "a").await;
    publish(&broker, "a", ["x"]).await;
    let mut vandal = raw(&path).await;
    sqlx::raw_sql("ALTER TABLE pending RENAME TO pending_away")
        .execute(&mut vandal)
        .await
        .unwrap();
    for _ in 0..3 {
        let start = Instant::now();
        let error = source.pull(1, 10 * SECOND).await.unwrap_err();
        assert!(
            matches!(error, BrokerError::Unavailable { source: Some(_), .. }),
            "{error:?}"
        );
        assert!(start.elapsed() < 8 * SECOND, "the caller backs off, not the pull");
    }
    sqlx::raw_sql("ALTER TABLE pending_away RENAME TO pending")
        .execute(&mut vandal)
        .await
        .unwrap();
    one(&mut source).await.1.ack().await.unwrap();
    assert_eq!(counts(&broker, "g", "a").await, (0, 0, 1));
}

#[tokio::test]
async fn f51_the_broker_survives_a_transaction_that_sqlite_rolls_back() {
    let (_dir, path) = file();
    let broker = Embedded::file(&path);
    let mut source = source(&broker, "g", "a").await;
    publish(&broker, "a", ["x"]).await;
    // As SQLite does when the disk is full.
    let mut vandal = raw(&path).await;
    let trigger = "CREATE TRIGGER vandal BEFORE INSERT ON pending BEGIN SELECT RAISE(ROLLBACK, 'full'); END";
    sqlx::raw_sql(trigger).execute(&mut vandal).await.unwrap();
    for _ in 0..3 {
        assert!(source.pull(1, SECOND).await.is_err());
    }
    sqlx::raw_sql("DROP TRIGGER vandal").execute(&mut vandal).await.unwrap();
    one(&mut source).await.1.ack().await.unwrap();
    assert_eq!(counts(&broker, "g", "a").await, (0, 0, 1));
}

#[tokio::test]
async fn f51_a_pending_row_without_a_message_causes_no_hot_loop() {
    let (_dir, path) = file();
    let broker = Embedded::file(&path);
    let mut source = source(&broker, "g", "a").await;
    publish(&broker, "a", ["x"]).await;
    one(&mut source).await;
    // Its pending row stays due and has no message.
    sqlx::raw_sql("DELETE FROM messages")
        .execute(&mut raw(&path).await)
        .await
        .unwrap();
    broker.advance_clock(HOUR);
    let before = cpu_time();
    assert!(source.pull(1, SECOND).await.unwrap().is_empty());
    let used = cpu_time() - before;
    assert!(
        used < Duration::from_millis(200),
        "{used:?} of CPU time for a second of waiting"
    );
}

/// The CPU time of this thread, where the system reports it.
fn cpu_time() -> Duration {
    let Ok(text) = std::fs::read_to_string("/proc/thread-self/schedstat") else {
        return Duration::ZERO;
    };
    Duration::from_nanos(text.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0))
}
