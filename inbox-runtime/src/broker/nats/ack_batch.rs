//! Batches the acks of one durable: many are published, the last one is a request whose answer confirms all.

use std::sync::Arc;

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::{sync::oneshot, time::timeout};

use super::{error::RequestError, jetstream::JetStream, limits::SETTLE_TIMEOUT};

/// The acks that wait to be sent: those that come while a batch is in flight form the next one.
///
/// The server processes the acks of a consumer from one connection in order, so the answer to the last one confirms all.
#[derive(Debug, Default)]
pub(super) struct AckBatcher(Mutex<AckBatch>);

#[derive(Debug, Default)]
struct AckBatch {
    acks: Vec<PendingAck>,
    /// Whether a task is sending.
    sending: bool,
}

#[derive(Debug)]
struct PendingAck {
    /// The reply subject of the delivery.
    subject: String,
    done: oneshot::Sender<Result<(), RequestError>>,
}

impl AckBatcher {
    /// Acknowledges a delivery and waits until the server has confirmed it.
    ///
    /// # Cancel safety
    ///
    /// Dropped, the message may or may not be acknowledged; the others of the batch are.
    pub(super) async fn ack(self: &Arc<Self>, jetstream: &Arc<JetStream>, subject: String) -> Result<(), RequestError> {
        let (done, confirmed) = oneshot::channel();
        let is_first = {
            let mut batch = self.0.lock();
            batch.acks.push(PendingAck { subject, done });
            !std::mem::replace(&mut batch.sending, true)
        };
        if is_first {
            tokio::spawn(send_all(self.clone(), jetstream.clone()));
        }
        let ended = |_| Err(RequestError::NoAnswer("the runtime has ended".to_owned()));
        confirmed.await.unwrap_or_else(ended)
    }

    /// The next batch. After `None` the sending task must end.
    fn take(&self) -> Option<Vec<PendingAck>> {
        let mut batch = self.0.lock();
        batch.sending = !batch.acks.is_empty();
        batch.sending.then(|| std::mem::take(&mut batch.acks))
    }
}

/// Sends batches until there are none.
async fn send_all(batcher: Arc<AckBatcher>, jetstream: Arc<JetStream>) {
    while let Some(batch) = batcher.take() {
        if let Some(unconfirmed) = send_batch(&jetstream, batch).await {
            // One of them may have kept the answer away, as that of a message that was deleted.
            join_all(unconfirmed.into_iter().map(|ack| send_one(&jetstream, ack))).await;
        }
    }
}

/// Sends a batch. Returns it if it was not confirmed.
async fn send_batch(jetstream: &JetStream, mut batch: Vec<PendingAck>) -> Option<Vec<PendingAck>> {
    let last = batch.pop()?;
    if batch.is_empty() {
        send_one(jetstream, last).await;
        return None;
    }
    let sent = async {
        let client = jetstream.client.connected().await.ok()?;
        let connects = jetstream.client.connects();
        for ack in &batch {
            client.publish(ack.subject.clone(), "+ACK".into()).await.ok()?;
        }
        request_ack(jetstream, last.subject.clone()).await.ok()?;
        // After a reconnect the server may have missed what was published before.
        (jetstream.client.connects() == connects).then_some(())
    };
    let confirmed = timeout(SETTLE_TIMEOUT, sent).await;
    batch.push(last);
    if !matches!(confirmed, Ok(Some(()))) {
        return Some(batch);
    }
    for ack in batch {
        let _ = ack.done.send(Ok(()));
    }
    None
}

async fn send_one(jetstream: &JetStream, ack: PendingAck) {
    // The receiver may have been dropped.
    let _ = ack.done.send(request_ack(jetstream, ack.subject).await);
}

async fn request_ack(jetstream: &JetStream, subject: String) -> Result<(), RequestError> {
    jetstream
        .request(subject, "+ACK".into(), SETTLE_TIMEOUT)
        .await
        .map(|_| ())
}
