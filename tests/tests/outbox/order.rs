//! The order of one key, with writers that exclude one another, relays that die, and transactions that are rolled back.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use inbox_runtime::{Inbox, Message, OutboxMode};
use inbox_tests::{TestBroker, TestConnection, TestDatabase, World, embedded_suite, eventually};

embedded_suite!(
    e3a_a_message_that_was_committed_late_comes_before_the_next_one_of_its_key,
    e13_per_key_no_message_comes_before_an_earlier_one,
);

const KEYS: u64 = 12;

/// For how long it is written.
fn time() -> Duration {
    if std::env::var_os("INBOX_TEST_LONG").is_some() {
        Duration::from_secs(60)
    } else {
        Duration::from_secs(4)
    }
}

/// Raises the versions of keys at random, each with a message in the same transaction; every tenth is rolled back. The row of the
/// key is locked before it is published.
async fn write<D: TestDatabase>(database: &D, until: Instant) -> u64 {
    let mut committed = 0;
    while Instant::now() < until {
        let key = fastrand::u64(..KEYS);
        let mut tx = database.begin().await;
        tx.exec(&format!("UPDATE versions SET version = version + 1 WHERE key = {key}"))
            .await
            .expect("written");
        let version = D::number_in(&mut tx, &format!("SELECT version FROM versions WHERE key = {key}")).await;
        let message = Message::new("version", version.to_string()).key(format!("key-{key}"));
        inbox_runtime::publish(&mut *tx, message).await.expect("published");
        if fastrand::u8(..10) == 0 {
            D::rollback(tx).await;
        } else {
            D::commit(tx).await;
            committed += 1;
        }
    }
    committed
}

async fn e13_per_key_no_message_comes_before_an_earlier_one<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world
        .database
        .exec("CREATE TABLE versions (key INTEGER PRIMARY KEY, version INTEGER NOT NULL)")
        .await;
    for key in 0..KEYS {
        world
            .database
            .exec(&format!("INSERT INTO versions VALUES ({key}, 0)"))
            .await;
    }
    inbox_runtime::migrate(&world.database.pool()).await.expect("tables");
    let relay = async || {
        let builder = Inbox::builder()
            .store(world.database.pool())
            .broker(world.flaky.clone())
            .groups(Vec::<String>::new())
            .outbox(OutboxMode::Relay);
        let inbox = builder.build().await.expect("a relay");
        tokio::spawn(inbox.run()).abort_handle()
    };
    let until = Instant::now() + time();
    // SQLite has one writer at a time; the relays write, too.
    let count = if D::HANDLERS == "sqlite" { 2 } else { 6 };
    let writers = join_all((0..count).map(|_| write(&world.database, until)));
    let mut relays = Vec::new();
    for _ in 0..3 {
        relays.push(relay().await);
    }
    let killer = async {
        let mut deaths = 0;
        while Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(fastrand::u64(20..200))).await;
            // As a process dies: nothing is finished.
            relays.swap_remove(fastrand::usize(..relays.len())).abort();
            relays.push(relay().await);
            deaths += 1;
        }
        deaths
    };
    let (committed, deaths) = tokio::join!(writers, killer);
    let committed: u64 = committed.iter().sum();
    eventually("the outbox is empty", async || {
        world.database.number("SELECT count(*) FROM inbox_outbox").await == 0
    })
    .await;
    for relay in relays {
        relay.abort();
    }

    let mut versions = BTreeMap::<_, Vec<u64>>::new();
    for message in world.flaky.published() {
        let version = String::from_utf8_lossy(message.payload.as_deref().unwrap_or_default())
            .parse()
            .expect("a version");
        versions.entry(message.key).or_default().push(version);
    }
    let (mut different, mut copies) = (0, 0);
    for (key, versions) in &versions {
        let mut seen = BTreeSet::new();
        for version in versions {
            if seen.insert(*version) {
                assert_eq!(seen.len() as u64, *version, "{key:?}: {versions:?}");
            } else {
                copies += 1;
            }
        }
        different += seen.len() as u64;
    }
    println!("{committed} committed, {deaths} deaths of relays, {copies} copies");
    assert_eq!(
        different, committed,
        "nothing is lost and nothing published that was rolled back"
    );
}

/// Others behind it, in every lane, are published before it is committed.
async fn e3a_a_message_that_was_committed_late_comes_before_the_next_one_of_its_key<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let builder = Inbox::builder()
        .store(world.database.pool())
        .broker(world.flaky.clone());
    let builder = builder.groups(Vec::<String>::new()).outbox(OutboxMode::Relay);
    let relay = builder.spawn().await.expect("a relay");
    let publish = async |tx: &mut D::Tx, key: &str, version: &str| {
        let message = Message::new("version", version.to_owned()).key(key.to_owned());
        inbox_runtime::publish(&mut **tx, message).await.expect("published");
    };
    let versions = |key: &str| -> Vec<String> {
        let published = world.flaky.published();
        let of_key = published
            .iter()
            .filter(|message| message.key.as_deref() == Some(key.as_bytes()));
        of_key
            .map(|message| String::from_utf8_lossy(message.payload.as_deref().unwrap_or_default()).into_owned())
            .collect()
    };
    for round in 0..8 {
        let late = format!("late-{round}");
        let mut first = world.database.begin().await;
        publish(&mut first, &late, "1").await;
        // SQLite has one writer at a time, so nothing can be committed behind one that isn't.
        if D::HANDLERS == "postgres" {
            let mut others = world.database.begin().await;
            for number in 0..100 {
                publish(&mut others, &format!("other-{round}-{number}"), "1").await;
            }
            D::commit(others).await;
            let last = format!("other-{round}-99");
            eventually("the others are published", async || !versions(&last).is_empty()).await;
        }
        D::commit(first).await;
        let mut second = world.database.begin().await;
        publish(&mut second, &late, "2").await;
        D::commit(second).await;
        eventually("both are published", async || versions(&late).len() == 2).await;
        assert_eq!(versions(&late), ["1", "2"], "round {round}");
    }
    relay.stop();
    relay.join().await.expect("it ends well");
}
