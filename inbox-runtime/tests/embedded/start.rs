//! Where a group starts: at the first message, at a time, at a sequence, and after its durable was lost.

use super::*;

async fn five() -> Embedded {
    let broker = Embedded::memory();
    publish(&broker, "a", 1..=5).await;
    broker
}

async fn from(broker: &Embedded, group: &str, start: StartPosition) -> Vec<String> {
    let mut source = open(broker, Subscription::new(group, "a").start(start)).await;
    texts(&pull(&mut source, 100).await)
}

#[tokio::test]
async fn a_group_starts_at_a_sequence() {
    let broker = five().await;
    for (sequence, expected) in [
        (0, vec!["1", "2", "3", "4", "5"]),
        (1, vec!["1", "2", "3", "4", "5"]),
        (3, vec!["3", "4", "5"]),
        (5, vec!["5"]),
        (6, vec![]),
    ] {
        let got = from(&broker, &format!("from-{sequence}"), StartPosition::Sequence(sequence)).await;
        assert_eq!(got, expected, "{sequence}");
    }
    // After the last message it is the next one, as on NATS: no message is skipped.
    let far = Subscription::new("far", "a").start(StartPosition::Sequence(u64::MAX));
    let mut source = open(&broker, far).await;
    publish(&broker, "a", ["6"]).await;
    assert_eq!(texts(&pull(&mut source, 100).await), ["6"]);
}

#[tokio::test]
async fn a_group_starts_at_a_time() {
    let broker = Embedded::memory();
    publish(&broker, "a", ["old"]).await;
    broker.advance_clock(HOUR);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap() + HOUR / 2;
    let time = |offset: i64| i64::try_from(now.as_millis()).unwrap() + offset;
    publish(&broker, "a", ["new", "newer"]).await;
    assert_eq!(
        from(&broker, "g1", StartPosition::Time(time(0))).await,
        ["new", "newer"]
    );
    assert_eq!(
        from(&broker, "g2", StartPosition::Time(0)).await,
        ["old", "new", "newer"]
    );
    let mut source = open(
        &broker,
        Subscription::new("g3", "a").start(StartPosition::Time(time(86_400_000))),
    )
    .await;
    none(&mut source).await;
    publish(&broker, "a", ["next"]).await;
    assert_eq!(texts(&pull(&mut source, 100).await), ["next"], "a time to come is now");
}

#[tokio::test]
async fn g13_a_known_group_never_starts_at_new() {
    let broker = five().await;
    let new = |group: &str| Subscription::new(group, "a").start(StartPosition::New);
    assert_eq!(from(&broker, "stranger", StartPosition::New).await, [""; 0]);
    let mut source = open(&broker, new("known").known(true)).await;
    assert_eq!(texts(&pull(&mut source, 100).await), ["1", "2", "3", "4", "5"]);

    // An existing durable keeps its position.
    let mut source = open(&broker, new("stranger").known(true)).await;
    none(&mut source).await;

    // Its durable is lost, and messages came meanwhile.
    assert!(broker.remove_consumer("stranger", "a").await.unwrap());
    publish(&broker, "a", ["6"]).await;
    let mut source = open(&broker, new("stranger").known(true)).await;
    assert_eq!(texts(&pull(&mut source, 100).await), ["1", "2", "3", "4", "5", "6"]);
}

#[tokio::test]
async fn g13_a_durable_removed_under_a_running_program_is_an_error_and_is_not_recreated() {
    let (_dir, path) = file();
    let broker = Embedded::file(&path);
    let mut source = open(&broker, Subscription::new("g", "a").start(StartPosition::New)).await;
    sqlx::raw_sql("DELETE FROM consumers")
        .execute(&mut raw(&path).await)
        .await
        .unwrap();
    publish(&broker, "a", ["x"]).await;
    for _ in 0..2 {
        let error = source.pull(1, SECOND).await.unwrap_err().to_string();
        assert!(
            error.contains("`g` on `a` was removed") && error.contains("start the program again"),
            "{error}"
        );
    }
    assert_eq!(broker.consumer("g", "a").await.unwrap(), None);
}
