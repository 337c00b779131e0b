//! A TCP proxy before a server that cuts connections when it is told to, and counts the round trips to PostgreSQL.

use std::sync::{
    Arc,
    atomic::{AtomicU16, AtomicU64, Ordering},
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
};

/// What happens to the first request that has a pattern in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The server never sees it.
    Request,
    /// The server has carried it out, and its client never hears of that.
    Answer,
}

/// A proxy on a port of its own, in the runtime that it was made in. Dropped, it takes no more connections.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    state: Arc<State>,
    acceptor: tokio::task::JoinHandle<()>,
}

#[derive(Debug)]
struct State {
    /// The port that it was made for.
    first: u16,
    server: AtomicU16,
    /// Grows with every cut of everything; a connection lives while it stays the same.
    cuts: watch::Sender<u64>,
    refusing: watch::Sender<bool>,
    rule: Mutex<Option<(Vec<u8>, Cut)>>,
    rules_used: AtomicU64,
    round_trips: AtomicU64,
}

impl Proxy {
    /// A proxy before the server on that port of this machine.
    ///
    /// # Panics
    ///
    /// When there is no port for it.
    pub async fn before(server: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let state = Arc::new(State {
            first: server,
            server: AtomicU16::new(server),
            cuts: watch::Sender::new(0),
            refusing: watch::Sender::new(false),
            rule: Mutex::default(),
            rules_used: AtomicU64::new(0),
            round_trips: AtomicU64::new(0),
        });
        let accepted = state.clone();
        let acceptor = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(connection(accepted.clone(), client));
            }
        });
        Self { port, state, acceptor }
    }

    /// Its port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// A URL of the server, through the proxy instead.
    #[must_use]
    pub fn url(&self, url: &str) -> String {
        url.replace(&format!(":{}/", self.state.first), &format!(":{}/", self.port))
    }

    /// Cuts every connection, and every new one until [`heal`](Self::heal).
    pub fn cut(&self) {
        self.state.refusing.send_replace(true);
        self.state.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Lets connections through again.
    pub fn heal(&self) {
        self.state.refusing.send_replace(false);
    }

    /// New connections lead to another server on this machine.
    pub fn lead_to(&self, server: u16) {
        self.state.server.store(server, Ordering::SeqCst);
    }

    /// Cuts the connection of the next request that has `pattern` in it.
    pub fn cut_once(&self, pattern: &str, cut: Cut) {
        *self.state.rule.lock() = Some((pattern.as_bytes().to_vec(), cut));
    }

    /// How many connections were cut for a pattern.
    #[must_use]
    pub fn cuts(&self) -> u64 {
        self.state.rules_used.load(Ordering::SeqCst)
    }

    /// How often a PostgreSQL server has said that it is ready for the next request.
    #[must_use]
    pub fn round_trips(&self) -> u64 {
        self.state.round_trips.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.acceptor.abort();
    }
}

/// What becomes of a connection after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Lives,
    /// Cut when the server has answered.
    EndsWithAnswer,
    Over,
}

async fn connection(state: Arc<State>, client: TcpStream) {
    let mut cuts = state.cuts.subscribe();
    if *state.refusing.borrow() {
        return;
    }
    let Ok(server) = TcpStream::connect(("127.0.0.1", state.server.load(Ordering::SeqCst))).await else {
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (client_read, client_write) = client.into_split();
    let (server_read, server_write) = server.into_split();
    let fate = watch::Sender::new(Fate::Lives);
    let over = {
        let mut fate = fate.subscribe();
        async move {
            let _ = fate.wait_for(|fate| *fate == Fate::Over).await;
        }
    };
    tokio::select! {
        () = requests(&state, client_read, server_write, &fate) => {}
        () = answers(&state, server_read, client_write, &fate) => {}
        () = over => {}
        _ = cuts.changed() => {}
    }
}

async fn requests(state: &State, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, fate: &watch::Sender<Fate>) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let request = &buffer[..read];
        match state.cut(request) {
            Some(Cut::Request) => return,
            Some(Cut::Answer) => {
                fate.send_replace(Fate::EndsWithAnswer);
            }
            None => {}
        }
        if to.write_all(request).await.is_err() {
            return;
        }
    }
}

impl State {
    /// What is to happen to a request. A rule is used once.
    fn cut(&self, request: &[u8]) -> Option<Cut> {
        let mut rule = self.rule.lock();
        let (pattern, cut) = rule.as_ref()?;
        if !request.windows(pattern.len()).any(|window| window == pattern) {
            return None;
        }
        let cut = *cut;
        *rule = None;
        self.rules_used.fetch_add(1, Ordering::SeqCst);
        Some(cut)
    }
}

async fn answers(state: &State, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, fate: &watch::Sender<Fate>) {
    let mut buffer = vec![0; 64 * 1024];
    let mut messages = Messages::default();
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let ready = messages.count(&buffer[..read], b'Z');
        state.round_trips.fetch_add(ready, Ordering::SeqCst);
        if *fate.borrow() == Fate::EndsWithAnswer {
            if ready > 0 {
                fate.send_replace(Fate::Over);
                return;
            }
            continue;
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

/// Finds the messages in the server's bytes: a tag, four bytes of length that count themselves, the rest.
#[derive(Debug, Default)]
struct Messages {
    header: Vec<u8>,
    rest: usize,
}

impl Messages {
    /// How many messages with that tag begin in the next bytes.
    fn count(&mut self, mut bytes: &[u8], tag: u8) -> u64 {
        let mut found = 0;
        while !bytes.is_empty() {
            if self.rest > 0 {
                let skipped = self.rest.min(bytes.len());
                self.rest -= skipped;
                bytes = &bytes[skipped..];
                continue;
            }
            self.header.push(bytes[0]);
            bytes = &bytes[1..];
            if let [first, a, b, c, d] = self.header[..] {
                found += u64::from(first == tag);
                self.rest = (u32::from_be_bytes([a, b, c, d]) as usize).saturating_sub(4);
                self.header.clear();
            }
        }
        found
    }
}
