//! The durable consumer of a source: its name, its state on the server, and whether it was replaced.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{ack_batch::AckBatcher, limits::MAX_DURABLE_NAME};
use crate::broker::BrokerError;

/// Metadata keys by which our consumers are found when no handler uses them any more.
pub(super) const GROUP_KEY: &str = "inbox_group";
pub(super) const SUBJECT_KEY: &str = "inbox_subject";

/// The name of the durable of a group and a subject: both, with the characters that NATS forbids replaced by ones that
/// neither may contain, so that the name is unique.
pub(super) fn name(group: &str, subject: &str) -> Result<String, BrokerError> {
    let replaced = |text: &str| text.replace('.', ",").replace('*', "+").replace('>', "#");
    let name = format!("{}@{}", replaced(group), replaced(subject));
    if name.len() > MAX_DURABLE_NAME {
        return Err(BrokerError::Invalid(format!(
            "the group `{group}` and the subject `{subject}` make a durable whose name is {} bytes long; NATS takes at most \
             {MAX_DURABLE_NAME}; shorten one of them",
            name.len()
        )));
    }
    Ok(name)
}

/// The server stores nanoseconds in an `i64`, and replaces zero by its own default.
pub(super) fn check_ack_wait(ack_wait: Duration) -> Result<(), BrokerError> {
    if (1..=i64::MAX as u128).contains(&ack_wait.as_nanos()) {
        return Ok(());
    }
    Err(BrokerError::Invalid(format!(
        "a NATS server can't store the ack-wait of {ack_wait:?}; the default is 30 s"
    )))
}

/// The server's answer to `CONSUMER.INFO`.
#[derive(Debug, Deserialize)]
pub(super) struct DurableInfo {
    pub(super) created: String,
    pub(super) config: Map<String, Value>,
    pub(super) ack_floor: AckFloor,
    num_ack_pending: u64,
    num_pending: u64,
    #[serde(default)]
    pub(super) paused: bool,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct AckFloor {
    pub(super) stream_seq: u64,
}

impl DurableInfo {
    fn number(&self, field: &str) -> i64 {
        self.config.get(field).and_then(Value::as_i64).unwrap_or_default()
    }

    pub(super) fn text(&self, field: &str) -> &str {
        self.config.get(field).and_then(Value::as_str).unwrap_or_default()
    }

    /// The number of messages that the group has not acknowledged.
    pub(super) fn lag(&self) -> u64 {
        self.num_pending + self.num_ack_pending
    }

    pub(super) fn ack_wait(&self) -> Duration {
        Duration::from_nanos(self.number("ack_wait").unsigned_abs())
    }
}

/// A durable consumer that exists and is configured as wanted. Its leases share it.
#[derive(Debug)]
pub(super) struct Durable {
    pub(super) stream: String,
    /// In nanoseconds since 1970.
    pub(super) stream_created: u128,
    pub(super) name: String,
    /// The server's creation time, which differs after the consumer was deleted and recreated.
    pub(super) created: String,
    pub(super) ack_wait: Duration,
    replaced: AtomicBool,
    /// The sequence numbers of its messages mean other messages now.
    stream_replaced: AtomicBool,
    pub(super) acks: Arc<AckBatcher>,
}

impl Durable {
    pub(super) fn new(stream: String, stream_created: u128, name: String, info: &DurableInfo) -> Self {
        Self {
            stream,
            stream_created,
            name,
            created: info.created.clone(),
            ack_wait: info.ack_wait(),
            replaced: AtomicBool::new(false),
            stream_replaced: AtomicBool::new(false),
            acks: Arc::default(),
        }
    }

    pub(super) fn position(&self, stream_seq: u64) -> String {
        position(&self.stream, self.stream_created, stream_seq)
    }

    pub(super) fn is_replaced(&self) -> bool {
        self.replaced.load(Ordering::SeqCst)
    }

    pub(super) fn is_stream_replaced(&self) -> bool {
        self.stream_replaced.load(Ordering::SeqCst)
    }

    /// Assumes the worst until [`reconcile`](Self::reconcile): nothing that its leases send may reach a successor.
    pub(super) fn mark_lost(&self) {
        self.replaced.store(true, Ordering::SeqCst);
        self.stream_replaced.store(true, Ordering::SeqCst);
    }

    /// Compares with the consumer that was found afterwards.
    pub(super) fn reconcile(&self, found: &Self) {
        let same_stream = self.stream == found.stream && self.stream_created == found.stream_created;
        self.stream_replaced.store(!same_stream, Ordering::SeqCst);
        let same = same_stream && self.created == found.created;
        self.replaced.store(!same, Ordering::SeqCst);
    }
}

/// The position of a message: stream, its creation time, sequence number.
pub(super) fn position(stream: &str, created: u128, stream_seq: u64) -> String {
    format!("nats:{stream}:{created}:{stream_seq}")
}

/// How far a group was when the consumer's state was last read. A recreated consumer starts there.
#[derive(Clone, Debug)]
pub(super) struct Checkpoint {
    pub(super) stream: String,
    pub(super) stream_created: u128,
    /// Every message up to this stream sequence is acknowledged.
    pub(super) ack_floor: u64,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_readable() {
        assert_eq!(
            name("billing", "order.created").expect("a name"),
            "billing@order,created"
        );
        assert_eq!(name("billing.v2", "order.*.>").expect("a name"), "billing,v2@order,+,#");
    }

    #[test]
    fn f53_a_name_that_is_too_long_is_refused() {
        let error = name(&"g".repeat(128), &"s".repeat(200))
            .expect_err("too long")
            .to_string();
        assert!(error.contains("329 bytes") && error.contains("255"), "{error}");
    }

    proptest! {
        #[test]
        fn no_two_pairs_share_a_name(
            one in ("[a-z._-]{1,4}", "[a-z._*>-]{1,4}"),
            other in ("[a-z._-]{1,4}", "[a-z._*>-]{1,4}"),
        ) {
            let name = |pair: &(String, String)| name(&pair.0, &pair.1).expect("a name");
            prop_assert_eq!(name(&one) == name(&other), one == other);
            prop_assert!(!name(&one).contains(['.', '*', '>', ' ', '/', '\\']));
        }
    }
}
