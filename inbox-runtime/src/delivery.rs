//! What a broker hands over and takes: deliveries, messages to publish, and their headers.

use std::time::SystemTime;

use bytes::Bytes;

/// The headers of a message, in the order in which the broker has them.
///
/// A name may occur more than once and a value may be null (Kafka allows both). Names are compared without regard to
/// ASCII case, on every broker.
///
/// ```
/// use inbox_runtime::Headers;
///
/// let mut headers = Headers::new();
/// headers.append("Nats-Msg-Id", "42");
/// assert_eq!(headers.get("nats-msg-id"), Some(&b"42"[..]));
/// assert_eq!(headers.get("Orig-Nats-Msg-Id"), None);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Headers(Vec<(String, Option<Bytes>)>);

impl Headers {
    /// No headers.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a header after the others, even if there is one of that name already.
    pub fn append(&mut self, name: impl Into<String>, value: impl Into<Bytes>) {
        self.0.push((name.into(), Some(value.into())));
    }

    /// Adds a header without a value, as Kafka has them.
    pub fn append_null(&mut self, name: impl Into<String>) {
        self.0.push((name.into(), None));
    }

    /// The first value of that name that is not null.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.iter()
            .filter(|(key, _)| key.eq_ignore_ascii_case(name))
            .find_map(|(_, value)| value)
    }

    /// Every value of that name that is not null, in order.
    pub fn get_all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.0
            .iter()
            .filter(move |(key, _)| key.eq_ignore_ascii_case(name))
            .filter_map(|(_, value)| value.as_deref())
    }

    /// Every header with its value, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Option<&[u8]>)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_deref()))
    }

    /// How many headers there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no header.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A message to publish.
///
/// ```
/// use inbox_runtime::Message;
///
/// let message = Message::new("order.created", r#"{"order_id":"o1"}"#).id("evt-1").header("source", "shop");
/// assert_eq!(message.headers.get("message_id"), Some(&b"evt-1"[..]));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Message {
    /// Where it goes: a subject without wildcards.
    pub subject: String,
    /// Its headers.
    pub headers: Headers,
    /// What it is about, where the broker has that: messages of one key stay in order. Kafka chooses the partition by it.
    pub key: Option<Bytes>,
    /// Its body; `None` is a null payload, which is something else than an empty one.
    pub payload: Option<Bytes>,
    /// The type of the body, if it is known: the outbox adds it to the headers.
    pub(crate) content_type: Option<&'static str>,
}

impl Message {
    /// A message with a body.
    #[must_use]
    pub fn new(subject: impl Into<String>, payload: impl Into<Bytes>) -> Self {
        Self {
            subject: subject.into(),
            headers: Headers::new(),
            key: None,
            payload: Some(payload.into()),
            content_type: None,
        }
    }

    /// A message with a null payload, which on a compacted Kafka topic deletes the key.
    #[must_use]
    pub fn tombstone(subject: impl Into<String>) -> Self {
        Self {
            subject: subject.into(),
            headers: Headers::new(),
            key: None,
            payload: None,
            content_type: None,
        }
    }

    /// A message whose body is `value` as JSON.
    ///
    /// # Errors
    ///
    /// When `value` can't be written as JSON (a map with keys that are no strings, for one).
    pub fn json(subject: impl Into<String>, value: &impl serde::Serialize) -> Result<Self, serde_json::Error> {
        Ok(Self {
            content_type: Some("application/json"),
            ..Self::new(subject, serde_json::to_vec(value)?)
        })
    }

    /// Sets the header `message_id`, by which the inbox deduplicates the message.
    #[must_use]
    pub fn id(self, id: impl Into<Bytes>) -> Self {
        self.header("message_id", id)
    }

    /// Sets the key; a broker without keys ignores it.
    #[must_use]
    pub fn key(mut self, key: impl Into<Bytes>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Bytes>) -> Self {
        self.headers.append(name, value);
        self
    }
}

/// One delivery of a message, as a broker hands it over.
///
/// Written by brokers, read by extractors (through [`DeliveryContext`](crate::DeliveryContext)).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Delivery {
    /// The subject that it was published to.
    pub subject: String,
    /// Its headers.
    pub headers: Headers,
    /// Its key, where the broker has keys.
    pub key: Option<Bytes>,
    /// Its body; `None` is a null payload.
    pub payload: Option<Bytes>,
    /// Where the broker keeps the message: the same at each redelivery of the same stored message, another for every
    /// other message that the broker has had or will have.
    pub position: String,
    /// How often it was delivered to this group, this time included; `None` where the broker doesn't count.
    pub delivery_count: Option<u64>,
    /// Whether an earlier delivery of this message may have begun to be handled.
    pub redelivered: bool,
    /// When it was published, by the broker's clock.
    pub published_at: Option<SystemTime>,
}

impl Delivery {
    /// A first delivery without headers, payload and times.
    #[must_use]
    pub fn new(subject: impl Into<String>, position: impl Into<String>) -> Self {
        Self {
            subject: subject.into(),
            headers: Headers::new(),
            key: None,
            payload: None,
            position: position.into(),
            delivery_count: None,
            redelivered: false,
            published_at: None,
        }
    }
}
