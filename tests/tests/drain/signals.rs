//! Processes that are told to stop, with a `main` that is `inbox_runtime::run()`.

use std::time::Duration;

use inbox_tests::{
    Settled, TestBroker, TestDatabase, World, eventually,
    process::{Ended, Mode, Signal, WorkerCommand},
    process_suite,
};

process_suite!(
    f78_sigterm_drains,
    f78_sigint_drains,
    f78_sigterm_drains_with_many_at_a_time,
    f78_a_second_signal_stops_now,
    f78_a_handler_beyond_the_shutdown_timeout_is_rolled_back,
    f78_sigkill_while_draining,
    g43_a_handler_that_blocks_its_thread_is_left_behind,
);

/// A group, and eleven messages for it.
struct Case<B: TestBroker, D: TestDatabase> {
    world: World<B, D>,
    group: String,
}

impl<B: TestBroker, D: TestDatabase> Case<B, D> {
    async fn new(group: &str) -> Self {
        let world = World::new().await;
        for number in 0..=10 {
            world.publish(&format!("m{number}")).await;
        }
        let group = format!("{group}-{}", D::HANDLERS);
        Self { world, group }
    }

    fn worker(&self, script: &str) -> WorkerCommand {
        WorkerCommand::on(env!("CARGO_BIN_EXE_worker"), Mode::Main, &self.world, &self.group).script(script)
    }

    async fn settled(&self) -> bool {
        self.world.broker.settled(&self.group, "order.created").await == Some(Settled::ALL)
    }

    /// Another process handles what is left, and everything is done once.
    async fn finish(&self, worker: WorkerCommand) -> Ended {
        let worker = worker.start();
        eventually("the other process settles the rest", || self.settled()).await;
        let ended = worker.stop().await;
        for number in 0..=10 {
            self.world.assert_done(&self.group, &format!("m{number}")).await;
        }
        assert!(self.settled().await);
        ended
    }
}

/// The first message takes 2 s, and the ten behind it wait.
async fn drains<B: TestBroker, D: TestDatabase>(signal: Signal) {
    let case = Case::<B, D>::new("one").await;
    let mut worker = case.worker("m0=sleep:2s").start();
    worker.says("run").await;
    worker.signal(signal);
    // Their leases of 30 s are longer than `eventually` waits: it gets them because they are released.
    let other = case.worker("ok");
    let ended = worker.end().await;
    assert!(ended.status.success(), "{ended:#?}");
    assert_eq!((ended.all_runs(), ended.runs(&case.group, "m0")), (1, 1), "{ended:#?}");
    case.world.assert_done(&case.group, "m0").await;
    let other = case.finish(other).await;
    assert_eq!((other.all_runs(), other.runs(&case.group, "m0")), (10, 0), "{other:#?}");
}

async fn f78_sigterm_drains<B: TestBroker, D: TestDatabase>() {
    drains::<B, D>(Signal::TERM).await;
}

async fn f78_sigint_drains<B: TestBroker, D: TestDatabase>() {
    drains::<B, D>(Signal::INT).await;
}

/// Five workers and as many messages prefetched. SQLite has one writer, so that four of the five wait for their turn: they have
/// not begun, so they don't begin. (A second one may begin before the signal is noticed.)
async fn f78_sigterm_drains_with_many_at_a_time<B: TestBroker, D: TestDatabase>() {
    let case = Case::<B, D>::new("many").await;
    let mut worker = case.worker("sleep:5s").start();
    worker.says("run").await;
    worker.signal(Signal::TERM);
    let ended = worker.end().await;
    assert!(ended.status.success(), "{ended:#?}");
    let begun = ended.all_runs();
    let most = if D::HANDLERS == "sqlite" { 4 } else { 5 };
    assert!((1..=most).contains(&begun), "one handler after the other: {ended:#?}");
    let effects = case.world.database.number("SELECT count(*) FROM effects").await;
    assert_eq!(
        usize::try_from(effects),
        Ok(begun),
        "what began was finished: {ended:#?}"
    );
    let other = case.finish(case.worker("ok")).await;
    assert_eq!(other.all_runs(), 11 - begun, "{other:#?}");
}

async fn f78_a_second_signal_stops_now<B: TestBroker, D: TestDatabase>() {
    let case = Case::<B, D>::new("many").await;
    let mut worker = case.worker("sleep:60s").start();
    worker.says("run").await;
    worker.signal(Signal::TERM);
    worker.logs("draining").await;
    worker.signal(Signal::INT);
    let ended = worker.end().await;
    assert_eq!(ended.status.code(), Some(1), "{ended:#?}");
    assert_eq!(case.world.database.number("SELECT count(*) FROM effects").await, 0);
    let other = case.finish(case.worker("ok")).await;
    assert_eq!(other.all_runs(), 11, "{other:#?}");
}

/// A handler that doesn't finish in time is rolled back, which is no failure of the program, nor of the handler: however
/// often the program is stopped, no attempt is counted.
async fn f78_a_handler_beyond_the_shutdown_timeout_is_rolled_back<B: TestBroker, D: TestDatabase>() {
    let case = Case::<B, D>::new("one").await;
    for _ in 0..3 {
        let slow = case.worker("m0=sleep:60s").env("INBOX_SHUTDOWN_TIMEOUT", "300ms");
        let mut worker = slow.start();
        worker.says("run").await;
        let ended = worker.stop().await;
        assert_eq!(ended.all_runs(), 1, "{ended:#?}");
        case.world.assert_untouched(&case.group, "m0").await;
        let attempts = "SELECT coalesce(sum(attempts), 0) FROM inbox_attempts";
        assert_eq!(case.world.database.number(attempts).await, 0, "{ended:#?}");
    }
    let other = case.finish(case.worker("ok")).await;
    assert_eq!(other.all_runs(), 11, "{other:#?}");
}

/// The running message's lease has to run out; all others were released before.
async fn f78_sigkill_while_draining<B: TestBroker, D: TestDatabase>() {
    let case = Case::<B, D>::new("one").await;
    let slow = case.worker("m0=sleep:60s").ack_wait(Duration::from_secs(1));
    let mut worker = slow.start();
    worker.says("run").await;
    worker.signal(Signal::TERM);
    worker.logs("draining").await;
    let ended = worker.kill().await;
    assert!(ended.killed_by(Signal::KILL), "{ended:#?}");
    case.world.assert_untouched(&case.group, "m0").await;
    let other = case.finish(case.worker("ok")).await;
    assert_eq!((other.all_runs(), other.runs(&case.group, "m0")), (11, 1), "{other:#?}");
}

/// The signal is handled and `run()` returns while the handler still blocks, whichever thread it blocks. The process ends
/// only with the thread, or by force.
async fn g43_a_handler_that_blocks_its_thread_is_left_behind<B: TestBroker, D: TestDatabase>() {
    let case = Case::<B, D>::new("one").await;
    let blocks = case.worker("m0=block:200s").env("INBOX_SHUTDOWN_TIMEOUT", "300ms");
    let mut worker = blocks.ack_wait(Duration::from_secs(2)).start();
    worker.says("run").await;
    worker.signal(Signal::TERM);
    // Each waits for a minute at most, which is less in all than the handler blocks.
    worker.logs("blocks its thread").await;
    worker.says("ended").await;
    let ended = worker.kill().await;
    let name = format!("worker::{}::one_at_a_time", D::HANDLERS);
    let named = |line: &String| line.contains("blocks its thread") && line.contains(&name) && line.contains("m0");
    assert!(ended.log.iter().any(named), "{ended:#?}");
    case.world.assert_untouched(&case.group, "m0").await;
    let other = case.finish(case.worker("ok")).await;
    assert_eq!(other.all_runs(), 11, "{other:#?}");
}
