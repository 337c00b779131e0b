//! Texts that aren't ours are cut, in the tables and in the log.

use std::sync::Arc;

use inbox_runtime::Outcome;
use inbox_tests::{Step, TestBroker, TestDatabase, World, embedded_suite, next};
use parking_lot::Mutex;

embedded_suite!(
    g48_an_error_of_megabytes_is_cut_in_the_tables,
    g48_a_panic_of_megabytes_is_cut_too
);

const CUT: &str = "é… (cut: 3,145,728 bytes in all)";

fn long() -> String {
    "é".repeat(3 * 1024 * 1024 / 2)
}

async fn g48_an_error_of_megabytes_is_cut_in_the_tables<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    world
        .probe
        .script(|_| Step::Raise(Arc::new(Mutex::new(Some(long().into())))));
    let mut inbox = world.inbox(&["billing"]).await;
    for outcome in [Outcome::Failed, Outcome::Failed] {
        assert_eq!(next(&mut inbox).await, outcome);
        let longest = "SELECT max(length(last_error)) FROM inbox_attempts";
        assert!(world.database.number(longest).await <= 8 * 1024);
    }
    assert_eq!(next(&mut inbox).await, Outcome::DeadLettered);
    let error = world.letter("billing").await.error;
    assert!(error.len() <= 8 * 1024 && error.ends_with(CUT), "{} bytes", error.len());
}

async fn g48_a_panic_of_megabytes_is_cut_too<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    let text: &'static str = Box::leak(long().into_boxed_str());
    world.probe.script(move |_| Step::Panic(text));
    let mut inbox = world.inbox(&["on-persist"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::DeadLettered);
    let error = world.letter("on-persist").await.error;
    assert!(
        error.len() <= 8 * 1024 && error.contains("bytes in all"),
        "{} bytes",
        error.len()
    );
}
