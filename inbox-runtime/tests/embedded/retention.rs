//! Retention: what is deleted, what is kept, and that no fault in between loses a message.

use super::*;

/// The sequence numbers of the messages that are kept.
async fn kept(path: &Path) -> Vec<i64> {
    sqlx::query_scalar("SELECT seq FROM messages ORDER BY seq")
        .fetch_all(&mut raw(path).await)
        .await
        .unwrap()
}

async fn eventually_kept(path: &Path, expected: &[i64]) {
    eventually(&format!("{expected:?} are kept"), async || kept(path).await == expected).await;
}

/// Inserts messages into the file, faster than by publishing.
async fn bulk(path: &Path, subject: &str, messages: u32, bytes: u32) {
    sqlx::query(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1) \
         INSERT INTO messages (subject, published_at, headers, payload) SELECT ?2, 0, x'5b5d', randomblob(?3) FROM n",
    )
    .bind(messages)
    .bind(subject)
    .bind(bytes)
    .execute(&mut raw(path).await)
    .await
    .unwrap();
}

async fn ack_all(source: &mut EmbeddedSource) -> usize {
    let mut acked = 0;
    loop {
        let pulled = pull(source, 500).await;
        if pulled.is_empty() {
            return acked;
        }
        acked += pulled.len();
        let acks = pulled.iter().map(|(_, lease)| lease.ack());
        for ack in futures_util::future::join_all(acks).await {
            ack.unwrap();
        }
    }
}

#[tokio::test]
async fn settled_messages_are_deleted_after_the_retention_time() {
    let (_dir, path) = file();
    let broker = Embedded::file(&path).keep_for(HOUR);
    let (mut a, mut b) = (source(&broker, "a", "x").await, source(&broker, "b", "x").await);
    publish(&broker, "x", 1..=3).await;
    assert_eq!(ack_all(&mut a).await, 3);
    broker.advance_clock(2 * HOUR);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(kept(&path).await, [1, 2, 3], "`b` has settled none");

    // One is in flight, one is settled, one is nakked.
    let pulled = pull(&mut b, 3).await;
    pulled[1].1.ack().await.unwrap();
    pulled[2].1.nak(10 * HOUR).await.unwrap();
    broker.advance_clock(2 * HOUR);
    eventually_kept(&path, &[1, 3]).await;
    pulled[0].1.ack().await.unwrap();
    broker.advance_clock(10 * HOUR);
    eventually_kept(&path, &[3]).await;
    assert_eq!(ack_all(&mut b).await, 1);
    assert_eq!(counts(&broker, "b", "x").await, (0, 0, 3));
    broker.advance_clock(2 * HOUR);
    eventually_kept(&path, &[]).await;

    // A sequence number is never reused.
    let published = broker.publish(Message::new("x", "4")).await.unwrap();
    assert!(published.position.ends_with(":4"), "{published:?}");
    assert_eq!(texts(&pull(&mut a, 9).await), ["4"]);
}

#[tokio::test]
async fn the_retention_time_begins_with_the_last_ack() {
    let (_dir, path) = file();
    let broker = Embedded::file(&path).keep_for(HOUR);
    let mut source = source(&broker, "a", "x").await;
    publish(&broker, "x", 1..=2).await;
    ack_all(&mut source).await;
    broker.advance_clock(HOUR - 30 * SECOND);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(kept(&path).await, [1, 2]);
    let forever = broker.clone().keep_forever();
    broker.advance_clock(1000 * HOUR);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(kept(&path).await, [1, 2]);
    let _broker = forever.keep_for(NOW);
    eventually_kept(&path, &[]).await;
}

#[tokio::test]
async fn messages_of_no_group_are_kept_for_future_ones() {
    let (_dir, path) = file();
    let broker = Embedded::file(&path).keep_for(NOW);
    publish(&broker, "x.y", ["1"]).await;
    publish(&broker, "z", ["2"]).await;
    publish(&broker, "x.y.z", ["3"]).await;
    let mut old = source(&broker, "a", "x.*").await;
    // It starts after them and so doesn't settle them.
    let _new = open(&broker, Subscription::new("n", ">").start(StartPosition::New)).await;
    assert_eq!(ack_all(&mut old).await, 1);
    eventually_kept(&path, &[2, 3]).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut late = source(&broker, "late", ">").await;
    assert_eq!(ack_all(&mut late).await, 2);
    eventually_kept(&path, &[]).await;
}

#[tokio::test]
async fn a_removed_durable_keeps_no_messages() {
    for by_hand in [false, true] {
        let (_dir, path) = file();
        let broker = Embedded::file(&path).keep_for(NOW);
        let (mut a, mut b) = (source(&broker, "a", "x").await, source(&broker, "b", ">").await);
        publish(&broker, "x", 1..=3).await;
        publish(&broker, "y", ["4"]).await;
        ack_all(&mut a).await;
        one(&mut b).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(kept(&path).await.len(), 4);
        if by_hand {
            let sql = "DELETE FROM consumers WHERE consumer_group = 'b' AND subject = '>'";
            sqlx::raw_sql(sql).execute(&mut raw(&path).await).await.unwrap();
        } else {
            assert!(broker.remove_consumer("b", ">").await.unwrap());
            assert!(!broker.remove_consumer("b", ">").await.unwrap());
        }
        // Later messages belong to no group.
        publish(&broker, "y", ["5"]).await;
        eventually_kept(&path, &[5]).await;
    }
}

#[tokio::test]
async fn a_clock_put_back_keeps_no_messages_for_years() {
    let (_dir, path) = file();
    let broker = Embedded::file(&path).keep_for(SECOND);
    let mut source = source(&broker, "a", "x").await;
    publish(&broker, "x", 1..=3).await;
    let _forever = broker.keep_forever();
    ack_all(&mut source).await;
    let broker = Embedded::file(&path).keep_for(SECOND);
    broker.turn_clock_back(1000 * HOUR);
    publish(&broker, "y", ["4"]).await;
    eventually_kept(&path, &[4]).await;
}

#[tokio::test]
async fn the_file_shrinks() {
    let (_dir, path) = file();
    let broker = Embedded::file(&path).keep_forever();
    let mut source = source(&broker, "a", "x").await;
    bulk(&path, "x", 20_000, 1000).await;
    assert_eq!(ack_all(&mut source).await, 20_000);
    let size = || {
        let of = |path: PathBuf| std::fs::metadata(path).map_or(0, |found| found.len());
        of(path.clone()) + of(path.with_extension("db-wal"))
    };
    let full = size();
    assert!(full > 20_000_000, "{full}");
    let broker = broker.keep_for(NOW);
    eventually_kept(&path, &[]).await;
    // The log is truncated by the next write after a checkpoint.
    eventually("the file has shrunk", async || {
        publish(&broker, "y", ["more"]).await;
        size() < 8_000_000
    })
    .await;
    assert_eq!(integrity(&path).await, "ok");
}

async fn integrity(path: &Path) -> String {
    sqlx::query_scalar("PRAGMA integrity_check")
        .fetch_one(&mut raw(path).await)
        .await
        .unwrap()
}

#[tokio::test]
async fn a_failed_cleanup_hinders_nobody_and_is_retried() {
    let (_dir, path) = file();
    let broker = Embedded::file(&path).keep_for(NOW);
    let mut source = source(&broker, "a", "x").await;
    // As SQLite does when the disk is full.
    let vandal = "CREATE TRIGGER vandal BEFORE DELETE ON messages BEGIN SELECT RAISE(ROLLBACK, 'disk full'); END";
    sqlx::raw_sql(vandal).execute(&mut raw(&path).await).await.unwrap();
    for round in 0..20 {
        publish(&broker, "x", [round]).await;
        one(&mut source).await.1.ack().await.unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(kept(&path).await.len(), 20);
    sqlx::raw_sql("DROP TRIGGER vandal")
        .execute(&mut raw(&path).await)
        .await
        .unwrap();
    // The next attempt would be half a minute later.
    broker.advance_clock(SECOND);
    eventually_kept(&path, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_created_during_a_cleanup_misses_no_message_after_its_first() {
    let (_dir, path) = file();
    let (broker, other) = (Embedded::file(&path).keep_for(NOW), Embedded::file(&path).keep_for(NOW));
    let mut reader = source(&broker, "reader", "x").await;
    let publisher = tokio::spawn({
        let broker = other.clone();
        async move { publish(&broker, "x", 1..=600).await }
    });
    let mut made = Vec::new();
    let mut read = 0;
    while read < 600 {
        read += ack_all(&mut reader).await;
        if read / 60 > made.len() {
            made.push(source(&other, &format!("g{}", made.len()), "x").await);
        }
        tokio::task::yield_now().await;
    }
    publisher.await.unwrap();
    assert!(!made.is_empty());
    for source in &mut made {
        let mut numbers: Vec<u32> = Vec::new();
        loop {
            let pulled = pull(source, 100).await;
            if pulled.is_empty() {
                break;
            }
            for (delivery, lease) in &pulled {
                numbers.push(text(delivery).parse().unwrap());
                lease.ack().await.unwrap();
            }
        }
        let first = numbers.first().copied().unwrap_or(601);
        assert_eq!(numbers, (first..=600).collect::<Vec<_>>());
    }
    eventually_kept(&path, &[]).await;
}

/// Processes that handle and clean up are killed repeatedly; two at a time share the file.
#[tokio::test]
async fn nothing_is_lost_when_killed_during_a_cleanup() {
    const MESSAGES: u32 = 1500;
    let (_dir, path) = file();
    let broker = Embedded::file(&path).keep_forever();
    let _durables = [source(&broker, "a", "x").await, source(&broker, "b", "x").await];
    bulk(&path, "x", MESSAGES, 100).await;
    let children = || {
        ["a", "b"].map(|group| {
            std::fs::write(path.with_extension("group"), group).unwrap();
            let mut child = child("retention::child_handles_and_deletes", &path);
            eventually_blocking(|| !path.with_extension("group").exists() || child.try_wait().unwrap().is_some());
            child
        })
    };
    for round in 0..6 {
        let mut killed = children();
        std::thread::sleep(Duration::from_millis(30 + 37 * round));
        for child in &mut killed {
            // One that has exited by itself is done.
            let _ = child.kill();
            child.wait().unwrap();
        }
    }
    for mut child in children() {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(integrity(&path).await, "ok");
    for group in ["a", "b"] {
        let handled = std::fs::read_to_string(path.with_extension(group)).unwrap();
        // A line cut by the kill is of an unacknowledged message.
        let handled: BTreeSet<u32> = handled
            .lines()
            .filter_map(|line| line.strip_suffix(';')?.parse().ok())
            .collect();
        assert_eq!(handled, (1..=MESSAGES).collect::<BTreeSet<_>>(), "of {group}");
    }
    let _broker = broker.keep_for(NOW);
    eventually_kept(&path, &[]).await;
}

fn eventually_blocking(mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < 60 * SECOND);
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[tokio::test]
#[ignore = "a process of nothing_is_lost_when_killed_during_a_cleanup"]
async fn child_handles_and_deletes() {
    use std::io::Write;

    let path = PathBuf::from(std::env::var("EMBEDDED_TEST_FILE").unwrap());
    let group = std::fs::read_to_string(path.with_extension("group")).unwrap();
    std::fs::remove_file(path.with_extension("group")).unwrap();
    let mut handled = std::fs::File::options()
        .create(true)
        .append(true)
        .open(path.with_extension(&group))
        .unwrap();
    let broker = Embedded::file(&path).keep_for(NOW);
    let subscription = Subscription::new(&group, "x").ack_wait(SECOND);
    let mut source = open(&broker, subscription).await;
    while !info(&broker, &group, "x").await.is_idle() {
        for (delivery, lease) in source.pull(20, SECOND).await.unwrap() {
            let seq = delivery.position.rsplit(':').next().unwrap();
            handled.write_all(format!("{seq};\n").as_bytes()).unwrap();
            lease.ack().await.unwrap();
        }
    }
}

/// A file of version 1, in which `a` has settled the first two of four messages and holds the third, and `n` started
/// after the third.
async fn version_1(path: &Path) {
    let mut file = raw(path).await;
    sqlx::raw_sql(include_str!("../../src/broker/embedded/schema.sql"))
        .execute(&mut file)
        .await
        .unwrap();
    sqlx::raw_sql(
        "INSERT INTO broker VALUES ('of-old'); \
         INSERT INTO messages (subject, published_at, headers, payload) VALUES \
         ('x', 1, x'5b5d', x'31'), ('x', 1, x'5b5d', x'32'), ('x', 1, x'5b5d', x'33'), ('x', 1, x'5b5d', x'34'), ('y', 1, x'5b5d', x'35'); \
         INSERT INTO consumers (id, consumer_group, subject, position, ack_wait) VALUES \
         (1, 'a', 'x', 3, 1000), (2, 'n', '>', 3, 1000); \
         INSERT INTO pending VALUES (1, 1, 1, 1, 1), (1, 2, 1, 1, 1), (1, 3, 1, 1, 1); \
         DELETE FROM pending WHERE seq < 3;",
    )
    .execute(&mut file)
    .await
    .unwrap();
}

#[tokio::test]
async fn a_file_of_version_1_is_migrated() {
    let (_dir, path) = file();
    version_1(&path).await;
    let broker = Embedded::file(&path);
    let mut a = source(&broker, "a", "x").await;
    assert_eq!(counts(&broker, "a", "x").await, (1, 1, 2));
    assert_eq!(counts(&broker, "n", ">").await, (2, 0, 0));
    let pulled = pull(&mut a, 9).await;
    assert_eq!(texts(&pulled), ["3", "4"]);
    assert_eq!(pulled[0].0.position, "embedded:of-old:3", "ids stay as they are");
    assert_eq!(pulled[0].0.delivery_count, Some(2));
    for (_, lease) in &pulled {
        lease.ack().await.unwrap();
    }
    let broker = broker.keep_for(NOW);
    eventually_kept(&path, &[4, 5]).await;
    let mut n = source(&broker, "n", ">").await;
    assert_eq!(ack_all(&mut n).await, 2);
    eventually_kept(&path, &[]).await;
    let mode: i64 = sqlx::query_scalar("PRAGMA auto_vacuum")
        .fetch_one(&mut raw(&path).await)
        .await
        .unwrap();
    assert_eq!(mode, 2, "it can shrink");
    assert_eq!(integrity(&path).await, "ok");
}

/// It has the file open.
#[tokio::test]
async fn a_process_of_version_1_continues_during_the_migration() {
    let (_dir, path) = file();
    version_1(&path).await;
    let mut old = raw(&path).await;
    let broker = Embedded::file(&path).keep_for(NOW);
    let _source = source(&broker, "n", ">").await;
    // With its statements.
    sqlx::raw_sql(
        "INSERT INTO messages (subject, published_at, headers, payload) VALUES ('x', 1, x'5b5d', x'36'); \
         DELETE FROM pending WHERE consumer = 1 AND seq = 3; \
         INSERT INTO pending (consumer, seq, delivery_count, taken_at, visible_at) VALUES (1, 4, 1, 1, 1); \
         UPDATE consumers SET position = 4 WHERE id = 1; \
         DELETE FROM pending WHERE consumer = 1 AND seq = 4; \
         UPDATE consumers SET ack_wait = 2000 WHERE consumer_group = 'a' AND subject = 'x';",
    )
    .execute(&mut old)
    .await
    .unwrap();
    eventually_kept(&path, &[4, 5, 6]).await;
    assert_eq!(counts(&broker, "a", "x").await, (1, 0, 4));
}

#[tokio::test]
async fn f16_eight_processes_migrate_one_file_of_version_1() {
    let (_dir, path) = file();
    version_1(&path).await;
    let opened = (0..8).map(|_| {
        let path = path.clone();
        tokio::spawn(async move { source(&Embedded::file(&path), "a", "x").await })
    });
    for opened in opened.collect::<Vec<_>>() {
        opened.await.unwrap();
    }
    assert_eq!(integrity(&path).await, "ok");
}
