//! The durable consumer of a source on the server: finding its stream, comparing it with what is wanted, making it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    acks::Acks,
    config::MAX_DURABLE,
    link::{Link, Unanswered},
    settings::{adjust, make},
    stream::find_stream,
};
use crate::broker::{BrokerError, Subscription};

/// In a durable's metadata, so that those of ours are known that nobody uses any more.
pub(super) const GROUP_KEY: &str = "inbox_group";
pub(super) const SUBJECT_KEY: &str = "inbox_subject";

/// The name of the durable of a group and a subject: both as they are, with the characters that a name must not have
/// replaced by ones that neither of them has. So no two pairs share a name.
pub(super) fn name(group: &str, subject: &str) -> Result<String, BrokerError> {
    let replaced = |text: &str| text.replace('.', ",").replace('*', "+").replace('>', "#");
    let name = format!("{}@{}", replaced(group), replaced(subject));
    if name.len() > MAX_DURABLE {
        return Err(BrokerError::Invalid(format!(
            "the group `{group}` and the subject `{subject}` make a durable whose name is {} bytes long; NATS takes at most \
             {MAX_DURABLE}; shorten one of them",
            name.len()
        )));
    }
    Ok(name)
}

/// The server keeps it in whole nanoseconds, and takes zero for its own default.
pub(super) fn check_ack_wait(ack_wait: Duration) -> Result<(), BrokerError> {
    if (1..=i64::MAX as u128).contains(&ack_wait.as_nanos()) {
        return Ok(());
    }
    Err(BrokerError::Invalid(format!(
        "the ack-wait of {ack_wait:?} can't be kept by a NATS server; write one as in 30 s"
    )))
}

/// What the server says about a durable.
#[derive(Debug, Deserialize)]
pub(super) struct DurableInfo {
    pub(super) created: String,
    pub(super) config: Map<String, Value>,
    pub(super) ack_floor: Sequences,
    pub(super) num_ack_pending: u64,
    pub(super) num_pending: u64,
    #[serde(default)]
    pub(super) paused: bool,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Sequences {
    pub(super) stream_seq: u64,
}

impl DurableInfo {
    fn number(&self, field: &str) -> i64 {
        self.config.get(field).and_then(Value::as_i64).unwrap_or_default()
    }

    pub(super) fn text(&self, field: &str) -> &str {
        self.config.get(field).and_then(Value::as_str).unwrap_or_default()
    }

    /// How many messages the group has not acknowledged yet.
    pub(super) fn unsettled(&self) -> u64 {
        self.num_pending + self.num_ack_pending
    }

    /// How long it waits for a sign of life.
    pub(super) fn ack_wait(&self) -> Duration {
        Duration::from_nanos(self.number("ack_wait").unsigned_abs())
    }
}

/// A durable that is there and as it must be. Its leases share it.
#[derive(Debug)]
pub(super) struct Durable {
    pub(super) stream: String,
    pub(super) stream_created: u128,
    pub(super) name: String,
    /// When it was made, which tells it from one of the same name that was made after it was deleted.
    pub(super) created: String,
    pub(super) ack_wait: Duration,
    /// It has been replaced.
    gone: AtomicBool,
    /// Its stream has been replaced: the numbers of its messages mean others by now.
    stream_gone: AtomicBool,
    pub(super) acks: Arc<Acks>,
}

impl Durable {
    pub(super) fn position(&self, seq: u64) -> String {
        position(&self.stream, self.stream_created, seq)
    }

    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    pub(super) fn is_stream_gone(&self) -> bool {
        self.stream_gone.load(Ordering::SeqCst)
    }

    /// It is gone, or another one by now: nothing that its leases say may reach what comes after it.
    pub(super) fn lost(&self) {
        self.gone.store(true, Ordering::SeqCst);
        self.stream_gone.store(true, Ordering::SeqCst);
    }

    /// It was looked for, and `found` is what there is.
    pub(super) fn found(&self, found: &Self) {
        let same_stream = self.stream == found.stream && self.stream_created == found.stream_created;
        self.stream_gone.store(!same_stream, Ordering::SeqCst);
        self.gone
            .store(!same_stream || self.created != found.created, Ordering::SeqCst);
    }
}

/// Where a message is kept.
pub(super) fn position(stream: &str, created: u128, seq: u64) -> String {
    format!("nats:{stream}:{created}:{seq}")
}

/// What a source knew of its durable when it last looked.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) stream: String,
    pub(super) stream_created: u128,
    /// Every message up to this one is settled.
    pub(super) floor: u64,
}

/// What can't be opened now or ever.
#[derive(Debug)]
pub(super) enum OpenError {
    /// It may be there later.
    NotYet(String),
    /// It is there and wrong.
    Wrong(String),
}

impl From<Unanswered> for OpenError {
    fn from(unanswered: Unanswered) -> Self {
        match BrokerError::from(unanswered) {
            BrokerError::Invalid(why) => Self::Wrong(why),
            error => Self::NotYet(error.to_string()),
        }
    }
}

/// Finds or makes the durable of a subscription.
pub(super) async fn open(
    link: &Link,
    wish: &Subscription,
    name: &str,
    known: Option<&Known>,
) -> Result<(Durable, DurableInfo), OpenError> {
    let stream = find_stream(link, wish).await?;
    let question = format!("CONSUMER.INFO.{}.{name}", stream.config.name);
    let there: Result<DurableInfo, _> = link.api(&question, &Value::Null).await;
    let info = match there {
        Ok(info) => adjust(link, wish, &stream, name, info).await?,
        Err(error) if error.is_not_found() => make(link, wish, &stream, name, known).await?,
        Err(error) => return Err(error.into()),
    };
    let durable = Durable {
        stream_created: stream.created(),
        stream: stream.config.name,
        name: name.to_owned(),
        created: info.created.clone(),
        ack_wait: info.ack_wait(),
        gone: AtomicBool::new(false),
        stream_gone: AtomicBool::new(false),
        acks: Arc::default(),
    };
    Ok((durable, info))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_can_be_read() {
        assert_eq!(
            name("billing", "order.created").expect("a name"),
            "billing@order,created"
        );
        assert_eq!(name("billing.v2", "order.*.>").expect("a name"), "billing,v2@order,+,#");
    }

    #[test]
    fn f53_a_name_that_is_too_long_says_by_what() {
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
