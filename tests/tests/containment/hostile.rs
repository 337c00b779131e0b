//! Values of the application's that panic wherever the runtime touches them: payloads of panics, errors, rejections,
//! arguments, states, futures.

use std::{
    error::Error,
    fmt,
    panic::panic_any,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use inbox_runtime::{
    DeadLetterReason, DeliveryContext, FromDelivery, HandlerError, Inbox, InboxBuilder, Json, Outcome, Rejection,
    State, States, inbox_handler,
};
use inbox_tests::{EmbeddedMemory, Order, TestBroker, TestDatabase, World, database_suite, eventually, next};
use tokio::sync::Semaphore;

database_suite!(
    g42_whatever_panics_in_a_handler_is_a_failed_attempt,
    g42_a_permanent_error_that_panics_is_permanent,
    g42_a_rejection_that_panics_is_a_rejection,
    g42_an_extractor_that_panics_is_a_failed_attempt,
    g42_a_state_that_panics_when_it_is_cloned,
    g42_a_state_that_panics_when_it_is_dropped,
    g42_a_handler_that_panics_when_the_stop_drops_it,
    g42_whatever_panics_leaves_a_spawned_inbox_alive,
    g42_a_check_that_panics_is_a_start_error,
    g42_a_shutdown_future_that_panics_stops_the_inbox,
);

/// Panics when it is dropped, with a value that does so too, and so on.
struct Bomb(u32);

impl Drop for Bomb {
    fn drop(&mut self) {
        if self.0 > 0 && !std::thread::panicking() {
            panic_any(Self(self.0 - 1));
        }
    }
}

/// An error that panics.
#[derive(Clone, Copy, Debug)]
enum Hostile {
    Display,
    Source,
    Drop,
}

impl fmt::Display for Hostile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        assert!(!matches!(self, Self::Display), "in Display of {self:?}");
        f.write_str("hostile")
    }
}

/// The same, which `Copy` can't be.
#[derive(Debug)]
struct HostileError(Hostile);

impl fmt::Display for HostileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for HostileError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        assert!(!matches!(self.0, Hostile::Source), "in source()");
        None
    }
}

impl Drop for HostileError {
    fn drop(&mut self) {
        if matches!(self.0, Hostile::Drop) && !std::thread::panicking() {
            panic_any(Bomb(2));
        }
    }
}

/// A state whose clones panic while it is armed.
#[derive(Default)]
struct Trap(Arc<AtomicBool>);

impl Clone for Trap {
    fn clone(&self) -> Self {
        assert!(!self.0.load(Ordering::SeqCst), "in Clone");
        Self(self.0.clone())
    }
}

/// A state of which every clone, and the original, panics when it is dropped while it is armed.
#[derive(Clone, Default)]
struct Undroppable(Arc<AtomicBool>);

impl Drop for Undroppable {
    fn drop(&mut self) {
        if self.0.load(Ordering::SeqCst) && !std::thread::panicking() {
            panic!("in Drop of a state");
        }
    }
}

/// An argument that does what the order's id says.
struct Argument;

impl FromDelivery for Argument {
    fn from_delivery(context: &DeliveryContext<'_>) -> Result<Self, Rejection> {
        let Json(order) = Json::<Order>::from_delivery(context)?;
        let rejection = |error| Err(Rejection::with_source("rejected", HostileError(error)));
        match &*order.order_id {
            "extractor panics" => panic!("in an extractor"),
            "extractor panics with a bomb" => panic_any(Bomb(3)),
            "rejection: display" => rejection(Hostile::Display),
            "rejection: source" => rejection(Hostile::Source),
            "rejection: drop" => rejection(Hostile::Drop),
            _ => Ok(Self),
        }
    }
}

/// An argument whose check at the start panics.
struct Unchecked;

impl FromDelivery for Unchecked {
    fn from_delivery(_: &DeliveryContext<'_>) -> Result<Self, Rejection> {
        Ok(Self)
    }

    fn check(_: &States) -> Result<(), String> {
        panic!("in a check")
    }
}

/// What the handlers do: what the order's id says.
async fn perform(order: Order) -> Result<(), HandlerError> {
    match &*order.order_id {
        "payload" => panic_any(Bomb(3)),
        "no text" => panic_any(1),
        "display" => Err(HostileError(Hostile::Display).into()),
        "source" => Err(HostileError(Hostile::Source).into()),
        "drop" => Err(HostileError(Hostile::Drop).into()),
        "anyhow: display" => Err(anyhow::Error::new(HostileError(Hostile::Display))
            .context("outer")
            .into()),
        "anyhow: drop" => Err(anyhow::Error::new(HostileError(Hostile::Drop)).context("outer").into()),
        "eyre: source" => Err(eyre::Report::new(HostileError(Hostile::Source))
            .wrap_err("outer")
            .into()),
        "permanent: display" => Err(HandlerError::permanent(HostileError(Hostile::Display))),
        "permanent: source" => Err(HandlerError::permanent(HostileError(Hostile::Source))),
        "permanent: drop" => Err(HandlerError::permanent(HostileError(Hostile::Drop))),
        "hangs with a bomb" => {
            let _bomb = Bomb(3);
            std::future::pending().await
        }
        _ => Ok(()),
    }
}

macro_rules! handlers {
    ($module:ident, $conn:ty) => {
        mod $module {
            use super::*;

            #[inbox_handler(
                group = "hostile",
                subject = "order.created",
                max_attempts = 3,
                backoff = "10ms..40ms",
                timeout = "2s"
            )]
            async fn hostile(
                _tx: &mut $conn,
                _argument: Argument,
                Json(order): Json<Order>,
                _trap: State<Trap>,
                _undroppable: State<Undroppable>,
            ) -> Result<(), HandlerError> {
                perform(order).await
            }

            /// Reports that it has begun, and waits until it is dropped.
            #[inbox_handler(group = "patient", subject = "order.created")]
            async fn patient(_tx: &mut $conn, State(begun): State<Arc<Semaphore>>) -> Result<(), HandlerError> {
                let _bomb = Bomb(3);
                begun.add_permits(1);
                std::future::pending().await
            }

            #[inbox_handler(group = "unchecked", subject = "order.created")]
            async fn unchecked(_tx: &mut $conn, _argument: Unchecked) -> Result<(), HandlerError> {
                Ok(())
            }
        }
    };
}

handlers!(sqlite_handlers, inbox_runtime::sqlx::SqliteConnection);
#[cfg(feature = "postgres")]
handlers!(postgres_handlers, inbox_runtime::sqlx::PgConnection);

/// A world whose inbox runs the handlers above.
struct HostileWorld<D: TestDatabase> {
    world: World<EmbeddedMemory, D>,
    trap: Arc<AtomicBool>,
    undroppable: Arc<AtomicBool>,
    begun: Arc<Semaphore>,
}

impl<D: TestDatabase> HostileWorld<D> {
    async fn new() -> Self {
        Self {
            world: World::new().await,
            trap: Arc::default(),
            undroppable: Arc::default(),
            begun: Arc::new(Semaphore::new(0)),
        }
    }

    fn builder(&self, group: &'static str) -> InboxBuilder {
        let module = format!("containment::hostile::{}_handlers::", D::HANDLERS);
        Inbox::builder()
            .store(self.world.database.pool())
            .broker(self.world.flaky.clone())
            .state(Trap(self.trap.clone()))
            .state(Undroppable(self.undroppable.clone()))
            .state(self.begun.clone())
            .groups([group])
            .select(move |meta| meta.name.starts_with(&module))
    }

    async fn inbox(&self) -> Inbox {
        self.builder("hostile").build().await.expect("an inbox")
    }

    /// Publishes a message that is handled as `what` says.
    async fn publish(&self, what: &str) {
        let message = Order::new(what).to("order.created").id(what.to_owned());
        self.world.broker.publish(message).await;
    }

    /// The reason and the error of the dead letter of that message.
    async fn letter(&self, what: &str) -> (DeadLetterReason, String) {
        let letters = self.world.letters("hostile").await;
        let mut ours = letters
            .into_iter()
            .filter(|letter| letter.message_id.as_deref() == Some(what));
        let letter = ours.next().unwrap_or_else(|| panic!("a dead letter of {what}"));
        (letter.reason, letter.error)
    }

    /// The message uses up its attempts, and the next one is handled.
    async fn fails(&self, inbox: &mut Inbox, what: &str, error: &str) {
        self.publish(what).await;
        for outcome in [Outcome::Failed, Outcome::Failed, Outcome::DeadLettered] {
            assert_eq!(next(inbox).await, outcome, "{what}");
        }
        assert_eq!(
            self.letter(what).await,
            (DeadLetterReason::Exhausted, error.to_owned()),
            "{what}"
        );
        self.goes_on(inbox).await;
    }

    async fn goes_on(&self, inbox: &mut Inbox) {
        self.publish(&format!("sound {}", fastrand::u64(..))).await;
        assert_eq!(next(inbox).await, Outcome::Processed);
    }
}

const DISPLAY: &str = "(its `Display` panicked: in Display of Display)";
const SOURCE: &str = "(its `source()` panicked: in source())";

async fn g42_whatever_panics_in_a_handler_is_a_failed_attempt<D: TestDatabase>() {
    let world = HostileWorld::<D>::new().await;
    let mut inbox = world.inbox().await;
    for (what, error) in [
        ("payload", "the handler panicked: (no text)".to_owned()),
        ("no text", "the handler panicked: (no text)".to_owned()),
        ("display", DISPLAY.to_owned()),
        ("source", format!("hostile: {SOURCE}")),
        ("drop", "hostile".to_owned()),
        ("anyhow: display", format!("outer: {DISPLAY}")),
        ("anyhow: drop", "outer: hostile".to_owned()),
        ("eyre: source", format!("outer: hostile: {SOURCE}")),
        (
            "hangs with a bomb",
            "the handler took longer than its timeout of 2s".to_owned(),
        ),
    ] {
        world.fails(&mut inbox, what, &error).await;
    }
}

async fn g42_a_permanent_error_that_panics_is_permanent<D: TestDatabase>() {
    let world = HostileWorld::<D>::new().await;
    let mut inbox = world.inbox().await;
    for (what, error) in [
        ("permanent: display", DISPLAY.to_owned()),
        ("permanent: source", format!("hostile: {SOURCE}")),
        ("permanent: drop", "hostile".to_owned()),
    ] {
        world.publish(what).await;
        assert_eq!(next(&mut inbox).await, Outcome::DeadLettered, "{what}");
        assert_eq!(world.letter(what).await, (DeadLetterReason::Permanent, error), "{what}");
        world.goes_on(&mut inbox).await;
    }
}

async fn g42_a_rejection_that_panics_is_a_rejection<D: TestDatabase>() {
    let world = HostileWorld::<D>::new().await;
    let mut inbox = world.inbox().await;
    for (what, error) in [
        ("rejection: display", format!("rejected: {DISPLAY}")),
        ("rejection: source", format!("rejected: hostile: {SOURCE}")),
        ("rejection: drop", "rejected: hostile".to_owned()),
    ] {
        world.publish(what).await;
        assert_eq!(next(&mut inbox).await, Outcome::DeadLettered, "{what}");
        assert_eq!(world.letter(what).await, (DeadLetterReason::Rejected, error), "{what}");
        world.goes_on(&mut inbox).await;
    }
}

async fn g42_an_extractor_that_panics_is_a_failed_attempt<D: TestDatabase>() {
    let world = HostileWorld::<D>::new().await;
    let mut inbox = world.inbox().await;
    world
        .fails(&mut inbox, "extractor panics", "an argument panicked: in an extractor")
        .await;
    world
        .fails(
            &mut inbox,
            "extractor panics with a bomb",
            "an argument panicked: (no text)",
        )
        .await;
}

async fn g42_a_state_that_panics_when_it_is_cloned<D: TestDatabase>() {
    let world = HostileWorld::<D>::new().await;
    let mut inbox = world.inbox().await;
    world.trap.store(true, Ordering::SeqCst);
    world.publish("m1").await;
    assert_eq!(next(&mut inbox).await, Outcome::Failed);
    world.trap.store(false, Ordering::SeqCst);
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    world.goes_on(&mut inbox).await;
}

async fn g42_a_state_that_panics_when_it_is_dropped<D: TestDatabase>() {
    let world = HostileWorld::<D>::new().await;
    let mut inbox = world.inbox().await;
    world.undroppable.store(true, Ordering::SeqCst);
    world.publish("m1").await;
    assert_eq!(next(&mut inbox).await, Outcome::Failed);
    world.undroppable.store(false, Ordering::SeqCst);
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    // The last one goes with the inbox.
    let handle = inbox.spawn();
    world.undroppable.store(true, Ordering::SeqCst);
    handle.stop();
    handle.join().await.expect("a clean end");
}

/// The future is dropped where it waits, outside of its poll.
async fn g42_a_handler_that_panics_when_the_stop_drops_it<D: TestDatabase>() {
    let world = HostileWorld::<D>::new().await;
    let builder = world.builder("patient").shutdown_timeout(Duration::ZERO);
    let handle = builder.spawn().await.expect("an inbox");
    world.publish("m1").await;
    world.begun.acquire().await.expect("it is open").forget();
    handle.stop();
    handle.join().await.expect("a clean end");
}

async fn g42_whatever_panics_leaves_a_spawned_inbox_alive<D: TestDatabase>() {
    let world = HostileWorld::<D>::new().await;
    let all = [
        "payload",
        "display",
        "source",
        "drop",
        "anyhow: drop",
        "permanent: drop",
        "rejection: display",
        "rejection: source",
        "rejection: drop",
        "extractor panics",
        "extractor panics with a bomb",
        "hangs with a bomb",
    ];
    for what in all {
        world.publish(what).await;
        world.publish(&format!("sound {what}")).await;
    }
    let handle = world.builder("hostile").spawn().await.expect("an inbox");
    eventually("everything is settled", || world.world.settled("hostile")).await;
    assert!(handle.health().ready, "{:?}", handle.health());
    handle.stop();
    let report = handle.join().await.expect("a clean end");
    let all = all.len() as u64;
    assert_eq!((report.processed, report.dead_lettered), (all, all), "{report}");
}

async fn g42_a_check_that_panics_is_a_start_error<D: TestDatabase>() {
    let world = HostileWorld::<D>::new().await;
    let error = world.builder("unchecked").build().await.expect_err("no inbox");
    let text = error.to_string();
    assert!(text.contains("_handlers::unchecked` ("), "{text}");
    assert!(text.contains("the check of an argument panicked: in a check"), "{text}");
}

async fn g42_a_shutdown_future_that_panics_stops_the_inbox<D: TestDatabase>() {
    let world = HostileWorld::<D>::new().await;
    let builder = world.builder("hostile").shutdown(async { panic_any(Bomb(2)) });
    let inbox = builder.build().await.expect("an inbox");
    inbox.run().await.expect("a clean end");
}
