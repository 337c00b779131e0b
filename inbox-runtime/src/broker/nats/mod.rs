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
//! `link` is the connection; `stream`, `durable` and `settings` are what must be there on the server; `source` pulls, with
//! `open` to have something to pull from and `arrive` for what comes; `ack` settles; `rescue` is the way around messages that
//! the client library can't read.

use std::sync::Arc;

use serde::Deserialize;

use self::{
    config::Settings,
    link::{Link, read_answer},
    stream::StreamInfo,
};
use crate::{
    broker::{Broker, BrokerError, Published, Subscription},
    delivery::Message,
    names,
};

mod ack;
mod acks;
mod arrive;
mod config;
mod durable;
mod headers;
mod link;
mod open;
mod reply;
mod rescue;
mod settings;
mod source;
mod stream;
mod tls;

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
/// A durable or a stream that is deleted is noticed within about three seconds and found or made anew: a durable begins
/// after the last message up to which all were settled, as of a few seconds ago; what comes again is recognised.
///
/// Making one does nothing yet: the connection is made when it is first used, and again whenever it is lost. Clones
/// share it.
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
        let mut settings = self.link.settings.clone();
        settings.new_streams.push(config::NewStream {
            name: name.into(),
            subjects: subjects.into_iter().map(Into::into).collect(),
        });
        Self::of(settings)
    }

    /// Publishes a message; returns when a stream has stored it. The message's id goes along as `Nats-Msg-Id`, by which
    /// the server recognises a copy that comes within the stream's duplicate window (two minutes by default).
    ///
    /// # Errors
    ///
    /// [`BrokerError::Invalid`] when the subject is none to publish to, no stream holds it, or NATS can't carry the message
    /// (a header that is null, not UTF-8 or has a line break; a null payload); [`BrokerError::Unavailable`] when the server
    /// did not confirm it: it may be stored or not.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the message is either published or not.
    pub async fn publish(&self, message: Message) -> Result<Published, BrokerError> {
        names::check_publish_subject(&message.subject).map_err(BrokerError::Invalid)?;
        let Some(payload) = message.payload else {
            return Err(BrokerError::Invalid(
                "NATS has no null payload; send an empty one".to_owned(),
            ));
        };
        let mut headers = headers::to_map(&message.headers)?;
        if message.headers.get(MSG_ID).is_none()
            && let Some(id) = message
                .headers
                .get("message_id")
                .and_then(|id| std::str::from_utf8(id).ok())
            && !id.trim().is_empty()
        {
            headers.insert(MSG_ID, id);
        }
        let client = self.link.connected().await?;
        for attempt in 0.. {
            let request = async_nats::Request::new()
                .headers(headers.clone())
                .payload(payload.clone());
            match client.send_request(message.subject.clone(), request).await {
                Ok(answer) => return self.published(&answer.payload).await,
                Err(error) if error.kind() == async_nats::client::RequestErrorKind::NoResponders => {
                    if attempt > 0 || !self.make_stream_for(&message.subject).await? {
                        return Err(BrokerError::Invalid(format!(
                            "no stream holds the subject {}",
                            message.subject
                        )));
                    }
                }
                Err(error) => return Err(BrokerError::unavailable("the server did not confirm a message", error)),
            }
        }
        unreachable!("the second attempt ends it")
    }

    async fn published(&self, answer: &[u8]) -> Result<Published, BrokerError> {
        #[derive(Deserialize)]
        struct Stored {
            stream: String,
            seq: u64,
            #[serde(default)]
            duplicate: bool,
        }
        let stored: Stored = read_answer(answer)?;
        let info = StreamInfo::of(&self.link, &stored.stream).await?;
        let mut published = Published::new(durable::position(&stored.stream, info.created(), stored.seq));
        published.duplicate = stored.duplicate;
        Ok(published)
    }

    /// Makes the stream that was asked for with that subject. Returns whether there is one.
    async fn make_stream_for(&self, subject: &str) -> Result<bool, BrokerError> {
        let streams = &self.link.settings.new_streams;
        let fits = |stream: &&config::NewStream| {
            stream
                .subjects
                .iter()
                .any(|one| crate::broker::subject::overlap(one, subject))
        };
        match streams.iter().find(fits) {
            Some(stream) => Ok(stream::make_stream(&self.link, stream).await.map(|_| true)?),
            None => Ok(false),
        }
    }
}

const MSG_ID: &str = "Nats-Msg-Id";

impl Broker for Nats {
    type Source = NatsSource;

    async fn describe(&self) -> Result<String, BrokerError> {
        let servers = self.link.settings.shown();
        match self.link.connected().await {
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
        let mut streams: Vec<_> = sources
            .iter()
            .filter_map(NatsSource::stream)
            .map(str::to_owned)
            .collect();
        streams.sort_unstable();
        streams.dedup();
        durable::warn_of_unused(&self.link, &streams, &subscriptions).await;
        Ok(sources)
    }

    async fn publish(&self, message: Message) -> Result<Published, BrokerError> {
        Self::publish(self, message).await
    }
}
