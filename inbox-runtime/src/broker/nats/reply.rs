//! The subject on which a delivery is settled, in which the server says everything about it.

use std::time::{Duration, SystemTime};

/// What stands in the subject on which a delivery is settled:
/// `$JS.ACK.<stream>.<durable>.<deliveries>.<seq>.<number>.<time>.<pending>`, since NATS 2.14 optionally with domain and
/// account before the stream, and more behind.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reply<'a> {
    /// The whole subject.
    pub(super) text: &'a str,
    /// How often the message was delivered, this time included.
    pub(super) deliveries: u64,
    /// The message's number in the stream.
    pub(super) seq: u64,
    /// The durable's number of the delivery, which grows with each.
    pub(super) number: u64,
    pub(super) published_at: Option<SystemTime>,
}

impl<'a> Reply<'a> {
    /// `None` if it is none: what the server says about a request has no such subject, whatever a publisher writes.
    pub(super) fn read(text: &'a str) -> Option<Self> {
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
            seq: numbers.get(1)?.parse().ok()?,
            number: numbers.get(2)?.parse().ok()?,
            published_at: SystemTime::UNIX_EPOCH.checked_add(Duration::from_nanos(nanos)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_read() {
        for text in [
            "$JS.ACK.ORDERS.billing@order,created.2.17.23.1764444444000000001.5",
            "$JS.ACK._.aBcD.ORDERS.billing@order,created.2.17.23.1764444444000000001.5",
            "$JS.ACK.hub.aBcD.ORDERS.billing@order,created.2.17.23.1764444444000000001.5.xyz",
        ] {
            let reply = Reply::read(text).expect(text);
            assert_eq!((reply.deliveries, reply.seq, reply.number), (2, 17, 23), "{text}");
            assert_eq!(reply.text, text);
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
            assert_eq!(Reply::read(text), None, "{text}");
        }
    }
}
