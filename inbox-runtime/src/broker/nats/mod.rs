//! NATS JetStream: durable pull consumers on a server.
//!
//! ```text
//!  publish ─▶ stream ─▶ consumer ─ pull ─▶ pending ─ ack ─▶ done
//!                                          │    ▲
//!                         nak or ack_wait  ▼    │  pull
//!                                      redelivery due
//!
//!  floors; a line uses only itself and what is below it
//!    mod                                             Nats, the public type
//!    publish · orphans · pull                        what the runtime calls
//!    receive                                         deliveries, delete markers, statuses of pull requests
//!    lifecycle                                       binds a source to its consumer, notices when that is lost
//!    source · binding · lease                        state of a source, of its binding, of a delivery
//!    provision · monitor                             creates and updates a consumer, observes it
//!    consumer_config · stream · durable · ack_batch  JetStream's objects
//!    jetstream                                       both connections, API requests
//!    client_connection · delivery_connection         the client library's connection, our own
//!    handshake · given_options
//!    connect_options
//!    protocol · login · tls · permissions · epochs · headers · ack_subject · error · limits
//! ```
//!
//! Why `$JS.API` and an own connection for deliveries instead of `async_nats::jetstream`:
//!
//! * F56, G27, G28: the library's reader fails or panics at a malformed header, at each redelivery: one message would block all
//!   others. The own connection doesn't interpret header blocks (`protocol`); `client_connection` replaces a client that died.
//! * F44: the server accepts an ack or nak from an earlier consumer of a message. The library's messages know neither their age
//!   nor whether the consumer was recreated; a [`NatsLease`] does, and sends nothing but acks when it may be lost.
//! * F49: a consumer or stream can vanish without a status, or be recreated under the same name. The library notices a
//!   missing heartbeat, not that. `monitor` compares creation times every few seconds, the advisory of a deleted stream is
//!   subscribed to, and consumer sequences that start again are noticed (`receive`).
//! * F50: a reconnect loses the pull request in flight. `binding` tracks it, so that it is sent again at once, and so that
//!   `close` can nak what it still delivers; the library's stream drops what it has prefetched.
//!
//! Besides, `get_or_create_consumer` compares no configurations (`consumer_config` does), and the library has no
//! batched acks.

use std::sync::Arc;

use inbox_rules::subject_rules;

use self::{
    connect_options::{ConnectOptions, NewStream},
    given_options::GivenOptions,
    jetstream::JetStream,
    orphans::ConsumerInUse,
};
use crate::{
    broker::{Broker, BrokerError, Published, Subscription},
    delivery::Message,
};

mod ack_batch;
mod ack_subject;
mod binding;
mod client_connection;
mod connect_options;
mod consumer_config;
mod delivery_connection;
mod durable;
mod epochs;
mod error;
mod given_options;
mod handshake;
mod headers;
mod jetstream;
mod lease;
mod lifecycle;
mod limits;
mod login;
mod monitor;
mod orphans;
mod permissions;
mod protocol;
mod provision;
mod publish;
mod pull;
mod receive;
mod source;
mod stream;
mod tls;

pub use self::{lease::NatsLease, source::NatsSource};

/// NATS JetStream, version 2.10 or later.
///
/// Each (group, subject) is a durable pull consumer with explicit acks on the stream that holds the subject, named
/// `billing@order,created` (`.` becomes `,`, `*` becomes `+`, `>` becomes `#`). It is created if it is missing; a
/// configuration that differs is updated, or is a start error with the wanted and the actual value. It is never
/// deleted: delete the durables of groups that you give up (those of a group's former subjects are reported at the
/// start).
///
/// Streams are yours: they are created only on request, by [`create_stream`](Self::create_stream) or in the URL. While
/// a server can't be reached or a stream is missing, the inbox retries, is not ready and reports why. A durable or a
/// stream that is deleted is noticed within seconds, and a durable is recreated: it starts after the ack floor of a few
/// seconds ago, and what is redelivered is deduplicated.
///
/// A new value does nothing yet: its two connections are opened at first use, and reopened whenever they are lost.
/// Clones share them.
///
/// # URL
///
/// `nats://` or `tls://`, then servers separated by commas, each with a port (4222 if it has none). Before the first one:
/// `user:password@` or `token@`. After `?`, separated by `&`, with the usual percent-encoding:
///
/// | parameter | meaning |
/// |---|---|
/// | `credentials=FILE` | a credentials file with a JWT and its seed |
/// | `nkey=FILE` | a file with the seed of an nkey |
/// | `ca=FILE` | CA certificates to trust in addition to the system's, in PEM |
/// | `cert=FILE`, `key=FILE` | the client's certificate and key, in PEM |
/// | `tls_first=true` | TLS handshake before the server's `INFO` |
/// | `create_stream=NAME:SUBJECTS` | creates that stream if it is missing; subjects are separated by commas |
/// | `domain=NAME` | the JetStream domain, as [`domain`](Self::domain) |
/// | `api_prefix=PREFIX` | the prefix of JetStream API subjects, as [`api_prefix`](Self::api_prefix) |
/// | `inbox_prefix=PREFIX` | the prefix of inbox subjects, as [`inbox_prefix`](Self::inbox_prefix) |
///
/// A program's settings have the same, and they win: `[nats]` in `inbox.toml`, or `INBOX_NATS_CREDENTIALS` and so on in
/// the environment, with `user`, `password` and `token` besides.
///
/// Files are read at each connect, so that credentials and certificates can be rotated.
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
    jetstream: Arc<JetStream>,
}

impl Nats {
    /// A broker on the servers of a URL.
    ///
    /// # Errors
    ///
    /// [`BrokerError::Invalid`] when it can't be parsed, with what to write instead and without any password.
    pub fn new(url: &str) -> Result<Self, BrokerError> {
        let options = ConnectOptions::parse(url).map_err(BrokerError::Invalid)?;
        Ok(Self::with_options(options))
    }

    /// The broker of a URL, set at `place`, with the options of the settings, which win over the URL's. The errors say what
    /// to write instead, and where.
    pub(crate) fn from_url(url: &str, place: &str, given: &GivenOptions) -> Result<Self, Vec<String>> {
        let mut problems = Vec::new();
        let mut options = ConnectOptions::parse(url).unwrap_or_else(|problem| {
            problems.push(format!("{place}: {problem}"));
            ConnectOptions::default()
        });
        options.set_given(given, &mut problems);
        if problems.is_empty() {
            Ok(Self::with_options(options))
        } else {
            Err(problems)
        }
    }

    fn with_options(options: ConnectOptions) -> Self {
        Self {
            jetstream: Arc::new(JetStream::new(options)),
        }
    }

    /// Creates a stream with these subjects if it is missing when it is needed, with file storage and the server's
    /// default limits. An existing one is left as it is.
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
        self.change(|options| {
            options.new_streams.push(NewStream {
                name: name.into(),
                subjects: subjects.into_iter().map(Into::into).collect(),
            });
        })
    }

    /// Uses JetStream in that domain, as that of a hub from a leaf node; the same as the prefix `$JS.<domain>.API`.
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
        self.try_change(|options| options.set_domain(domain))
    }

    /// Sets the prefix of JetStream API subjects, `$JS.API` by default: the name under which an account has imported
    /// the API of another one.
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
        self.try_change(|options| options.set_api_prefix(prefix))
    }

    /// Sets the prefix of inbox subjects, on which answers and deliveries are received, `_INBOX` by default, so that a
    /// program can be granted the permission for its own ones only.
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
        self.try_change(|options| options.set_inbox_prefix(prefix))
    }

    /// A broker with changed options and new connections.
    fn change(self, change: impl FnOnce(&mut ConnectOptions)) -> Self {
        let mut options = self.jetstream.options.clone();
        change(&mut options);
        Self::with_options(options)
    }

    fn try_change(self, change: impl FnOnce(&mut ConnectOptions) -> Result<(), String>) -> Result<Self, BrokerError> {
        let mut changed = Ok(());
        let broker = self.change(|options| changed = change(options));
        changed.map(|()| broker).map_err(BrokerError::Invalid)
    }

    /// Publishes a message; returns when a stream has stored it. The message's id is sent as `Nats-Msg-Id`, by which
    /// the server deduplicates within the stream's duplicate window (two minutes by default).
    ///
    /// # Errors
    ///
    /// [`BrokerError::Refused`] when this message is never accepted: the subject is invalid for a publish, the
    /// permission to publish to it is missing, it is larger than the server or the stream allows, a condition in its
    /// headers isn't met, or NATS can't carry it (a header that is null, not UTF-8 or has a line break; a null
    /// payload). [`BrokerError::NotNow`] when no stream holds the subject or its leader is being elected, or the stream
    /// is full and discards nothing. [`BrokerError::Unavailable`] when no server can be reached, or none confirmed the
    /// message: it may be stored or not.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the message is either published or not.
    pub async fn publish(&self, message: Message) -> Result<Published, BrokerError> {
        publish::publish(&self.jetstream, &message).await
    }
}

impl Broker for Nats {
    type Source = NatsSource;

    async fn describe(&self) -> Result<String, BrokerError> {
        let servers = self.jetstream.options.shown();
        match self.jetstream.client.connected().await {
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
        for subscription in &subscriptions {
            subject_rules::check_group(&subscription.group).map_err(BrokerError::Invalid)?;
            subject_rules::check_subject(&subscription.subject).map_err(BrokerError::Invalid)?;
            durable::check_ack_wait(subscription.ack_wait)?;
            let name = durable::name(&subscription.group, &subscription.subject)?;
            let mut source = NatsSource::new(self.jetstream.clone(), subscription.clone(), name);
            source.bind_at_start().await?;
            sources.push(source);
        }
        let durables = sources.iter().filter_map(NatsSource::durable);
        let used: Vec<_> = durables.map(ConsumerInUse::from).collect();
        let mut streams: Vec<_> = used.iter().map(|used| used.stream.clone()).collect();
        streams.sort_unstable();
        streams.dedup();
        orphans::warn_of_unused(&self.jetstream, &streams, &subscriptions).await;
        tokio::spawn(orphans::warn_of_old_streams(self.jetstream.clone(), used));
        Ok(sources)
    }

    async fn publish(&self, message: Message) -> Result<Published, BrokerError> {
        Self::publish(self, message).await
    }

    /// At most 512 messages, or about 8 MiB, are on their way to the server at a time.
    async fn publish_all(&self, messages: Vec<Message>) -> Vec<Result<Published, BrokerError>> {
        publish::publish_all(&self.jetstream, &messages).await
    }

    /// The `max_payload` of the server, once connected. Headers count there, too.
    fn max_payload(&self) -> Option<usize> {
        self.jetstream.client.max_payload()
    }

    /// Headers count towards the size.
    fn check(&self, message: &Message) -> Result<(), String> {
        publish::check(message, Broker::max_payload(self))
    }
}
