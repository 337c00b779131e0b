//! The reply subject of a delivery, which has its metadata.

use std::time::{Duration, SystemTime};

/// `$JS.ACK.<stream>.<consumer>.<deliveries>.<stream_seq>.<consumer_seq>.<time>.<pending>`; since NATS 2.14 optionally with
/// domain and account hash before the stream and a token at the end.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct AckSubject<'a> {
    /// The subject itself.
    pub(super) text: &'a str,
    /// How often the message was delivered, this delivery included.
    pub(super) deliveries: u64,
    /// The message's sequence number in the stream.
    pub(super) stream_seq: u64,
    /// The consumer's sequence number of the delivery, which grows with each.
    pub(super) consumer_seq: u64,
    pub(super) published_at: Option<SystemTime>,
}

impl<'a> AckSubject<'a> {
    /// `None` for other subjects: a status message has none of this form, and publishers can't forge one.
    pub(super) fn parse(text: &'a str) -> Option<Self> {
        let tokens: Vec<_> = text.strip_prefix("$JS.ACK.")?.split('.').collect();
        let numbers = match tokens.len() {
            7 => &tokens[2..],
            9.. => &tokens[4..],
            _ => return None,
        };
        let nanos: u64 = numbers.get(3)?.parse().ok()?;
        Some(Self {
            text,
            deliveries: numbers.first()?.parse().ok()?,
            stream_seq: numbers.get(1)?.parse().ok()?,
            consumer_seq: numbers.get(2)?.parse().ok()?,
            published_at: SystemTime::UNIX_EPOCH.checked_add(Duration::from_nanos(nanos)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_parsed() {
        for text in [
            "$JS.ACK.ORDERS.billing@order,created.2.17.23.1764444444000000001.5",
            "$JS.ACK._.aBcD.ORDERS.billing@order,created.2.17.23.1764444444000000001.5",
            "$JS.ACK.hub.aBcD.ORDERS.billing@order,created.2.17.23.1764444444000000001.5.xyz",
        ] {
            let parsed = AckSubject::parse(text).expect(text);
            assert_eq!(
                (parsed.deliveries, parsed.stream_seq, parsed.consumer_seq),
                (2, 17, 23),
                "{text}"
            );
            assert_eq!(parsed.text, text);
        }
    }

    #[test]
    fn anything_else_is_none() {
        for text in [
            "",
            "_INBOX.a.1",
            "$JS.ACK.a.b.c",
            "$JS.ACK.s.d.x.17.23.1.5",
            "$JS.ACK.s.d.1.17.23.1",
        ] {
            assert_eq!(AckSubject::parse(text), None, "{text}");
        }
    }
}
