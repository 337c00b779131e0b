//! Conversion of records: from Kafka's to a delivery, and of a message's headers to Kafka's.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use rdkafka::message::{BorrowedMessage, Header, Headers as _, Message as _, OwnedHeaders};

use super::header_names;
use crate::delivery::{Delivery, Headers};

/// Replaces a header name that can't be read.
const UNREADABLE: &str = "\u{fffd}";

/// The position of a record, as `topic:partition:offset`.
pub(super) fn position(topic: &str, partition: i32, offset: i64) -> String {
    format!("{topic}:{partition}:{offset}")
}

/// A record as a delivery.
pub(super) fn delivery(record: &BorrowedMessage<'_>, prefix: &str) -> Delivery {
    let topic = record.topic();
    let mut delivery = Delivery::new(
        topic.strip_prefix(prefix).unwrap_or(topic),
        position(topic, record.partition(), record.offset()),
    );
    delivery.key = record.key().map(Bytes::copy_from_slice);
    delivery.payload = record.payload().map(Bytes::copy_from_slice);
    delivery.headers = headers(record);
    delivery.published_at = record
        .timestamp()
        .to_millis()
        .and_then(|millis| u64::try_from(millis).ok())
        .and_then(|millis| SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(millis)));
    delivery
}

fn headers(record: &BorrowedMessage<'_>) -> Headers {
    let mut headers = Headers::new();
    let Some(found) = record.headers() else {
        return headers;
    };
    for index in 0..found.count() {
        match header_names::read(|| found.try_get(index)) {
            Some(Some(Header {
                key,
                value: Some(value),
            })) => headers.append(key, value.to_vec()),
            Some(Some(Header { key, value: None })) => headers.append_null(key),
            Some(None) => {}
            None => {
                let position = position(record.topic(), record.partition(), record.offset());
                tracing::warn!(
                    position,
                    index,
                    "the name of a header is not UTF-8; its value can't be read"
                );
                headers.append_null(UNREADABLE);
            }
        }
    }
    headers
}

/// The headers of a message to publish.
pub(super) fn owned_headers(headers: &Headers) -> OwnedHeaders {
    headers
        .iter()
        .fold(OwnedHeaders::new_with_capacity(headers.len()), |owned, (key, value)| {
            owned.insert(Header { key, value })
        })
}
