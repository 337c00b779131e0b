//! Publishing: one request for each message, and the meaning of its errors.

use std::collections::HashMap;

use async_nats::Request;
use futures_util::{StreamExt, stream::FuturesUnordered};
use serde::Deserialize;

use inbox_rules::subject_rules;

use super::{
    durable,
    epochs::Created,
    error::{ApiError, RequestError, parse_answer},
    headers,
    jetstream::JetStream,
    limits::{MAX_UNCONFIRMED, MAX_UNCONFIRMED_BYTES},
    stream::{StreamInfo, create_stream, requested_stream},
};
use crate::{
    broker::{
        BrokerError, Published,
        send_order::{Pipelining, SendOrder},
    },
    delivery::Message,
};

/// The header by which the server deduplicates.
const MSG_ID: &str = "Nats-Msg-Id";

const NO_NULL: &str = "NATS has no null payload; send an empty one";

/// Codes of temporary errors with status 400: the account's limit is reached, the stream is sealed, the same id is
/// being stored.
const TEMPORARY: [u64; 3] = [10002, 10109, 10158];

pub(super) async fn publish(jetstream: &JetStream, message: &Message) -> Result<Published, BrokerError> {
    let ack = store(jetstream, message).await?;
    let created = created(jetstream, &ack).await;
    Ok(published(&ack, created))
}

/// Publishes messages, of each subject and key the next one as soon as the one before it is confirmed.
pub(super) async fn publish_all(jetstream: &JetStream, messages: &[Message]) -> Vec<Result<Published, BrokerError>> {
    let mut order = SendOrder::new(messages, Pipelining::One);
    let mut unconfirmed = FuturesUnordered::new();
    let mut bytes = 0;
    loop {
        // A message of any size is sent when it is the only one.
        while unconfirmed.len() < MAX_UNCONFIRMED && (bytes < MAX_UNCONFIRMED_BYTES || unconfirmed.is_empty()) {
            let Some(place) = order.next() else { break };
            let message = &messages[place];
            bytes += size(message);
            unconfirmed.push(async move { (place, store(jetstream, message).await) });
        }
        let Some((place, answer)) = unconfirmed.next().await else {
            return all_published(jetstream, order.finish()).await;
        };
        bytes -= size(&messages[place]);
        order.answered(place, answer);
    }
}

/// The size of a message's payload, in bytes. That of its headers is bounded by the server.
fn size(message: &Message) -> usize {
    message.payload.as_ref().map_or(0, bytes::Bytes::len)
}

/// The positions of stored messages. The creation time of each stream is requested at most once.
async fn all_published(
    jetstream: &JetStream,
    acks: Vec<Result<PublishAck, BrokerError>>,
) -> Vec<Result<Published, BrokerError>> {
    let mut last: HashMap<&str, &PublishAck> = HashMap::new();
    for ack in acks.iter().flatten().filter(|ack| !ack.duplicate) {
        let last = last.entry(&ack.stream).or_insert(ack);
        if last.seq < ack.seq {
            *last = ack;
        }
    }
    for ack in acks.iter().flatten() {
        last.entry(&ack.stream).or_insert(ack);
    }
    let mut streams = HashMap::new();
    for ack in last.into_values() {
        streams.insert(ack.stream.clone(), created(jetstream, ack).await);
    }
    let published = |ack: PublishAck| published(&ack, streams[&ack.stream]);
    acks.into_iter().map(|ack| ack.map(published)).collect()
}

/// Stores a message in the stream that holds its subject.
async fn store(jetstream: &JetStream, message: &Message) -> Result<PublishAck, BrokerError> {
    let refused = |message: String| BrokerError::Refused { message, source: None };
    subject_rules::check_publish_subject(&message.subject).map_err(refused)?;
    let Some(payload) = message.payload.clone() else {
        return Err(refused(NO_NULL.to_owned()));
    };
    let headers = wire_headers(message)?;
    let request = || Request::new().headers(headers.clone()).payload(payload.clone());
    let mut answer = jetstream.send(&message.subject, request()).await;
    if matches!(answer, Err(RequestError::NoResponders(_))) && create_stream_for(jetstream, &message.subject).await? {
        answer = jetstream.send(&message.subject, request()).await;
    }
    let answer = answer.map_err(|error| not_published(error, &message.subject))?;
    parse_answer(&answer.payload).map_err(|error| not_published(error, &message.subject))
}

/// Whether the server can be sent the message at all.
pub(super) fn check(message: &Message, max_payload: Option<usize>) -> Result<(), String> {
    let Some(payload) = &message.payload else {
        return Err(NO_NULL.to_owned());
    };
    let headers = wire_headers(message).map_err(|error| match error {
        BrokerError::Refused { message, .. } => message,
        error => error.to_string(),
    })?;
    let headers = headers.iter().flat_map(|(name, values)| {
        values
            .iter()
            .map(|value| (AsRef::<str>::as_ref(name).len(), value.as_str().len()))
    });
    // As they are sent: `name: value`, each with the end of its line, between a first line and an empty one.
    let size = payload.len() + headers.map(|(name, value)| name + value + 4).sum::<usize>() + 12;
    match max_payload {
        Some(max) if size > max => Err(format!(
            "with its headers it has {size} bytes, and the server takes at most {max}; raise `max_payload` there, or send less"
        )),
        _ => Ok(()),
    }
}

/// The message's headers, with its id as `Nats-Msg-Id`.
fn wire_headers(message: &Message) -> Result<async_nats::HeaderMap, BrokerError> {
    let mut headers = headers::to_header_map(&message.headers)?;
    if message.headers.get(MSG_ID).is_none()
        && let Some(id) = message
            .headers
            .get("message_id")
            .and_then(|id| std::str::from_utf8(id).ok())
        && !id.trim().is_empty()
    {
        headers.insert(MSG_ID, id);
    }
    Ok(headers)
}

/// Classifies an error: the message is refused, can't be stored now, or may have been stored.
fn not_published(error: RequestError, subject: &str) -> BrokerError {
    let refused = |message| BrokerError::Refused { message, source: None };
    let not_now = |message| BrokerError::NotNow { message, source: None };
    match error {
        RequestError::NoAnswer(why) => BrokerError::Unavailable {
            message: format!("the server did not confirm a message to {subject}: {why}"),
            source: None,
        },
        RequestError::NoResponders(_) => not_now(format!(
            "no stream holds the subject {subject}, or its leader is being elected; create a stream that holds it"
        )),
        RequestError::Denied(message) => BrokerError::Denied { message, source: None },
        RequestError::TooLarge(why) => refused(format!(
            "the message to {subject} is larger than the server accepts ({why}); raise `max_payload` there, or send less"
        )),
        RequestError::Api(error) if is_permanent(&error) => {
            refused(format!("the stream that holds {subject} refuses the message: {error}"))
        }
        RequestError::Api(error) => not_now(format!("the stream that holds {subject} can't store it now: {error}")),
    }
}

fn is_permanent(error: &ApiError) -> bool {
    (400..500).contains(&error.code) && error.code != 429 && !TEMPORARY.contains(&error.err_code)
}

/// The stream's confirmation.
#[derive(Debug, Deserialize)]
struct PublishAck {
    stream: String,
    seq: u64,
    #[serde(default)]
    duplicate: bool,
}

/// When the stream of a stored message was created: requested once. The message is stored even if that fails.
async fn created(jetstream: &JetStream, ack: &PublishAck) -> Created {
    if let Some(created) = jetstream.epochs.get(&ack.stream, ack.seq, ack.duplicate) {
        return created;
    }
    let info = StreamInfo::get(jetstream, &ack.stream).await;
    let created = info
        .as_ref()
        .map_or(Created::Unknown, |info| Created::At(info.created()));
    // Requested again with the next message.
    if !matches!(info, Err(RequestError::NoAnswer(_))) {
        jetstream.epochs.insert(&ack.stream, created, ack.seq);
    }
    created
}

/// What is told of a stored message.
fn published(ack: &PublishAck, created: Created) -> Published {
    let position = match created {
        Created::At(created) => durable::position(&ack.stream, created, ack.seq),
        Created::Unknown => format!("nats:{}:{}", ack.stream, ack.seq),
    };
    let mut published = Published::new(position);
    published.duplicate = ack.duplicate;
    published
}

/// Creates the stream for a subject, if one was requested. Returns whether there is one.
async fn create_stream_for(jetstream: &JetStream, subject: &str) -> Result<bool, BrokerError> {
    let Some(stream) = requested_stream(jetstream, subject) else {
        return Ok(false);
    };
    create_stream(jetstream, stream).await?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g51_errors_are_classified() {
        let api = |code, err_code| {
            RequestError::Api(ApiError {
                code,
                err_code,
                description: "the server's text".to_owned(),
            })
        };
        let refused = |error| matches!(not_published(error, "s"), BrokerError::Refused { .. });
        let not_now = |error| matches!(not_published(error, "s"), BrokerError::NotNow { .. });
        assert!(refused(api(400, 10054)), "message size exceeds maximum allowed");
        assert!(refused(api(400, 10071)), "wrong last sequence");
        let denied = not_published(RequestError::Denied(String::new()), "s");
        assert!(matches!(denied, BrokerError::Denied { .. }));
        assert!(refused(RequestError::TooLarge(String::new())));
        assert!(not_now(api(503, 10077)), "maximum messages exceeded");
        assert!(not_now(api(503, 10023)), "insufficient resources");
        assert!(not_now(api(429, 10167)), "too many requests");
        assert!(not_now(api(400, 10002)), "resource limits exceeded for account");
        assert!(not_now(RequestError::NoResponders(String::new())));
        let lost = not_published(RequestError::NoAnswer("gone".to_owned()), "s");
        assert!(matches!(lost, BrokerError::Unavailable { .. }));
    }
}
