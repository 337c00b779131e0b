//! No value that comes from a message can prevent its end from being recorded: whatever it contains, it is handled or
//! dead-lettered once, and the next one is handled.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use inbox_runtime::{Bytes, Delivery, Headers, Inbox, Message};
use inbox_tests::{EmbeddedMemory, Flaky, Probe, Step, TestBroker, TestDatabase, World, database_suite};

database_suite!(
    g25_every_text_in_every_column_has_one_end,
    g25_every_time_has_one_end,
    g25_every_id_has_one_end,
);

/// Puts a value into a message.
type Put = fn(&mut Delivery, &str);

const COLUMNS: [(&str, Put); 6] = [
    ("subject", |delivery, value| value.clone_into(&mut delivery.subject)),
    ("position", |delivery, value| value.clone_into(&mut delivery.position)),
    ("key", |delivery, value| {
        delivery.key = Some(Bytes::from(value.to_owned()));
    }),
    ("header", |delivery, value| {
        delivery.headers.append("x", value.to_owned());
    }),
    ("header name", |delivery, value| delivery.headers.append(value, "x")),
    ("broken header", |delivery, value| {
        delivery
            .headers
            .append("x", [value.as_bytes(), b"\xff\x00\xc3"].concat());
    }),
];

/// How a message ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Handled,
    Fails,
    Refused,
    Undecodable,
}

const FATES: [Fate; 4] = [Fate::Handled, Fate::Fails, Fate::Refused, Fate::Undecodable];

fn texts() -> Vec<String> {
    let mut texts: Vec<_> = [
        "",
        " ",
        "5 € für 東京",
        "🦀",
        "a\0b",
        "\u{fffd}\u{feff}\u{202e}",
        "'; --\\\"$1",
        "-9223372036854775808",
    ]
    .map(str::to_owned)
    .into();
    texts.extend(["x".repeat(3_000), "東".repeat(1_500), "é".repeat(33_000)]);
    texts
}

fn name(text: &str) -> String {
    format!("{:?} ({} bytes)", text.chars().take(12).collect::<String>(), text.len())
}

async fn world<D: TestDatabase>() -> World<EmbeddedMemory, D> {
    on(D::fresh().await).await
}

async fn on<D: TestDatabase>(database: D) -> World<EmbeddedMemory, D> {
    let broker = EmbeddedMemory::fresh().await;
    World {
        flaky: Flaky::new(broker.connect()),
        broker,
        database,
        probe: Probe::default(),
    }
}

/// A hostile message.
struct Case {
    what: String,
    fate: Fate,
    alter: Box<dyn Fn(&mut Delivery) + Send + Sync>,
}

/// Publishes the hostile messages and a valid one after them, and asserts that each has its one end. `error` is what the
/// handler fails with.
async fn one_end_each<D: TestDatabase>(
    world: &World<EmbeddedMemory, D>,
    inbox: &mut Inbox,
    error: &'static str,
    cases: Vec<Case>,
) {
    let run = fastrand::u64(..);
    let name = move |number: usize| format!("{run}-{number}");
    let fates: Vec<_> = cases.iter().map(|case| case.fate).collect();
    let whats: Vec<_> = cases
        .iter()
        .map(|case| format!("{}, {:?}", case.what, case.fate))
        .collect();
    let before = world.letters("billing").await.len();
    for (number, fate) in fates.iter().enumerate() {
        let payload = match fate {
            Fate::Undecodable => format!("{} is not JSON", name(number)),
            _ => format!(r#"{{"order_id":"{}"}}"#, name(number)),
        };
        world
            .broker
            .publish(Message::new("order.created", payload).id(name(number)))
            .await;
    }
    let sound = name(cases.len());
    world.publish(&sound).await;
    world.flaky.alter(move |delivery| {
        let id = delivery.headers.get("message_id").unwrap_or_default();
        let case = cases
            .iter()
            .enumerate()
            .find(|(number, _)| name(*number).as_bytes() == id);
        if let Some((_, case)) = case {
            (case.alter)(delivery);
        }
    });
    let fates_of = fates.clone();
    world.probe.script(move |call| {
        let fate = (0..fates_of.len()).find(|number| call.order.order_id == name(*number));
        match fate.map(|number| fates_of[number]) {
            Some(Fate::Fails) => Step::raise(error),
            Some(Fate::Refused) => Step::Permanent(error),
            _ => Step::Ok,
        }
    });
    let mut outcomes = BTreeMap::new();
    let turns = fates
        .iter()
        .map(|fate| if *fate == Fate::Fails { 3 } else { 1 })
        .sum::<usize>()
        + 1;
    for _ in 0..turns {
        if world.settled("billing").await {
            break;
        }
        let outcome = inbox.process_one(Duration::from_secs(60)).await.expect("the broker");
        let outcome = outcome.map_or_else(|| "nothing".to_owned(), |outcome| outcome.to_string());
        *outcomes.entry(outcome).or_insert(0) += 1;
        world.broker.pass(Duration::from_secs(1)).await;
    }
    let context = format!("{outcomes:?} of {whats:#?}");
    assert!(world.settled("billing").await, "{context}");
    world.assert_done("billing", &sound).await;
    let letters = world.letters("billing").await.len() - before;
    let processed = outcomes.get("processed").copied().unwrap_or_default();
    assert_eq!(processed + letters, fates.len() + 1, "one end each: {context}");
    assert!(
        !outcomes.contains_key("deferred") && !outcomes.contains_key("nothing"),
        "{context}"
    );
    let unfinished = "SELECT count(*) FROM inbox_attempts WHERE unfinished";
    assert_eq!(world.database.number(unfinished).await, 0, "{context}");
}

async fn every_text<D: TestDatabase>(world: &World<EmbeddedMemory, D>) {
    let mut inbox = world.inbox(&["billing"]).await;
    for text in texts() {
        let mut cases = Vec::new();
        for (column, put) in COLUMNS {
            // No broker has an empty position.
            if column == "position" && text.trim().is_empty() {
                continue;
            }
            cases.extend(FATES.map(|fate| {
                let value = text.clone();
                Case {
                    what: format!("{column} {}", name(&text)),
                    fate,
                    alter: Box::new(move |delivery| put(delivery, &value)),
                }
            }));
        }
        let error: &'static str = Box::leak(text.into_boxed_str());
        one_end_each(world, &mut inbox, error, cases).await;
        // What is logged about them is long.
        world.database.exec("DELETE FROM inbox_dead_letters").await;
    }
}

async fn every_id<D: TestDatabase>(world: &World<EmbeddedMemory, D>) {
    let mut ids: Vec<Vec<u8>> = texts().into_iter().map(String::into_bytes).collect();
    ids.extend([
        b"\xff\xfe".to_vec(),
        "a".repeat(512).into_bytes(),
        "é".repeat(256).into_bytes(),
        "🦀".repeat(128).into_bytes(),
        "€".repeat(170).into_bytes(),
    ]);
    let mut inbox = world.inbox(&["billing"]).await;
    for id in ids {
        for fate in FATES {
            for redelivered in [false, true] {
                let id = id.clone();
                let case = Case {
                    what: format!("id {} redelivered {redelivered}", name(&String::from_utf8_lossy(&id))),
                    fate,
                    alter: Box::new(move |delivery| {
                        let mut headers = Headers::new();
                        headers.append("message_id", id.clone());
                        delivery.headers = headers;
                        delivery.redelivered |= redelivered;
                    }),
                };
                one_end_each(world, &mut inbox, "no", vec![case]).await;
                // Each is new again.
                world
                    .database
                    .exec("DELETE FROM inbox_events; DELETE FROM inbox_dead_letters")
                    .await;
            }
        }
    }
}

async fn g25_every_text_in_every_column_has_one_end<D: TestDatabase>() {
    every_text(&world::<D>().await).await;
}

async fn g25_every_id_has_one_end<D: TestDatabase>() {
    every_id(&world::<D>().await).await;
}

async fn g25_every_time_has_one_end<D: TestDatabase>() {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    let world = world::<D>().await;
    let epoch = SystemTime::UNIX_EPOCH;
    let times = [
        epoch + YEAR * 8_100,
        epoch + YEAR * 298_000,
        epoch + Duration::from_secs(i64::MAX as u64),
        epoch - Duration::from_millis(1),
        epoch - YEAR * 2_500,
        epoch - YEAR * 298_000,
    ];
    let cases = times.iter().flat_map(|&time| {
        FATES.map(|fate| Case {
            what: format!("{time:?}"),
            fate,
            alter: Box::new(move |delivery| delivery.published_at = Some(time)),
        })
    });
    let mut inbox = world.inbox(&["billing"]).await;
    one_end_each(&world, &mut inbox, "no", cases.collect()).await;
    // And they can be replayed.
    let letters = world.letters("billing").await;
    assert_eq!(letters.len(), times.len() * 3);
    world.probe.script(|_| Step::Ok);
    for letter in &letters {
        world.dead_letters().replay(letter.id).await.expect("marked");
    }
    let report = inbox.run_until_idle().await.expect("the broker");
    assert_eq!((report.processed, report.dead_lettered), (12, 6), "{report}");
}

/// PostgreSQL in an encoding that lacks most characters.
#[cfg(feature = "postgres")]
mod encodings {
    use inbox_runtime::{DeadLetterReason, Outcome};
    use inbox_tests::PostgresDatabase;

    use super::*;

    async fn every<const TEXTS: bool>(encoding: &str) {
        let world = on(PostgresDatabase::encoded(encoding).await).await;
        if TEXTS {
            every_text(&world).await;
        } else {
            every_id(&world).await;
        }
    }

    macro_rules! encodings {
        ($($name:ident = $encoding:literal),+ $(,)?) => {
            $(
                mod $name {
                    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                    async fn g25_every_text_in_every_column_has_one_end() {
                        super::every::<true>($encoding).await;
                    }

                    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                    async fn g25_every_id_has_one_end() {
                        super::every::<false>($encoding).await;
                    }
                }
            )+
        };
    }

    encodings!(
        latin1 = "LATIN1",
        sql_ascii = "SQL_ASCII",
        euc_jp = "EUC_JP",
        win1252 = "WIN1252"
    );

    async fn latin1() -> World<EmbeddedMemory, PostgresDatabase> {
        on(PostgresDatabase::encoded("LATIN1").await).await
    }

    #[tokio::test]
    async fn g25_a_text_of_ours_is_stored_with_substitutes() {
        let world = latin1().await;
        world.publish("m1").await;
        world.probe.script(|_| Step::Permanent("5 € für 東京"));
        let mut inbox = world.inbox(&["billing"]).await;
        assert_eq!(inbox_tests::next(&mut inbox).await, Outcome::DeadLettered);
        assert_eq!(world.letter("billing").await.error, r"5 \u{20ac} für \u{6771}\u{4eac}");
    }

    #[tokio::test]
    async fn g25_an_id_that_can_not_be_stored_is_dead_lettered_and_can_be_replayed_in_vain() {
        let world = latin1().await;
        world.publish("order-🦀").await;
        let mut inbox = world.inbox(&["billing"]).await;
        assert_eq!(inbox_tests::next(&mut inbox).await, Outcome::DeadLettered);
        let letter = world.letter("billing").await;
        assert_eq!(letter.reason, DeadLetterReason::Rejected);
        assert_eq!(letter.message_id.as_deref(), Some(r"order-\u{1f980}"));
        assert!(
            letter.error.contains("can't store the message's id"),
            "{}",
            letter.error
        );
        assert_eq!(world.probe.total(), 0);
        assert_eq!(letter.headers.get("message_id"), Some("order-🦀".as_bytes()));
        world.dead_letters().replay(letter.id).await.expect("marked");
        assert_eq!(inbox_tests::next(&mut inbox).await, Outcome::DeadLettered);
        assert_eq!(world.letter("billing").await.id, letter.id);
    }

    /// The claim of the prefetched message is made in the commit of the one before it.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn g25_an_id_that_can_not_be_stored_stops_nobody_in_a_running_inbox() {
        let world = latin1().await;
        for number in 0..20 {
            world.publish(&format!("m{number}")).await;
            world.publish(&format!("東京-{number}")).await;
        }
        let inbox = world.builder(&["billing"]).spawn().await.expect("an inbox");
        inbox_tests::eventually("all are settled", || world.settled("billing")).await;
        inbox.stop();
        let report = inbox.join().await.expect("stopped");
        assert_eq!(
            (report.processed, report.dead_lettered, report.deferred),
            (20, 20, 0),
            "{report}"
        );
    }

    #[tokio::test]
    async fn g25_a_claim_by_hand_says_that_the_id_can_not_be_stored() {
        let world = latin1().await;
        drop(world.inbox(&["billing"]).await);
        let mut tx = world.database.begin().await;
        let refused = inbox_runtime::claim(&mut *tx, "billing", "東京")
            .await
            .expect_err("it can't be stored");
        assert!(matches!(refused, inbox_runtime::ClaimError::Invalid(_)), "{refused}");
    }
}
