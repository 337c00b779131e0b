//! The connection on which deliveries come, read by ourselves.
//!
//! The client library gives up a connection, or its whole reader, at a header that it can't read, and would do so at each
//! redelivery. Here any header is read, so one message never keeps another from coming. Everything that is asked and answered
//! goes over the library's connection (`control`).

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_nats::{ServerAddr, rustls::ClientConfig};
use bytes::BytesMut;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::{Notify, mpsc, watch},
    task::JoinHandle,
    time::{Instant, MissedTickBehavior, interval, sleep, timeout, timeout_at},
};

use super::{
    config::{CONNECT_TIMEOUT, PING_INTERVAL, RECONNECT_BACKOFF, Settings},
    dial::{Dialed, READ_BUFFER, dial},
    wire::{self, Frame, Incoming},
};
use crate::broker::BrokerError;

/// How many pings may be unanswered before the connection counts as lost.
const MAX_PINGS: u32 = 2;
/// How long the server may take to accept what is written to it.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// The connection, made when it is first used and again whenever it is lost, by a task that ends when this is dropped.
#[derive(Debug)]
pub(super) struct Intake {
    shared: Arc<Shared>,
    task: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    settings: Settings,
    state: Mutex<State>,
    /// There is something to write.
    wake: Notify,
    /// How often a connection was made.
    connects: AtomicU64,
    /// Grows whenever the connection is lost or made, or an attempt has failed.
    changes: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    connected: bool,
    /// What waits to be written on the connection that there is.
    out: Vec<u8>,
    subscriptions: HashMap<u64, (String, mpsc::UnboundedSender<Incoming>)>,
    /// The number of the last subscription.
    last: u64,
    /// Servers that the cluster has told of.
    discovered: Vec<ServerAddr>,
    trouble: Option<String>,
    /// The subjects for which a right is missing on this connection, with the server's words.
    denied: HashMap<String, String>,
}

/// How many of them are kept.
const MAX_DENIED: usize = 1024;

/// A subscription, which ends when it is dropped.
#[derive(Debug)]
pub(super) struct Subscriber {
    shared: Weak<Shared>,
    number: u64,
    incoming: mpsc::UnboundedReceiver<Incoming>,
}

impl Subscriber {
    /// The next message; `None` only when the broker is dropped.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it has taken nothing.
    pub(super) async fn next(&mut self) -> Option<Incoming> {
        self.incoming.recv().await
    }

    /// A message that has come.
    pub(super) fn try_next(&mut self) -> Option<Incoming> {
        self.incoming.try_recv().ok()
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.lock().subscriptions.remove(&self.number);
            shared.write(&format!("UNSUB {}\r\n", self.number));
        }
    }
}

impl Intake {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            shared: Arc::new(Shared {
                settings,
                state: Mutex::default(),
                wake: Notify::new(),
                connects: AtomicU64::new(0),
                changes: watch::Sender::new(0),
            }),
            task: Mutex::new(None),
        }
    }

    /// Fails when there is no connection; at the first use one is waited for as long as an attempt at each server takes.
    pub(super) async fn connected(&self) -> Result<(), BrokerError> {
        if self.is_connected() {
            return Ok(());
        }
        let mut changes = self.changes();
        if self.run()? {
            let attempts = u32::try_from(self.shared.settings.servers.len()).unwrap_or(u32::MAX);
            let _ = timeout_at(
                Instant::now() + CONNECT_TIMEOUT.saturating_mul(attempts),
                changes.changed(),
            )
            .await;
        }
        let state = self.shared.lock();
        if state.connected {
            return Ok(());
        }
        let why = state.trouble.as_deref().unwrap_or("the connection is lost");
        Err(BrokerError::Unavailable {
            message: format!(
                "no NATS server can be reached at {}: {why}",
                self.shared.settings.shown()
            ),
            source: None,
        })
    }

    /// Sees to it that the task runs, which ends with the runtime that it is in. Returns whether it is a new one.
    fn run(&self) -> Result<bool, BrokerError> {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if task.as_ref().is_some_and(|task| !task.is_finished()) {
            return Ok(false);
        }
        let tls = self.shared.settings.tls().map_err(BrokerError::Invalid)?;
        *task = Some(tokio::spawn(keep_connected(self.shared.clone(), Arc::new(tls))));
        Ok(true)
    }

    pub(super) fn is_connected(&self) -> bool {
        self.shared.lock().connected
    }

    /// How often a connection was made.
    pub(super) fn connects(&self) -> u64 {
        self.shared.connects.load(Ordering::SeqCst)
    }

    /// What changes whenever the connection is lost or made.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
    }

    /// What is published to that subject comes from now on, on this connection and those after it.
    pub(super) fn subscribe(&self, subject: String) -> Subscriber {
        let (sender, incoming) = mpsc::unbounded_channel();
        let mut state = self.shared.lock();
        state.last += 1;
        let number = state.last;
        let line = subscribe(&subject, number);
        state.subscriptions.insert(number, (subject, sender));
        drop(state);
        self.shared.write(&line);
        Subscriber {
            shared: Arc::downgrade(&self.shared),
            number,
            incoming,
        }
    }

    /// Why that subject can't be subscribed to, or asked at.
    pub(super) fn denied(&self, subject: &str) -> Option<String> {
        self.shared.lock().denied.get(subject).cloned()
    }

    /// It could be by now.
    pub(super) fn granted(&self, subject: &str) {
        self.shared.lock().denied.remove(subject);
    }

    /// Sends a request whose answers go to `reply`. Returns whether there is a connection to send it on.
    pub(super) fn send(&self, subject: &str, reply: &str, payload: &str) -> bool {
        self.shared
            .write(&format!("PUB {subject} {reply} {}\r\n{payload}\r\n", payload.len()))
    }
}

impl Drop for Intake {
    fn drop(&mut self) {
        let task = self.task.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(task) = task.take() {
            task.abort();
        }
    }
}

fn subscribe(subject: &str, number: u64) -> String {
    format!("SUB {subject} {number}\r\n")
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the bytes written, if there is a connection.
    fn write(&self, bytes: &str) -> bool {
        let mut state = self.lock();
        if state.connected {
            state.out.extend_from_slice(bytes.as_bytes());
            self.wake.notify_one();
        }
        state.connected
    }

    fn changed(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// The servers to try, in an order of chance.
    fn servers(&self) -> Vec<ServerAddr> {
        let mut servers = self.settings.addresses();
        servers.extend(self.lock().discovered.iter().cloned());
        fastrand::shuffle(&mut servers);
        servers
    }

    /// A connection is there: everything is subscribed to, before anything can be asked for.
    fn begin(&self, dialed: &Dialed) {
        let mut state = self.lock();
        let known = self.settings.addresses();
        let discovered = dialed.info.connect_urls.iter().filter_map(|url| url.parse().ok());
        state.discovered = discovered.filter(|server| !known.contains(server)).collect();
        let lines = state
            .subscriptions
            .iter()
            .map(|(number, (subject, _))| subscribe(subject, *number));
        state.out = lines.collect::<String>().into_bytes();
        state.connected = true;
        state.trouble = None;
        state.denied.clear();
        self.connects.fetch_add(1, Ordering::SeqCst);
        drop(state);
        self.wake.notify_one();
        self.changed();
    }

    fn end(&self, why: String) {
        let mut state = self.lock();
        state.connected = false;
        state.out.clear();
        state.trouble = Some(why);
        drop(state);
        self.changed();
    }

    /// Notes a missing right; whose it is says what it means. As the server has it: `Permissions Violation for Publish to "a.b"`.
    fn deny(&self, words: &str) {
        tracing::debug!(words, "the NATS server denies a right");
        let mut state = self.lock();
        if let Some(subject) = words.split('"').nth(1)
            && state.denied.len() < MAX_DENIED
        {
            state.denied.insert(subject.to_owned(), words.to_owned());
        }
        drop(state);
        self.changed();
    }

    /// Takes in what the server has sent. An error ends the connection.
    fn take(&self, buffer: &mut BytesMut, pings: &mut u32) -> Result<(), String> {
        while let Some(frame) = wire::read(buffer)? {
            match frame {
                Frame::Message(number, message) => {
                    if let Some((_, sender)) = self.lock().subscriptions.get(&number) {
                        // Whoever doesn't listen any more has unsubscribed.
                        let _ = sender.send(message);
                    }
                }
                Frame::Ping => drop(self.write("PONG\r\n")),
                Frame::Pong => *pings = 0,
                // A missing right costs only what was asked for.
                Frame::Error(error) if error.starts_with("Permissions Violation") => self.deny(&error),
                Frame::Error(error) => return Err(error),
                Frame::Info(_) | Frame::Ok => {}
            }
        }
        Ok(())
    }
}

/// Connects, serves the connection, and does so again. Never ends by itself.
async fn keep_connected(shared: Arc<Shared>, tls: Arc<ClientConfig>) {
    let mut attempts = 0;
    loop {
        let why = match dial_any(&shared, &tls).await {
            Ok(dialed) => {
                attempts = 0;
                shared.begin(&dialed);
                serve(&shared, dialed).await
            }
            Err(why) => why,
        };
        tracing::debug!(why, "there is no connection for deliveries");
        shared.end(why);
        attempts += 1;
        sleep(RECONNECT_BACKOFF.bound(attempts)).await;
    }
}

/// Connects to the first server that lets us in; why the last one didn't, if none does.
async fn dial_any(shared: &Shared, tls: &Arc<ClientConfig>) -> Result<Dialed, String> {
    let mut last = "no server is named".to_owned();
    for server in shared.servers() {
        let dialed = timeout(CONNECT_TIMEOUT, dial(&shared.settings, tls, &server)).await;
        match dialed.unwrap_or_else(|_| Err("nobody answered in time".to_owned())) {
            Ok(dialed) => return Ok(dialed),
            Err(why) => last = why,
        }
    }
    Err(last)
}

/// Reads and writes until the connection is lost; returns why it is.
async fn serve(shared: &Shared, dialed: Dialed) -> String {
    let Dialed { stream, mut buffer, .. } = dialed;
    let (mut reader, mut writer) = tokio::io::split(stream);
    let mut ticks = interval(PING_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut pings = 0;
    loop {
        if let Err(why) = shared.take(&mut buffer, &mut pings) {
            return why;
        }
        let out = std::mem::take(&mut shared.lock().out);
        if !out.is_empty() {
            let written = async {
                writer.write_all(&out).await?;
                writer.flush().await
            };
            match timeout(WRITE_TIMEOUT, written).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return error.to_string(),
                Err(_) => return "the server takes nothing any more".to_owned(),
            }
        }
        if buffer.capacity() - buffer.len() < READ_BUFFER / 16 {
            buffer.reserve(READ_BUFFER);
        }
        tokio::select! {
            read = reader.read_buf(&mut buffer) => match read {
                Ok(0) => return "the server closed the connection".to_owned(),
                Ok(_) => {}
                Err(error) => return error.to_string(),
            },
            () = shared.wake.notified() => {}
            _ = ticks.tick() => {
                if pings >= MAX_PINGS {
                    return "the server doesn't answer".to_owned();
                }
                pings += 1;
                shared.write("PING\r\n");
            }
        }
    }
}
