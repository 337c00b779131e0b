//! NATS JetStream: durable pull consumers on a server.
//!
//! ```text
//!  publish ─▶ stream ─▶ durable ─ pull ─▶ pending ─ ack ─▶ gone
//!                                          │  ▲
//!                               nak, lease │  │ pull
//!                                 runs out ▼  │
//!                                          due
//! ```
//!
//! `link` has two connections: `control` (the client library's), over which is asked, acknowledged and published, and `intake`
//! (`dial`, `wire`), on which deliveries come and which we read ourselves: the library gives up at a header that it can't read,
//! and so one message would keep all others from coming. `login` and `tls` say who we are. `stream`, `durable` and `settings` are
//! what must be there on the server, and `observe` looks whether it still is; `source` pulls, with `open` to have something to
//! pull from and `arrive` for what comes; `ack` settles; `publish` sends.

use std::sync::Arc;

use self::{config::Settings, link::Link};
use crate::{
    broker::{Broker, BrokerError, Published, Subscription},
    delivery::Message,
    names,
};

mod ack;
mod acks;
mod arrive;
mod config;
mod control;
mod dial;
mod durable;
mod epochs;
mod headers;
mod intake;
mod left_behind;
mod link;
mod login;
mod observe;
mod open;
mod publish;
mod reply;
mod settings;
mod source;
mod stream;
mod tls;
mod wire;

pub use self::{ack::NatsLease, source::NatsSource};

/// NATS JetStream, version 2.10 or later.
///
/// Each (group, subject) is a durable pull consumer with explicit acknowledgement on the stream that holds the subject,
/// named `billing@order,created` (`.` becomes `,`, `*` becomes `+`, `>` becomes `#`). It is made when it is missing; what
/// differs from what it must be is applied, or is a start error that says what was wanted and what there is. It is never
/// deleted: delete the durables of groups that you give up (those of a group's former subjects are reported at the start).
///
/// Streams are yours: they are made only when asked for, by [`create_stream`](Self::create_stream) or in the URL. A server
/// that can't be reached and a stream that isn't there yet are waited for; until then the inbox is not ready and says why.
/// A durable or a stream that is deleted is noticed within seconds and found or made anew: a durable begins
/// after the last message up to which all were settled, as of a few seconds ago; what comes again is recognised.
///
/// Making one does nothing yet: its two connections are made when they are first used, and again whenever they are lost. Clones
/// share them.
///
/// # URL
///
/// `nats://` or `tls://`, then servers separated by commas, each with a port (4222 if it has none). Before the first one:
/// `user:password@` or `token@`. Behind `?`, separated by `&`, with the usual percent-encoding:
///
/// | parameter | meaning |
/// |---|---|
/// | `credentials=FILE` | a credentials file with a JWT and its seed |
/// | `nkey=FILE` | a file with the seed of an nkey |
/// | `ca=FILE` | certificates to trust besides the system's, in PEM |
/// | `cert=FILE`, `key=FILE` | the client's own certificate and its key, in PEM |
/// | `tls_first=true` | TLS begins before the server says anything |
/// | `create_stream=NAME:SUBJECTS` | makes that stream if it is missing; subjects are separated by commas |
/// | `domain=NAME` | JetStream's domain, as [`domain`](Self::domain) |
/// | `api_prefix=PREFIX` | what stands before questions to JetStream, as [`api_prefix`](Self::api_prefix) |
/// | `inbox_prefix=PREFIX` | what stands before the subjects of answers, as [`inbox_prefix`](Self::inbox_prefix) |
///
/// Files are read again at each connect, so that credentials and certificates can be replaced on the disk.
///
/// ```
/// use inbox_runtime::Nats;
///
/// # fn main() -> Result<(), inbox_runtime::BrokerError> {
/// let broker = Nats::new("nats://shop:secret@a.example:4222,b.example:4222?create_stream=ORDERS:order.*")?;
/// assert!(!format!("{broker:?}").contains("secret"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Nats {
    link: Arc<Link>,
}

impl Nats {
    /// The servers of a URL.
    ///
    /// # Errors
    ///
    /// [`BrokerError::Invalid`] when it can't be read, with what to write instead and without any password.
    pub fn new(url: &str) -> Result<Self, BrokerError> {
        let settings = Settings::parse(url).map_err(BrokerError::Invalid)?;
        Ok(Self::of(settings))
    }

    fn of(settings: Settings) -> Self {
        Self {
            link: Arc::new(Link::new(settings)),
        }
    }

    /// Makes a stream with these subjects if it is missing when it is needed: on the disk, with every limit as the server
    /// has it by default. One that is there stays as it is.
    ///
    /// ```
    /// # fn main() -> Result<(), inbox_runtime::BrokerError> {
    /// let broker = inbox_runtime::Nats::new("nats://127.0.0.1:4222")?.create_stream("ORDERS", ["order.*"]);
    /// # let _ = broker;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn create_stream<S: Into<String>>(
        self,
        name: impl Into<String>,
        subjects: impl IntoIterator<Item = S>,
    ) -> Self {
        self.with(|settings| {
            settings.new_streams.push(config::NewStream {
                name: name.into(),
                subjects: subjects.into_iter().map(Into::into).collect(),
            });
        })
    }

    /// Asks JetStream in that domain, as that of a hub is asked from a leaf node; the same as the prefix `$JS.<domain>.API`.
    ///
    /// # Errors
    ///
    /// [`BrokerError::Invalid`] when it is empty or has a dot, a wildcard or a space.
    ///
    /// ```
    /// # fn main() -> Result<(), inbox_runtime::BrokerError> {
    /// let broker = inbox_runtime::Nats::new("nats://127.0.0.1:4222")?.domain("hub")?;
    /// # let _ = broker;
    /// # Ok(())
    /// # }
    /// ```
    pub fn domain(self, domain: &str) -> Result<Self, BrokerError> {
        self.try_with(|settings| settings.set_domain(domain))
    }

    /// Puts that before every question to JetStream, `$JS.API` by default: what an account calls the interface that it has
    /// imported from another one.
    ///
    /// # Errors
    ///
    /// [`BrokerError::Invalid`] when it is no subject without wildcards.
    ///
    /// ```
    /// # fn main() -> Result<(), inbox_runtime::BrokerError> {
    /// let broker = inbox_runtime::Nats::new("nats://127.0.0.1:4222")?.api_prefix("JS.shop.API")?;
    /// # let _ = broker;
    /// # Ok(())
    /// # }
    /// ```
    pub fn api_prefix(self, prefix: &str) -> Result<Self, BrokerError> {
        self.try_with(|settings| settings.set_api_prefix(prefix))
    }

    /// Puts that before the subjects of answers and deliveries, `_INBOX` by default, so that a program may be given the right to
    /// its own ones only.
    ///
    /// # Errors
    ///
    /// [`BrokerError::Invalid`] when it is no subject without wildcards.
    ///
    /// ```
    /// # fn main() -> Result<(), inbox_runtime::BrokerError> {
    /// let broker = inbox_runtime::Nats::new("nats://127.0.0.1:4222")?.inbox_prefix("_INBOX_billing")?;
    /// # let _ = broker;
    /// # Ok(())
    /// # }
    /// ```
    pub fn inbox_prefix(self, prefix: &str) -> Result<Self, BrokerError> {
        self.try_with(|settings| settings.set_inbox_prefix(prefix))
    }

    /// The same servers with other settings, and connections of its own.
    fn with(self, change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = self.link.settings.clone();
        change(&mut settings);
        Self::of(settings)
    }

    fn try_with(self, change: impl FnOnce(&mut Settings) -> Result<(), String>) -> Result<Self, BrokerError> {
        let mut changed = Ok(());
        let broker = self.with(|settings| changed = change(settings));
        changed.map(|()| broker).map_err(BrokerError::Invalid)
    }

    /// Publishes a message; returns when a stream has stored it. The message's id goes along as `Nats-Msg-Id`, by which
    /// the server recognises a copy that comes within the stream's duplicate window (two minutes by default).
    ///
    /// # Errors
    ///
    /// [`BrokerError::Refused`] when this message is never taken: the subject is none to publish to, the right to publish to it
    /// is missing, it is larger than the server or the stream takes, a condition in its headers isn't met, or NATS can't carry it
    /// (a header that is null, not UTF-8 or has a line break; a null payload). [`BrokerError::NotNow`] when no stream holds the
    /// subject or its leader is being elected, or the stream is full and discards nothing. [`BrokerError::Unavailable`] when no
    /// server can be reached, or none confirmed the message: it may be stored or not.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the message is either published or not.
    pub async fn publish(&self, message: Message) -> Result<Published, BrokerError> {
        publish::publish(&self.link, message).await
    }
}

impl Broker for Nats {
    type Source = NatsSource;

    async fn describe(&self) -> Result<String, BrokerError> {
        let servers = self.link.settings.shown();
        match self.link.control.connected().await {
            Ok(client) => {
                let info = client.server_info();
                Ok(format!("NATS {} (JetStream, {servers})", info.version))
            }
            Err(error @ BrokerError::Invalid(_)) => Err(error),
            Err(_) => Ok(format!("NATS (not reached yet, {servers})")),
        }
    }

    async fn subscribe(&self, subscriptions: Vec<Subscription>) -> Result<Vec<Self::Source>, BrokerError> {
        let mut sources = Vec::with_capacity(subscriptions.len());
        for wish in &subscriptions {
            names::check_group(&wish.group).map_err(BrokerError::Invalid)?;
            names::check_subject(&wish.subject).map_err(BrokerError::Invalid)?;
            durable::check_ack_wait(wish.ack_wait)?;
            let name = durable::name(&wish.group, &wish.subject)?;
            let mut source = NatsSource::new(self.link.clone(), wish.clone(), name);
            source.open_at_start().await?;
            sources.push(source);
        }
        let used: Vec<_> = sources.iter().filter_map(NatsSource::used).collect();
        let mut streams: Vec<_> = used.iter().map(|used| used.stream.clone()).collect();
        streams.sort_unstable();
        streams.dedup();
        left_behind::warn_of_unused(&self.link, &streams, &subscriptions).await;
        tokio::spawn(left_behind::warn_of_left_behind(self.link.clone(), used));
        Ok(sources)
    }

    async fn publish(&self, message: Message) -> Result<Published, BrokerError> {
        Self::publish(self, message).await
    }
}
