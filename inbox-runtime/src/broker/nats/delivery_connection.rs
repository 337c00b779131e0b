//! The connection for pull requests and deliveries, without the client library, which a malformed header would break.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_nats::{ServerAddr, rustls::ClientConfig};
use bytes::BytesMut;
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::{Notify, mpsc, watch},
    task::JoinHandle,
    time::{Instant, MissedTickBehavior, interval, sleep, timeout, timeout_at},
};

use super::{
    connect_options::ConnectOptions,
    handshake::{self, READ_BUFFER, ServerConnection},
    limits::{CONNECT_TIMEOUT, PING_INTERVAL, RECONNECT_BACKOFF},
    permissions::{self, PermissionViolations},
    protocol::{self, RawMessage, ServerOp},
};
use crate::broker::BrokerError;

/// How many pings may be unanswered before the connection counts as lost.
const MAX_PINGS: u32 = 2;
/// The timeout of a write.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Connects at first use and reconnects whenever the connection is lost, in a task that ends when this is dropped.
#[derive(Debug)]
pub(super) struct DeliveryConnection {
    shared: Arc<DeliveryShared>,
    task: Mutex<Option<JoinHandle<()>>>,
}

/// What the handle, its subscribers and its task share.
#[derive(Debug)]
struct DeliveryShared {
    options: ConnectOptions,
    state: Mutex<DeliveryState>,
    /// Wakes the task to write `output`.
    output_ready: Notify,
    /// The number of connects so far.
    connects: AtomicU64,
    /// Grows at each connect, disconnect, failed attempt and permission violation.
    changes: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct DeliveryState {
    connected: bool,
    /// Operations to be written to the current connection.
    output: Vec<u8>,
    /// By subscription id: the subject, and where its messages go.
    subscriptions: HashMap<u64, (String, mpsc::UnboundedSender<RawMessage>)>,
    /// The last subscription id.
    last_sid: u64,
    /// Servers that the cluster has announced.
    discovered: Vec<ServerAddr>,
    last_error: Option<String>,
    /// Those of the current connection.
    violations: PermissionViolations,
}

/// The messages of a subscription. Dropping it unsubscribes.
#[derive(Debug)]
pub(super) struct Subscriber {
    shared: Weak<DeliveryShared>,
    sid: u64,
    incoming: mpsc::UnboundedReceiver<RawMessage>,
}

impl Subscriber {
    /// The next message; `None` only when the broker is dropped.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it has taken no message.
    pub(super) async fn next(&mut self) -> Option<RawMessage> {
        self.incoming.recv().await
    }

    /// The next message that was already received.
    pub(super) fn try_next(&mut self) -> Option<RawMessage> {
        self.incoming.try_recv().ok()
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.lock().subscriptions.remove(&self.sid);
            shared.write(&format!("UNSUB {}\r\n", self.sid));
        }
    }
}

impl DeliveryConnection {
    pub(super) fn new(options: ConnectOptions) -> Self {
        Self {
            shared: Arc::new(DeliveryShared {
                options,
                state: Mutex::default(),
                output_ready: Notify::new(),
                connects: AtomicU64::new(0),
                changes: watch::Sender::new(0),
            }),
            task: Mutex::new(None),
        }
    }

    /// Fails unless connected. The first use waits for as long as one attempt at each server may take.
    pub(super) async fn connected(&self) -> Result<(), BrokerError> {
        if self.is_connected() {
            return Ok(());
        }
        let mut changes = self.changes();
        if self.ensure_running()? {
            let attempts = u32::try_from(self.shared.options.servers.len()).unwrap_or(u32::MAX);
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
        let why = state.last_error.as_deref().unwrap_or("the connection is lost");
        Err(BrokerError::Unavailable {
            message: format!(
                "no NATS server can be reached at {}: {why}",
                self.shared.options.shown()
            ),
            source: None,
        })
    }

    /// Starts the task unless it runs; it ends with its tokio runtime. Returns whether it was started.
    fn ensure_running(&self) -> Result<bool, BrokerError> {
        let mut task = self.task.lock();
        if task.as_ref().is_some_and(|task| !task.is_finished()) {
            return Ok(false);
        }
        let tls = self.shared.options.tls().map_err(BrokerError::Invalid)?;
        *task = Some(tokio::spawn(keep_connected(self.shared.clone(), Arc::new(tls))));
        Ok(true)
    }

    pub(super) fn is_connected(&self) -> bool {
        self.shared.lock().connected
    }

    /// The number of connects so far.
    pub(super) fn connects(&self) -> u64 {
        self.shared.connects.load(Ordering::SeqCst)
    }

    /// Changes at each connect, disconnect and permission violation.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
    }

    /// Subscribes to a subject, on the current connection and on each later one.
    pub(super) fn subscribe(&self, subject: String) -> Subscriber {
        let (sender, incoming) = mpsc::unbounded_channel();
        let mut state = self.shared.lock();
        state.last_sid += 1;
        let sid = state.last_sid;
        let op = sub_op(&subject, sid);
        state.subscriptions.insert(sid, (subject, sender));
        drop(state);
        self.shared.write(&op);
        Subscriber {
            shared: Arc::downgrade(&self.shared),
            sid,
            incoming,
        }
    }

    /// The server's text why `subject` can't be subscribed to.
    pub(super) fn subscribe_violation(&self, subject: &str) -> Option<String> {
        self.shared.lock().violations.subscribe(subject).map(str::to_owned)
    }

    /// The server's text why `subject` can't be published to.
    pub(super) fn publish_violation(&self, subject: &str) -> Option<String> {
        let state = self.shared.lock();
        state
            .violations
            .publish(subject)
            .map(|violation| violation.text.clone())
    }

    /// Publishing to `subject` has succeeded.
    pub(super) fn forget_publish_violation(&self, subject: &str) {
        self.shared.lock().violations.forget_publish(subject);
    }

    /// Publishes a request whose answers go to `reply`. Returns whether there is a connection.
    pub(super) fn send_request(&self, subject: &str, reply: &str, payload: &str) -> bool {
        self.shared
            .write(&format!("PUB {subject} {reply} {}\r\n{payload}\r\n", payload.len()))
    }
}

impl Drop for DeliveryConnection {
    fn drop(&mut self) {
        let task = self.task.get_mut();
        if let Some(task) = task.take() {
            task.abort();
        }
    }
}

fn sub_op(subject: &str, sid: u64) -> String {
    format!("SUB {subject} {sid}\r\n")
}

impl DeliveryShared {
    fn lock(&self) -> MutexGuard<'_, DeliveryState> {
        self.state.lock()
    }

    /// Queues an operation. Returns whether there is a connection.
    fn write(&self, op: &str) -> bool {
        let mut state = self.lock();
        if state.connected {
            state.output.extend_from_slice(op.as_bytes());
            self.output_ready.notify_one();
        }
        state.connected
    }

    fn notify_changed(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// The servers to try, in random order.
    fn servers(&self) -> Vec<ServerAddr> {
        let mut servers = self.options.addresses();
        servers.extend(self.lock().discovered.iter().cloned());
        fastrand::shuffle(&mut servers);
        servers
    }

    /// Sets the state of a new connection; its first output are the subscriptions.
    fn on_connected(&self, connection: &ServerConnection) {
        let mut state = self.lock();
        let configured = self.options.addresses();
        let discovered = connection.info.connect_urls.iter().filter_map(|url| url.parse().ok());
        state.discovered = discovered.filter(|server| !configured.contains(server)).collect();
        let subscriptions = state.subscriptions.iter();
        let ops = subscriptions.map(|(sid, (subject, _))| sub_op(subject, *sid));
        state.output = ops.collect::<String>().into_bytes();
        state.connected = true;
        state.last_error = None;
        state.violations.clear();
        self.connects.fetch_add(1, Ordering::SeqCst);
        drop(state);
        self.output_ready.notify_one();
        self.notify_changed();
    }

    fn on_disconnected(&self, why: String) {
        let mut state = self.lock();
        state.connected = false;
        state.output.clear();
        state.last_error = Some(why);
        drop(state);
        self.notify_changed();
    }

    fn on_violation(&self, error: &str) {
        tracing::debug!(error, "the NATS server reports a permission violation");
        self.lock().violations.record(error);
        self.notify_changed();
    }

    /// Handles the operations in the buffer. An error ends the connection.
    fn on_input(&self, buffer: &mut BytesMut, unanswered_pings: &mut u32) -> Result<(), String> {
        while let Some(op) = protocol::parse(buffer)? {
            match op {
                ServerOp::Message(sid, message) => {
                    if let Some((_, sender)) = self.lock().subscriptions.get(&sid) {
                        // A receiver that is gone is about to unsubscribe.
                        let _ = sender.send(message);
                    }
                }
                ServerOp::Ping => drop(self.write("PONG\r\n")),
                ServerOp::Pong => *unanswered_pings = 0,
                // The only error that leaves the connection open.
                ServerOp::Error(error) if permissions::is_violation(&error) => self.on_violation(&error),
                ServerOp::Error(error) => return Err(error),
                ServerOp::Info(_) | ServerOp::Ok => {}
            }
        }
        Ok(())
    }
}

/// Connects, runs the connection until it is lost, and reconnects. Never returns.
async fn keep_connected(shared: Arc<DeliveryShared>, tls: Arc<ClientConfig>) {
    let mut attempts = 0;
    loop {
        let why = match connect_any(&shared, &tls).await {
            Ok(connection) => {
                attempts = 0;
                shared.on_connected(&connection);
                run(&shared, connection).await
            }
            Err(why) => why,
        };
        tracing::debug!(why, "the NATS connection for deliveries is down");
        shared.on_disconnected(why);
        attempts += 1;
        sleep(RECONNECT_BACKOFF.bound(attempts)).await;
    }
}

/// Connects to the first server that accepts us. The error is the last server's.
async fn connect_any(shared: &DeliveryShared, tls: &Arc<ClientConfig>) -> Result<ServerConnection, String> {
    let mut last = "no server is configured".to_owned();
    for server in shared.servers() {
        let connected = timeout(CONNECT_TIMEOUT, handshake::connect(&shared.options, tls, &server)).await;
        match connected.unwrap_or_else(|_| Err("no answer in time".to_owned())) {
            Ok(connection) => return Ok(connection),
            Err(why) => last = why,
        }
    }
    Err(last)
}

/// Reads and writes until the connection is lost; returns why.
async fn run(shared: &DeliveryShared, connection: ServerConnection) -> String {
    let ServerConnection { stream, mut buffer, .. } = connection;
    let (mut reader, mut writer) = tokio::io::split(stream);
    let mut ticks = interval(PING_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut unanswered_pings = 0;
    loop {
        if let Err(why) = shared.on_input(&mut buffer, &mut unanswered_pings) {
            return why;
        }
        let output = std::mem::take(&mut shared.lock().output);
        if !output.is_empty() {
            let written = async {
                writer.write_all(&output).await?;
                writer.flush().await
            };
            match timeout(WRITE_TIMEOUT, written).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return error.to_string(),
                Err(_) => return "the server accepts no more data".to_owned(),
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
            () = shared.output_ready.notified() => {}
            _ = ticks.tick() => {
                if unanswered_pings >= MAX_PINGS {
                    return "the server doesn't answer pings".to_owned();
                }
                unanswered_pings += 1;
                shared.write("PING\r\n");
            }
        }
    }
}
