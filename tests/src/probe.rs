//! What a test tells its handlers to do, and what it sees of their runs.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use inbox_runtime::{Handled, HandlerError, Message, Meta};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::database::TestConnection;

/// The payload of the tests' messages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// The order's id.
    pub order_id: String,
    /// How much it is about.
    #[serde(default)]
    pub amount: u64,
}

impl Order {
    /// An order with that id.
    #[must_use]
    pub fn new(order_id: impl Into<String>) -> Self {
        Self {
            order_id: order_id.into(),
            amount: 1,
        }
    }

    /// A message about it, without an id of its own.
    ///
    /// # Panics
    ///
    /// Never: an order can be written as JSON.
    #[must_use]
    pub fn to(&self, subject: &str) -> Message {
        Message::json(subject, self).expect("JSON")
    }
}

/// One run of a handler.
#[derive(Clone, Debug)]
pub struct Call {
    /// The handler's group.
    pub group: String,
    /// The message's id.
    pub id: String,
    /// The payload.
    pub order: Order,
    /// The how-many-th run of this handler on this message in this process, from 1.
    pub run: u32,
    /// The broker's delivery count.
    pub delivery_count: Option<u64>,
    /// The key for calls outside the database.
    pub key: String,
    /// When it began.
    pub at: Instant,
}

/// What a handler does after it has written its effect.
#[derive(Clone, Debug)]
pub enum Step {
    /// Succeeds.
    Ok,
    /// Returns that.
    Return(Handled),
    /// Fails with that text.
    Fail(&'static str),
    /// Fails for good.
    Permanent(&'static str),
    /// Fails, to be tried again after that time.
    RetryAfter(Duration),
    /// Panics.
    Panic(&'static str),
    /// Waits, then succeeds.
    Sleep(Duration),
    /// Waits for ever.
    Hang,
    /// Blocks its thread, then succeeds.
    Block(Duration),
    /// Blocks its thread until it is let go, then succeeds.
    BlockUntil(Latch),
    /// Waits for the semaphore's permit, then succeeds.
    Gate(Arc<tokio::sync::Semaphore>),
    /// Waits for the semaphore's permit, then does the next step.
    After(Arc<tokio::sync::Semaphore>, Box<Self>),
    /// Does the one step and then, if it succeeds, the other.
    Then(Box<Self>, Box<Self>),
    /// Runs statements on the transaction, ignores their errors, then does the next step.
    Swallow(&'static str, Box<Self>),
    /// Runs statements on the transaction, gives up on them after that time, then does the next step.
    GiveUp(&'static str, Duration, Box<Self>),
    /// Runs statements on the transaction and fails with their error.
    Exec(&'static str),
    /// Runs statements in a nested transaction that is committed, or not.
    Nested(&'static str, bool),
    /// Leaves a nested transaction open.
    LeakNested,
    /// Fails with that error, once.
    Raise(Arc<Mutex<Option<HandlerError>>>),
    /// Panics in a task of its own, and fails with that task's error.
    PanicInTask(&'static str),
    /// Holds a value that panics when it is dropped, then does the next step.
    PanicInDrop(Box<Self>),
    /// Kills the process the hard way.
    Abort,
}

/// What a handler that blocks its thread waits for.
#[derive(Clone, Debug, Default)]
pub struct Latch {
    open: Arc<AtomicBool>,
    passed: Arc<AtomicU32>,
}

impl Latch {
    /// Lets everybody go.
    pub fn open(&self) {
        self.open.store(true, Ordering::SeqCst);
    }

    /// How many have been let go.
    #[must_use]
    pub fn passed(&self) -> u32 {
        self.passed.load(Ordering::SeqCst)
    }

    /// Blocks the thread; for three minutes if nobody opens it, so that a test that fails comes to an end.
    fn block(&self) {
        let start = Instant::now();
        while !self.open.load(Ordering::SeqCst) && start.elapsed() < Duration::from_mins(3) {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.passed.fetch_add(1, Ordering::SeqCst);
    }
}

type Script = Arc<dyn Fn(&Call) -> Step + Send + Sync>;

/// The state that the tests' handlers take.
#[derive(Clone, Default)]
pub struct Probe(Arc<Inner>);

#[derive(Default)]
struct Inner {
    script: Mutex<Option<Script>>,
    calls: Mutex<Vec<Call>>,
    runs: Mutex<HashMap<(String, String), u32>>,
}

impl Probe {
    /// Handlers do what `script` says, from now on. Without a script they succeed.
    pub fn script(&self, script: impl Fn(&Call) -> Step + Send + Sync + 'static) {
        *self.0.script.lock() = Some(Arc::new(script));
    }

    /// Every run so far, in the order in which they began.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.0.calls.lock().clone()
    }

    /// How often a group's handler has run on a message.
    #[must_use]
    pub fn runs(&self, group: &str, id: &str) -> u32 {
        self.0
            .runs
            .lock()
            .get(&(group.to_owned(), id.to_owned()))
            .copied()
            .unwrap_or_default()
    }

    /// How often handlers have run.
    #[must_use]
    pub fn total(&self) -> usize {
        self.0.calls.lock().len()
    }

    /// A handler begins: notes the call and says what to do.
    pub fn enter(&self, meta: &Meta, order: Order) -> (Call, Step) {
        let (group, id) = (meta.group().to_owned(), meta.message_id().to_owned());
        let run = {
            let mut runs = self.0.runs.lock();
            let run = runs.entry((group.clone(), id.clone())).or_default();
            *run += 1;
            *run
        };
        let call = Call {
            group,
            id,
            order,
            run,
            delivery_count: meta.delivery_count(),
            key: meta.idempotency_key(),
            at: Instant::now(),
        };
        self.0.calls.lock().push(call.clone());
        let script = self.0.script.lock().clone();
        let step = script.map_or(Step::Ok, |script| script(&call));
        (call, step)
    }
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Probe")
            .field("total", &self.total())
            .finish_non_exhaustive()
    }
}

impl Step {
    /// Fails with that error, once.
    pub fn raise(error: impl Into<HandlerError>) -> Self {
        Self::Raise(Arc::new(Mutex::new(Some(error.into()))))
    }

    /// Does it, on the handler's transaction.
    ///
    /// # Errors
    ///
    /// Those that it is told to make.
    pub async fn perform<C: TestConnection>(self, tx: &mut C) -> Result<Handled, HandlerError> {
        match self {
            Self::Ok => {}
            Self::Return(handled) => return Ok(handled),
            Self::Fail(text) => return Err(text.into()),
            Self::Permanent(text) => return Err(HandlerError::permanent(text)),
            Self::RetryAfter(delay) => return Err(HandlerError::retry_after(delay, "not yet")),
            Self::Panic(text) => std::panic::panic_any(text),
            Self::Sleep(time) => tokio::time::sleep(time).await,
            Self::Hang => std::future::pending().await,
            Self::Block(time) => std::thread::sleep(time),
            Self::BlockUntil(latch) => latch.block(),
            Self::Gate(gate) => gate.acquire().await?.forget(),
            Self::After(gate, next) => {
                gate.acquire().await?.forget();
                return Box::pin(next.perform(tx)).await;
            }
            Self::Then(first, next) => {
                Box::pin(first.perform(tx)).await?;
                return Box::pin(next.perform(tx)).await;
            }
            Self::Swallow(sql, next) => {
                let _ = tx.exec(sql).await;
                return Box::pin(next.perform(tx)).await;
            }
            Self::GiveUp(sql, time, next) => {
                let _ = tokio::time::timeout(time, tx.exec(sql)).await;
                return Box::pin(next.perform(tx)).await;
            }
            Self::Exec(sql) => tx.exec(sql).await?,
            Self::Nested(sql, commit) => tx.nested(sql, commit).await?,
            Self::LeakNested => tx.leak_nested().await?,
            Self::Raise(error) => return Err(error.lock().take().expect("raised once")),
            Self::PanicInTask(text) => tokio::spawn(async move { std::panic::panic_any(text) }).await?,
            Self::PanicInDrop(next) => {
                let _bomb = Bomb(true);
                return Box::pin(next.perform(tx)).await;
            }
            Self::Abort => std::process::abort(),
        }
        Ok(Handled::Processed)
    }
}

/// Panics when it is dropped, if it is armed.
#[derive(Debug)]
struct Bomb(bool);

impl Drop for Bomb {
    fn drop(&mut self) {
        if self.0 && !std::thread::panicking() {
            panic!("in Drop");
        }
    }
}

/// A payload that can panic: while it is read, if its order's id begins `unreadable`, and when it is dropped, if that
/// begins `undroppable`.
#[derive(Debug)]
pub struct Fragile {
    /// What is in it.
    pub order: Order,
    _bomb: Bomb,
}

impl<'de> Deserialize<'de> for Fragile {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let order = Order::deserialize(deserializer)?;
        assert!(!order.order_id.starts_with("unreadable"), "in Deserialize");
        let bomb = Bomb(order.order_id.starts_with("undroppable"));
        Ok(Self { order, _bomb: bomb })
    }
}
