//! The memory that a reconnect costs.

use std::time::Duration;

use inbox_runtime::{Broker, Source, Subscription};
use inbox_tests::servers::Proxy;

use super::{monitor, server, through, world_on};

/// The size of each message, in bytes.
const SIZE: usize = 1_000_000;

/// The memory of this process in bytes: now and at its peak.
fn memory() -> (usize, usize) {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let of = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).expect("a line");
        let kilobytes = line.split_whitespace().nth(1).expect("a number");
        kilobytes.parse::<usize>().expect("a number") * 1024
    };
    (of("VmRSS"), of("VmHWM"))
}

/// Many large messages are in flight when the connection is cut three times. They are redelivered when their leases
/// expire, and must not be fetched before. Returns how many bytes the server has sent after the first cut, and by how
/// many this process has grown.
async fn cut_with_in_flight(count: usize) -> (u64, usize) {
    let server = server().await;
    let world = world_on(&server).await;
    let account = world.broker.account();
    let payload = vec![b'x'; SIZE];
    for _ in 0..count {
        account.publish_raw("order.created", "", &payload).await;
    }
    let proxy = Proxy::before(server.port()).await;
    let broker = through(&world, &proxy);
    let subscription = Subscription::new("billing", "order.created")
        .max_in_flight(count)
        .ack_wait(Duration::from_secs(600));
    let mut source = broker
        .subscribe(vec![subscription])
        .await
        .expect("subscribed")
        .remove(0);
    // A pull request is in flight when the connection is cut.
    let mut leases = Vec::new();
    while leases.len() < count / 2 {
        let pulled = source
            .pull(count / 2, Duration::from_secs(60))
            .await
            .expect("the broker");
        leases.extend(pulled.into_iter().map(|(_, lease)| lease));
    }
    let before = memory();
    let asked = source.pull(count, Duration::from_secs(60));
    let _ = tokio::time::timeout(Duration::from_millis(1), asked).await;
    proxy.cut();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let sent = monitor(&server, "/varz").await["out_bytes"].as_u64().expect("a number");
    proxy.heal();
    for _ in 0..3 {
        // Received before the cut, or not delivered yet.
        while !source
            .pull(count, Duration::from_secs(2))
            .await
            .expect("the broker")
            .is_empty()
        {}
        proxy.cut();
        tokio::time::sleep(Duration::from_millis(100)).await;
        proxy.heal();
    }
    let after = memory();
    let sent = monitor(&server, "/varz").await["out_bytes"].as_u64().expect("a number") - sent;
    println!(
        "{count} messages of {SIZE} bytes: {before:?} bytes before, {after:?} after the cuts (now, most), {sent} sent"
    );
    (sent, after.1.saturating_sub(before.1))
}

/// Only what wasn't delivered yet is delivered, once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g28_a_reconnect_fetches_no_message_in_flight() {
    let (sent, _) = cut_with_in_flight(40).await;
    assert!(sent < 25_000_000, "{sent} bytes");
}

/// The figure of the benchmarks: run by hand and alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes 300 MB of disk; run it alone, for the figure that it prints"]
async fn memory_after_a_cut_connection() {
    let (_, grown) = cut_with_in_flight(300).await;
    assert!(grown < 100_000_000, "{grown} bytes");
}
