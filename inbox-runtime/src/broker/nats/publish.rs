//! Publishing: one round trip, and what it means when a message isn't stored.

use async_nats::Request;
use serde::Deserialize;

use super::{
    config::NewStream,
    durable,
    epochs::Created,
    headers,
    link::{Link, Refusal, Unanswered, read_answer},
    stream::{StreamInfo, make_stream},
};
use crate::{
    broker::{BrokerError, Published, subject},
    delivery::Message,
    names,
};

/// By which the server recognises a copy.
const MSG_ID: &str = "Nats-Msg-Id";

/// The server's codes for what passes though it says that the request was bad: the account's limit is reached, the stream is
/// sealed, the same id is just being stored.
const PASSING: [u64; 3] = [10002, 10109, 10158];

pub(super) async fn publish(link: &Link, message: Message) -> Result<Published, BrokerError> {
    let refused = |message: String| BrokerError::Refused { message, source: None };
    names::check_publish_subject(&message.subject).map_err(refused)?;
    let Some(payload) = message.payload.clone() else {
        return Err(refused("NATS has no null payload; send an empty one".to_owned()));
    };
    let headers = wire_headers(&message)?;
    let request = || Request::new().headers(headers.clone()).payload(payload.clone());
    let mut answer = link.request(&message.subject, request()).await;
    if matches!(answer, Err(Unanswered::NoResponders(_))) && make_stream_for(link, &message.subject).await? {
        answer = link.request(&message.subject, request()).await;
    }
    let answer = answer.map_err(|error| not_published(error, &message.subject))?;
    let stored = read_answer(&answer.payload).map_err(|error| not_published(error, &message.subject))?;
    Ok(published(link, &stored).await)
}

/// The message's headers, with its id as the server wants it.
fn wire_headers(message: &Message) -> Result<async_nats::HeaderMap, BrokerError> {
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
    Ok(headers)
}

/// Why a message wasn't stored: it never will be, not now, or nobody knows.
fn not_published(error: Unanswered, subject: &str) -> BrokerError {
    let refused = |message| BrokerError::Refused { message, source: None };
    let not_now = |message| BrokerError::NotNow { message, source: None };
    match error {
        Unanswered::Unreachable(why) => BrokerError::Unavailable {
            message: format!("the server did not confirm a message to {subject}: {why}"),
            source: None,
        },
        Unanswered::NoResponders(_) => not_now(format!(
            "no stream holds the subject {subject}, or its leader is being elected; make a stream that holds it"
        )),
        Unanswered::Denied(why) => refused(why),
        Unanswered::TooLarge(why) => refused(format!(
            "the message to {subject} is larger than the server takes ({why}); raise `max_payload` there, or send less"
        )),
        Unanswered::Refused(refusal) if is_lasting(&refusal) => {
            refused(format!("the stream that holds {subject} doesn't take it: {refusal}"))
        }
        Unanswered::Refused(refusal) => {
            not_now(format!("the stream that holds {subject} can't take it now: {refusal}"))
        }
    }
}

fn is_lasting(refusal: &Refusal) -> bool {
    (400..500).contains(&refusal.code) && refusal.code != 429 && !PASSING.contains(&refusal.error)
}

/// The stream's word that it has a message.
#[derive(Debug, Deserialize)]
struct Stored {
    stream: String,
    seq: u64,
    #[serde(default)]
    duplicate: bool,
}

/// Where the message is. When the stream was made is asked once for each: the message is stored whatever comes of that.
async fn published(link: &Link, stored: &Stored) -> Published {
    let created = match link.epochs.of(&stored.stream, stored.seq, stored.duplicate) {
        Some(created) => created,
        None => {
            let asked = StreamInfo::of(link, &stored.stream).await;
            let created = asked
                .as_ref()
                .map_or(Created::Unsaid, |info| Created::At(info.created()));
            // What can't be reached now may be the next time.
            if !matches!(asked, Err(Unanswered::Unreachable(_))) {
                link.epochs.note(&stored.stream, created, stored.seq);
            }
            created
        }
    };
    let position = match created {
        Created::At(created) => durable::position(&stored.stream, created, stored.seq),
        Created::Unsaid => format!("nats:{}:{}", stored.stream, stored.seq),
    };
    let mut published = Published::new(position);
    published.duplicate = stored.duplicate;
    published
}

/// Makes the stream that was asked for with that subject. Returns whether there is one.
async fn make_stream_for(link: &Link, subject: &str) -> Result<bool, BrokerError> {
    let fits = |stream: &&NewStream| stream.subjects.iter().any(|one| subject::overlap(one, subject));
    match link.settings.new_streams.iter().find(fits) {
        Some(stream) => match make_stream(link, stream).await {
            Ok(_) => Ok(true),
            Err(error) => Err(error.into()),
        },
        None => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g51_what_the_server_says_is_one_of_three() {
        let refusal = |code, error| {
            Unanswered::Refused(Refusal {
                code,
                error,
                description: "the server's words".to_owned(),
            })
        };
        let refused = |error| matches!(not_published(error, "s"), BrokerError::Refused { .. });
        let not_now = |error| matches!(not_published(error, "s"), BrokerError::NotNow { .. });
        assert!(refused(refusal(400, 10054)), "message size exceeds maximum allowed");
        assert!(refused(refusal(400, 10071)), "wrong last sequence");
        assert!(refused(Unanswered::Denied(String::new())));
        assert!(refused(Unanswered::TooLarge(String::new())));
        assert!(not_now(refusal(503, 10077)), "maximum messages exceeded");
        assert!(not_now(refusal(503, 10023)), "insufficient resources");
        assert!(not_now(refusal(429, 10167)), "too many requests");
        assert!(not_now(refusal(400, 10002)), "resource limits exceeded for account");
        assert!(not_now(Unanswered::NoResponders(String::new())));
        let lost = not_published(Unanswered::Unreachable("gone".to_owned()), "s");
        assert!(matches!(lost, BrokerError::Unavailable { .. }));
    }
}
