//! What `?` accepts in a handler, and the database error that is found beneath it.

use std::{error::Error, fmt, io, sync::Arc, time::Duration};

use inbox_runtime::{DeadLetterReason, HandlerError, Outcome, sqlx};
use inbox_tests::{Step, TestBroker, TestDatabase, World, lean_suite, next};

lean_suite!(
    a_database_fault_is_found_beneath_every_wrapper,
    a_lost_connection_is_found_beneath_every_wrapper_that_keeps_it,
    a_transparent_wrapper_hides_a_lost_connection,
    a_statement_that_the_driver_refuses_is_the_handlers_own_failure,
    a_constraint_is_the_handlers_own_failure,
    the_whole_chain_is_in_the_dead_letter,
    permanent_is_dead_lettered_at_once,
    retry_after_counts_and_waits,
);

#[derive(Debug, thiserror::Error)]
#[error("the invoice could not be written")]
struct Sourced(#[from] sqlx::Error);

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct Transparent(#[from] sqlx::Error);

#[derive(Debug, thiserror::Error)]
enum Layered {
    #[error("the repository failed")]
    Repository(#[source] Transparent),
    #[error(transparent)]
    Any(#[from] anyhow::Error),
}

#[derive(Debug)]
struct Plain;

impl fmt::Display for Plain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("plain")
    }
}

impl Error for Plain {}

type Wrap = fn(sqlx::Error) -> HandlerError;

/// Wrappers that keep the error itself, or its source.
const WRAPPERS: [(&str, Wrap); 11] = [
    ("sqlx", |error| error.into()),
    ("box", |error| {
        let boxed: Box<dyn Error + Send + Sync> = error.into();
        boxed.into()
    }),
    ("box of its type", |error| Box::new(error).into()),
    ("arc", |error| Arc::new(error).into()),
    ("anyhow", |error| {
        anyhow::Error::from(error).context("one").context("two").into()
    }),
    ("eyre", |error| eyre::Report::from(error).wrap_err("one").into()),
    ("thiserror", |error| Sourced(error).into()),
    ("anyhow in thiserror", |error| {
        Layered::Any(anyhow::Error::from(error).context("one")).into()
    }),
    ("thiserror in anyhow", |error| {
        anyhow::Error::from(Sourced(error)).context("one").into()
    }),
    ("io", |error| io::Error::other(Sourced(error)).into()),
    ("box in a box", |error| {
        let inner: Box<dyn Error + Send + Sync> = Box::new(Sourced(error));
        io::Error::other(inner).into()
    }),
];

/// Wrappers that show in their place what lies beneath: a database error has a source that tells, others have none.
const TRANSPARENT: [(&str, Wrap); 3] = [
    ("transparent", |error| Transparent(error).into()),
    ("transparent in thiserror", |error| {
        Layered::Repository(Transparent(error)).into()
    }),
    ("transparent in anyhow", |error| {
        anyhow::Error::from(Transparent(error)).into()
    }),
];

/// Each is the failure of a message of its own, which is then handled.
async fn are_deferred<B: TestBroker, D: TestDatabase>(errors: Vec<(&str, HandlerError)>) {
    let world = World::<B, D>::new().await;
    let mut inbox = world.inbox(&["billing"]).await;
    for (number, (name, error)) in errors.into_iter().enumerate() {
        let id = format!("m{number}");
        let fault = Step::raise(error);
        world
            .probe
            .script(move |call| if call.run == 1 { fault.clone() } else { Step::Ok });
        world.publish(&id).await;
        assert_eq!(next(&mut inbox).await, Outcome::Deferred, "{name}");
        world.assert_untouched("billing", &id).await;
        assert_eq!(world.attempts("billing").await, 0, "{name}");
        assert!(!world.settled("billing").await, "{name}");
        world.broker.pass(Duration::from_secs(1)).await;
        assert_eq!(next(&mut inbox).await, Outcome::Processed, "{name}");
        world.assert_done("billing", &id).await;
    }
}

async fn a_database_fault_is_found_beneath_every_wrapper<B: TestBroker, D: TestDatabase>() {
    let database = D::fresh().await;
    let mut errors = Vec::new();
    for (name, wrap) in WRAPPERS.into_iter().chain(TRANSPARENT) {
        errors.push((name, wrap(database.fault().await)));
    }
    are_deferred::<B, D>(errors).await;
}

async fn a_lost_connection_is_found_beneath_every_wrapper_that_keeps_it<B: TestBroker, D: TestDatabase>() {
    let lost = WRAPPERS.map(|(name, wrap)| (name, wrap(sqlx::Error::PoolTimedOut)));
    are_deferred::<B, D>(lost.into()).await;
}

/// A limit, which the docs of `HandlerError` name: nothing in such an error tells what it was, except its text.
async fn a_transparent_wrapper_hides_a_lost_connection<B: TestBroker, D: TestDatabase>() {
    for (name, wrap) in TRANSPARENT {
        let world = World::<B, D>::new().await;
        world.publish("m1").await;
        let fault = Step::raise(wrap(sqlx::Error::PoolTimedOut));
        world.probe.script(move |_| fault.clone());
        let mut inbox = world.inbox(&["billing"]).await;
        assert_eq!(next(&mut inbox).await, Outcome::Failed, "{name}");
        assert_eq!(world.attempts("billing").await, 1, "{name}");
    }
}

/// As with too many arguments: sqlx never sent it, the connection lives, and it will be refused each time.
async fn a_statement_that_the_driver_refuses_is_the_handlers_own_failure<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    let refused = || sqlx::Error::Protocol("too many arguments for query".to_owned());
    world.probe.script(move |_| Step::raise(refused()));
    let mut inbox = world.inbox(&["billing"]).await;
    for outcome in [Outcome::Failed, Outcome::Failed, Outcome::DeadLettered] {
        assert_eq!(next(&mut inbox).await, outcome);
    }
    world.assert_untouched("billing", "m1").await;
    assert!(world.letter("billing").await.error.contains("too many arguments"));
    assert!(world.settled("billing").await);
}

async fn a_constraint_is_the_handlers_own_failure<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    world
        .probe
        .script(|_| Step::Exec("INSERT INTO effects (grp, msg_id) VALUES (NULL, 'x')"));
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Failed);
    world.assert_untouched("billing", "m1").await;
    assert_eq!(world.attempts("billing").await, 1);
}

async fn the_whole_chain_is_in_the_dead_letter<B: TestBroker, D: TestDatabase>() {
    let errors: [(HandlerError, &str); 7] = [
        ("a text".into(), "a text"),
        (String::from("a String").into(), "a String"),
        (Plain.into(), "plain"),
        (
            anyhow::anyhow!("the root").context("middle").context("outer").into(),
            "outer: middle: the root",
        ),
        (
            eyre::eyre!("the root").wrap_err("middle").wrap_err("outer").into(),
            "outer: middle: the root",
        ),
        (
            Sourced(sqlx::Error::RowNotFound).into(),
            "the invoice could not be written: no rows returned by a query that expected to return at least one row",
        ),
        (
            Transparent(sqlx::Error::RowNotFound).into(),
            "no rows returned by a query that expected to return at least one row",
        ),
    ];
    let world = World::<B, D>::new().await;
    let mut inbox = world.inbox(&["on-persist"]).await;
    for (number, (error, text)) in errors.into_iter().enumerate() {
        let failure = Step::raise(error);
        world.probe.script(move |_| failure.clone());
        world.publish(&format!("m{number}")).await;
        assert_eq!(next(&mut inbox).await, Outcome::DeadLettered, "{text}");
        assert_eq!(world.letter("on-persist").await.error, text);
        world.database.exec("DELETE FROM inbox_dead_letters").await;
    }
}

async fn permanent_is_dead_lettered_at_once<B: TestBroker, D: TestDatabase>() {
    for group in ["billing", "at-least-once", "on-persist"] {
        let world = World::<B, D>::new().await;
        world.publish("m1").await;
        world.probe.script(|_| Step::Permanent("the amount is negative"));
        let mut inbox = world.inbox(&[group]).await;
        assert_eq!(next(&mut inbox).await, Outcome::DeadLettered, "{group}");
        assert_eq!(world.probe.total(), 1);
        world.assert_untouched(group, "m1").await;
        let letter = world.letter(group).await;
        assert_eq!(
            (letter.attempts, &*letter.error),
            (1, "the amount is negative"),
            "{group}"
        );
        if group != "on-persist" {
            assert_eq!(letter.reason, DeadLetterReason::Permanent, "{group}");
        }
        assert!(world.settled(group).await, "{group}");
    }
}

async fn retry_after_counts_and_waits<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    // Far longer than the handler's back-off of at most 40 ms.
    let later = Duration::from_secs(3);
    world.probe.script(move |call| {
        if call.run == 1 {
            Step::RetryAfter(later)
        } else {
            Step::Ok
        }
    });
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Failed);
    assert_eq!(world.attempts("billing").await, 1);
    let none = inbox.process_one(Duration::from_millis(500)).await.expect("the broker");
    assert_eq!(none, None, "it isn't time yet");
    world.broker.pass(later).await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    world.assert_done("billing", "m1").await;
    assert_eq!(world.attempts("billing").await, 0);
}

/// What `?` accepts: this test compiles.
#[test]
fn the_question_mark_takes_everything_that_becomes_a_boxed_error() {
    fn convert(which: u8) -> Result<(), HandlerError> {
        match which {
            0 => Err(sqlx::Error::RowNotFound)?,
            1 => Err(anyhow::anyhow!("anyhow"))?,
            2 => Err(eyre::eyre!("eyre"))?,
            3 => Err("text")?,
            4 => Err(String::from("string"))?,
            5 => Err(Plain)?,
            6 => Err(Sourced(sqlx::Error::RowNotFound))?,
            7 => Err(Box::<dyn Error + Send + Sync>::from("box"))?,
            8 => Err(io::Error::other("io"))?,
            9 => Err(HandlerError::permanent("its own"))?,
            _ => {}
        }
        Ok(())
    }
    for which in 0..10 {
        assert!(convert(which).is_err());
    }
    assert!(convert(10).is_ok());
}
