//! Keeps timers and sockets going while a handler blocks a thread of the runtime.
//!
//! One of tokio's threads waits for timers and sockets, the others wait to be woken by it. What is due it runs itself,
//! and only when it is done does one of them wait for timers and sockets again. So a handler that blocks that very thread
//! stops them for the whole program, however many threads are free: leases run out, health isn't answered, a signal to stop
//! isn't noticed. A task that is spawned from outside of the runtime wakes another thread, which then waits for them.

use std::{
    sync::mpsc::{RecvTimeoutError, Sender, channel},
    thread,
    time::Duration,
};

use tokio::runtime::{Handle, RuntimeFlavor};

use crate::pipeline::Running;

/// How long a message must have been handled before it may be that its handler blocks a thread, and how often it is looked.
const INTERVAL: Duration = Duration::from_millis(200);

/// A thread that wakes the runtime now and then while messages are being handled, until this is dropped.
pub(super) struct Nudge {
    _ends: Option<Sender<()>>,
}

impl Nudge {
    /// Starts the thread. A runtime with one thread only has no other to wake, and gets none.
    pub(super) fn start(running: Vec<Running>) -> Self {
        let runtime = Handle::current();
        if runtime.runtime_flavor() == RuntimeFlavor::CurrentThread {
            return Self { _ends: None };
        }
        let (sender, ends) = channel::<()>();
        let wake = move || {
            while ends.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                let blocked = |running: &Running| running.oldest().is_some_and(|age| age >= INTERVAL);
                if running.iter().any(blocked) {
                    runtime.spawn(std::future::ready(()));
                }
            }
        };
        let thread = thread::Builder::new().name("inbox-nudge".to_owned()).spawn(wake);
        if let Err(error) = &thread {
            tracing::warn!(%error, "no thread could be started; a handler that blocks its thread may stop timers and sockets");
        }
        Self { _ends: Some(sender) }
    }
}
