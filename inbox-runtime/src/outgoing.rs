//! A message on its way into the outbox: its delay, its id, the headers that are added, and what is refused.

use std::{collections::HashMap, time::Duration};

use bytes::Bytes;
use inbox_rules::subject_rules;
use uuid::Uuid;

use crate::{
    delivery::{Headers, Message},
    message_id as ids,
};

/// The header by which an inbox deduplicates a message.
pub(crate) const MESSAGE_ID: &str = "message_id";
/// The id of the message by whose handling this one was published.
const CAUSATION_ID: &str = "causation_id";
/// The id of the message that everything began with.
const CORRELATION_ID: &str = "correlation_id";
const CONTENT_TYPE: &str = "content-type";

/// The namespace of the ids of messages that handlers publish, so that they differ from every other version-5 UUID.
const IDS: Uuid = Uuid::from_u128(0x6b1f_6d0e_2f4b_4f0e_8c3a_9a54_7e90_5d21);

/// The longest delay: a year.
const MAX_DELAY: Duration = Duration::from_secs(366 * 86_400);

/// A message for the outbox: a [`Message`], and how long it is to wait there.
///
/// ```
/// use std::time::Duration;
/// use inbox_runtime::{Message, OutboxMessage};
///
/// let now: OutboxMessage = Message::new("order.created", "{}").into();
/// let later = Message::new("order.reminder", "{}").key("o1").delay(Duration::from_secs(86_400));
/// assert_eq!(later.delay, Some(Duration::from_secs(86_400)));
/// assert_eq!(now.delay, None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutboxMessage {
    /// What is published.
    pub message: Message,
    /// How long after the transaction's statement it is due, at most a year; `None` is at once.
    pub delay: Option<Duration>,
}

impl From<Message> for OutboxMessage {
    fn from(message: Message) -> Self {
        Self { message, delay: None }
    }
}

impl Message {
    /// A message for the outbox that is published not before `delay` has passed, at most a year. It takes its place in the
    /// order of its key when it is due.
    ///
    /// Brokers don't take it: only the outbox waits.
    #[must_use]
    pub fn delay(self, delay: Duration) -> OutboxMessage {
        OutboxMessage {
            message: self,
            delay: Some(delay),
        }
    }
}

/// A message as it is written into the outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NewOutboxMessage {
    /// The id by which the inbox of its consumers deduplicates it, which is among its headers too.
    pub message_id: String,
    /// What is published, with the headers that were added. Messages of one subject and key stay in order.
    pub message: Message,
    /// How long it waits before it takes its place in the order.
    pub delay: Option<Duration>,
}

impl NewOutboxMessage {
    /// The lane that keeps the messages of its subject and key in order, of so many.
    #[must_use]
    pub fn lane(&self, lanes: u16) -> u16 {
        lane(&self.message.subject, self.message.key.as_deref(), lanes)
    }
}

/// The lane of a subject and a key, of so many.
pub(crate) fn lane(subject: &str, key: Option<&[u8]>, lanes: u16) -> u16 {
    let mut hash = crc32fast::Hasher::new();
    hash.update(subject.as_bytes());
    hash.update(&[0]);
    hash.update(key.unwrap_or_default());
    u16::try_from(hash.finalize() % u32::from(lanes.max(1))).unwrap_or_default()
}

/// The message by whose handling others are published.
#[derive(Clone, Debug)]
pub(crate) struct Cause {
    pub(crate) group: String,
    pub(crate) message_id: String,
    pub(crate) correlation_id: Option<Bytes>,
}

impl Cause {
    /// The message of that id and those headers, as a group handles it.
    pub(crate) fn new(group: &str, message_id: &str, headers: &Headers) -> Self {
        Self {
            group: group.to_owned(),
            message_id: message_id.to_owned(),
            correlation_id: headers.get(CORRELATION_ID).map(Bytes::copy_from_slice),
        }
    }
}

/// Counts the messages of one handling, by subject and key, so that each has an id of its own that is the same when the message
/// is handled again.
#[derive(Debug, Default)]
pub(crate) struct Numbering(HashMap<(String, Option<Bytes>), u64>);

impl Numbering {
    /// The number of the next message of that subject and key, from 0.
    fn next(&mut self, message: &Message) -> u64 {
        let number = self
            .0
            .entry((message.subject.clone(), message.key.clone()))
            .or_default();
        *number += 1;
        *number - 1
    }

    /// The id of a message that has none of its own.
    pub(crate) fn id(&mut self, cause: &Cause, message: &Message) -> String {
        let number = self.next(message);
        let key = message.key.as_deref();
        // Each part behind its length, so that no two lists of parts read alike.
        let mut name = Vec::with_capacity(128);
        for part in [
            cause.group.as_bytes(),
            cause.message_id.as_bytes(),
            message.subject.as_bytes(),
            key.unwrap_or_default(),
        ] {
            name.extend_from_slice(&(part.len() as u64).to_be_bytes());
            name.extend_from_slice(part);
        }
        name.push(u8::from(key.is_some()));
        name.extend_from_slice(&number.to_be_bytes());
        Uuid::new_v5(&IDS, &name).to_string()
    }
}

/// The id that a message brings, if it has one.
///
/// # Errors
///
/// What is wrong with it, as a text.
pub(crate) fn own_id(message: &Message) -> Result<Option<String>, String> {
    let Some(id) = message.headers.get(MESSAGE_ID) else {
        return Ok(None);
    };
    let id = std::str::from_utf8(id).map_err(|_| format!("its header `{MESSAGE_ID}` is not UTF-8"))?;
    ids::check(id)?;
    Ok((!id.trim().is_empty()).then(|| id.to_owned()))
}

/// An id that is new, for a message that no handler publishes.
pub(crate) fn new_id() -> String {
    Uuid::now_v7().to_string()
}

/// Adds what a message lacks, and checks it.
///
/// # Errors
///
/// Why no broker would take it, as a text that names its subject.
pub(crate) fn prepare(
    outgoing: OutboxMessage,
    message_id: String,
    cause: Option<&Cause>,
) -> Result<NewOutboxMessage, String> {
    let OutboxMessage { mut message, delay } = outgoing;
    let refused = |what: String| format!("a message for `{}`: {what}", message.subject.escape_debug());
    subject_rules::check_publish_subject(&message.subject).map_err(refused)?;
    check_headers(&message.headers).map_err(refused)?;
    if delay.is_some_and(|delay| delay > MAX_DELAY) {
        return Err(refused(
            "it is delayed for longer than a year; write a shorter delay".to_owned(),
        ));
    }
    let headers = &mut message.headers;
    add(headers, MESSAGE_ID, message_id.clone());
    let began_with = match cause {
        Some(cause) => {
            add(headers, CAUSATION_ID, cause.message_id.clone());
            let own = || cause.message_id.clone().into();
            cause.correlation_id.clone().unwrap_or_else(own)
        }
        None => message_id.clone().into(),
    };
    add(headers, CORRELATION_ID, began_with);
    if let Some(content_type) = message.content_type {
        add(headers, CONTENT_TYPE, content_type);
    }
    Ok(NewOutboxMessage {
        message_id,
        message,
        delay: delay.filter(|delay| !delay.is_zero()),
    })
}

/// Adds a header where there is none of that name with a value.
fn add(headers: &mut Headers, name: &str, value: impl Into<Bytes>) {
    if headers.get(name).is_none() {
        headers.append(name, value);
    }
}

/// Names as every broker has them.
fn check_headers(headers: &Headers) -> Result<(), String> {
    for (name, _) in headers.iter() {
        let is_token = |byte: u8| byte.is_ascii_graphic() && byte != b':';
        if name.is_empty() || !name.bytes().all(is_token) {
            return Err(format!(
                "`{}` is not the name of a header; write printable ASCII without spaces and colons",
                name.escape_debug()
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cause(message_id: &str) -> Cause {
        Cause::new("billing", message_id, &Headers::new())
    }

    #[test]
    fn ids_are_the_same_when_a_message_is_handled_again_and_differ_otherwise() {
        let message = |subject: &str, key: Option<&'static str>| {
            let message = Message::new(subject, "1");
            match key {
                Some(key) => message.key(key),
                None => message,
            }
        };
        let ids = |message_id: &str| {
            let (mut numbering, cause) = (Numbering::default(), cause(message_id));
            let mut id = |subject, key| numbering.id(&cause, &message(subject, key));
            [
                id("invoice", Some("a")),
                id("invoice", Some("a")),
                id("invoice", Some("b")),
                id("invoice", Some("")),
                id("invoice", None),
                id("invoicea", Some("")),
            ]
        };
        assert_eq!(ids("evt-1"), ids("evt-1"));
        let mut all: Vec<_> = ids("evt-1").into_iter().chain(ids("evt-2")).collect();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 12);
    }

    #[test]
    fn the_order_in_which_keys_are_published_does_not_change_ids() {
        let cause = cause("evt-1");
        let ids = |keys: [&'static str; 2]| {
            let mut numbering = Numbering::default();
            let mut ids = keys.map(|key| numbering.id(&cause, &Message::new("invoice", "1").key(key)));
            ids.sort();
            ids
        };
        assert_eq!(ids(["a", "b"]), ids(["b", "a"]));
    }

    #[test]
    fn headers_are_added_where_they_are_absent() {
        let message = Message::json("invoice.created", &1).expect("a message");
        let prepared = prepare(message.clone().into(), "i-1".to_owned(), Some(&cause("evt-1"))).expect("prepared");
        let header = |name: &str| {
            prepared
                .message
                .headers
                .get(name)
                .map(|value| String::from_utf8_lossy(value).into_owned())
        };
        assert_eq!(header("message_id").as_deref(), Some("i-1"));
        assert_eq!(header("causation_id").as_deref(), Some("evt-1"));
        assert_eq!(header("correlation_id").as_deref(), Some("evt-1"));
        assert_eq!(header("content-type").as_deref(), Some("application/json"));

        let mut incoming = Headers::new();
        incoming.append("Correlation_Id", "c-1");
        let cause = Cause::new("billing", "evt-1", &incoming);
        let own = message.header("Content-Type", "application/vnd.shop+json");
        let prepared = prepare(own.into(), "i-1".to_owned(), Some(&cause)).expect("prepared");
        assert_eq!(prepared.message.headers.get("correlation_id"), Some(&b"c-1"[..]));
        assert_eq!(prepared.message.headers.get_all("content-type").count(), 1);
    }

    #[test]
    fn what_no_broker_takes_is_refused() {
        let refused = |message: OutboxMessage| prepare(message, "1".to_owned(), None).expect_err("refused");
        assert!(refused(Message::new("order.*", "1").into()).contains("order.*"));
        assert!(refused(Message::new("", "1").into()).contains("message for"));
        assert!(refused(Message::new("a", "1").header("x y", "1").into()).contains("`x y`"));
        assert!(refused(Message::new("a", "1").header("x\r\n", "1").into()).contains("\\r\\n"));
        assert!(refused(Message::new("a", "1").delay(Duration::from_secs(400 * 86_400))).contains("a year"));
        assert!(own_id(&Message::new("a", "1").id("x".repeat(600))).is_err());
        assert_eq!(own_id(&Message::new("a", "1").id(" ")), Ok(None));
        assert_eq!(own_id(&Message::new("a", "1").id("7")), Ok(Some("7".to_owned())));
    }

    #[test]
    fn a_key_is_always_in_the_same_lane() {
        let lanes = |key: &'static str| lane("order", Some(key.as_bytes()), 16);
        assert_eq!(lanes("a"), lanes("a"));
        assert!(
            (0..100)
                .map(|n| lane("order", Some(&[n]), 16))
                .collect::<std::collections::BTreeSet<_>>()
                .len()
                > 8
        );
        assert_eq!(lane("order", None, 1), 0);
    }
}
