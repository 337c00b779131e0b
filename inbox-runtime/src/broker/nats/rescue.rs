//! Messages that the client library can't read: it cuts the connection at each, so they are fetched in another way.
//!
//! The server keeps whatever a publisher puts into a header. The library gives up the connection when it can't read one,
//! and would do so at each redelivery for ever. JetStream's own interface hands out a message as JSON, so what was
//! delivered and can't be read is looked up there, handed over like any other delivery and settled in the same way.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    ack::NatsLease,
    durable::{Durable, DurableInfo},
    headers,
    link::{Link, Unanswered},
};
use crate::delivery::Delivery;

/// How many messages before the last delivered one are looked at.
const WINDOW: u64 = 256;

/// In whose hands a message is that was fetched so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hands {
    Ours,
    /// It was given back, or its lease was dropped: it comes again.
    Nobodys,
    Done,
}

/// The messages that can't be read, by number.
#[derive(Clone, Debug, Default)]
pub(super) struct Rescued(Arc<Mutex<BTreeMap<u64, Hands>>>);

impl Rescued {
    pub(super) fn note(&self, seq: u64, hands: Hands) {
        self.lock().insert(seq, hands);
    }

    /// A lease ends.
    pub(super) fn let_go(&self, seq: u64) {
        if let Some(hands @ Hands::Ours) = self.lock().get_mut(&seq) {
            *hands = Hands::Nobodys;
        }
    }

    fn has(&self, seq: u64) -> bool {
        self.lock().contains_key(&seq)
    }

    fn is_free(&self, seq: u64) -> bool {
        matches!(self.lock().get(&seq), None | Some(Hands::Nobodys))
    }

    /// Those that come again, without the ones up to `floor`, which are settled.
    fn waiting(&self, floor: u64) -> Vec<u64> {
        let mut all = self.lock();
        all.retain(|seq, _| *seq > floor);
        let waiting = all.iter().filter(|(_, hands)| **hands == Hands::Nobodys);
        waiting.map(|(seq, _)| *seq).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Hands>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A message as JetStream's own interface has it.
#[derive(Debug, Deserialize)]
struct Stored {
    subject: String,
    seq: u64,
    #[serde(default)]
    hdrs: String,
    #[serde(default)]
    data: String,
    #[serde(default)]
    time: String,
}

impl Stored {
    async fn get(link: &Link, stream: &str, which: &Value) -> Result<Self, Unanswered> {
        #[derive(Deserialize)]
        struct Answer {
            message: Stored,
        }
        let answer: Answer = link.api(&format!("STREAM.MSG.GET.{stream}"), which).await?;
        Ok(answer.message)
    }

    fn headers(&self) -> Vec<u8> {
        STANDARD.decode(&self.hdrs).unwrap_or_default()
    }

    /// A subject that is no UTF-8 can't be read either; JSON has a replacement character for it.
    fn is_readable(&self) -> bool {
        headers::is_readable(&self.headers()) && !self.subject.contains(char::REPLACEMENT_CHARACTER)
    }
}

/// Fetches what was delivered to this durable and can't be read. Up to `known` it may have been in other hands before. A
/// failure is left to the next time.
pub(super) async fn rescue(
    link: &Arc<Link>,
    durable: &Arc<Durable>,
    filter: &str,
    rescued: &Rescued,
    known: u64,
) -> Result<Vec<(Delivery, NatsLease)>, Unanswered> {
    let question = format!("CONSUMER.INFO.{}.{}", durable.stream, durable.name);
    let info: DurableInfo = link.api(&question, &Value::Null).await?;
    if info.num_ack_pending == 0 || info.created != durable.created {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    let last = info.delivered.stream_seq;
    let mut next = (info.ack_floor.stream_seq + 1).max(last.saturating_sub(WINDOW));
    for seq in rescued
        .waiting(info.ack_floor.stream_seq)
        .into_iter()
        .filter(|seq| *seq < next)
    {
        found.extend(Stored::get(link, &durable.stream, &json!({ "seq": seq })).await.ok());
    }
    while next <= last {
        let which = json!({ "seq": next, "next_by_subj": filter });
        match Stored::get(link, &durable.stream, &which).await {
            Ok(stored) if stored.seq <= last => {
                next = stored.seq + 1;
                found.push(stored);
            }
            Ok(_) => break,
            Err(error) if error.is_not_found() => break,
            Err(error) => return Err(error),
        }
    }
    found.retain(|stored| !stored.is_readable() && rescued.is_free(stored.seq));
    Ok(found
        .into_iter()
        .map(|stored| {
            let again = stored.seq <= known || rescued.has(stored.seq);
            let (mut delivery, lease) = delivered(link, durable, &info, rescued, &stored);
            delivery.redelivered = again;
            (delivery, lease)
        })
        .collect())
}

fn delivered(
    link: &Arc<Link>,
    durable: &Arc<Durable>,
    info: &DurableInfo,
    rescued: &Rescued,
    stored: &Stored,
) -> (Delivery, NatsLease) {
    tracing::error!(
        stream = durable.stream,
        seq = stored.seq,
        subject = stored.subject,
        "a message has headers that break the connection to the NATS server; it was fetched in another way"
    );
    let mut delivery = Delivery::new(stored.subject.clone(), durable.position(stored.seq));
    delivery.headers = headers::lenient(&stored.headers());
    delivery.payload = Some(STANDARD.decode(&stored.data).unwrap_or_default().into());
    delivery.published_at = humantime::parse_rfc3339(&stored.time).ok();
    // As the server would have written it, for the newest delivery of the durable; it goes by the number of the message.
    let reply = format!(
        "$JS.ACK.{}.{}.1.{}.{}.0.0",
        durable.stream, durable.name, stored.seq, info.delivered.consumer_seq
    );
    let lease = NatsLease::new(link.clone(), durable.clone(), stored.seq, reply, Instant::now()).rescued(rescued);
    (delivery, lease)
}
