//! Acknowledgements of one durable, sent together and confirmed by one answer.

use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::join_all;
use tokio::{sync::oneshot, time::timeout};

use super::{
    config::SETTLE_TIMEOUT,
    link::{Link, Unanswered},
};

/// The acknowledgements that wait to be sent: those that come while others are on their way go together with the next.
///
/// The server takes those of a durable from one connection in their order, so the answer to the last one is an answer to all.
#[derive(Debug, Default)]
pub(super) struct Acks(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    acks: Vec<Ack>,
    /// Somebody is sending.
    going: bool,
}

#[derive(Debug)]
struct Ack {
    /// Where to say it.
    reply: String,
    heard: oneshot::Sender<Result<(), Unanswered>>,
}

impl Acks {
    /// Acknowledges a delivery and waits until the server has heard it.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it may or may not be acknowledged; the others are.
    pub(super) async fn ack(self: &Arc<Self>, link: &Arc<Link>, reply: String) -> Result<(), Unanswered> {
        let (heard, answer) = oneshot::channel();
        let first = {
            let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.acks.push(Ack { reply, heard });
            !std::mem::replace(&mut waiting.going, true)
        };
        if first {
            tokio::spawn(send_all(self.clone(), link.clone()));
        }
        let ended = |_| Err(Unanswered::Unreachable("the runtime has ended".to_owned()));
        answer.await.unwrap_or_else(ended)
    }

    /// What has come by now; from `None` on the next one is the first again.
    fn take(&self) -> Option<Vec<Ack>> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.going = !waiting.acks.is_empty();
        waiting.going.then(|| std::mem::take(&mut waiting.acks))
    }
}

/// Sends what waits, and what comes meanwhile.
async fn send_all(acks: Arc<Acks>, link: Arc<Link>) {
    while let Some(together) = acks.take() {
        if let Some(alone) = send(&link, together).await {
            // One of them may be what keeps the answer from coming, as that of a message that isn't there any more.
            join_all(alone.into_iter().map(|ack| send_one(&link, ack))).await;
        }
    }
}

/// Sends several, of which the last asks for an answer. Returns them if there is none.
async fn send(link: &Link, mut together: Vec<Ack>) -> Option<Vec<Ack>> {
    let last = together.pop()?;
    if together.is_empty() {
        send_one(link, last).await;
        return None;
    }
    let answer = async {
        let client = link.control.connected().await.ok()?;
        let connection = link.control.connects();
        for ack in &together {
            client.publish(ack.reply.clone(), "+ACK".into()).await.ok()?;
        }
        ask(link, last.reply.clone()).await.ok()?;
        // What was said on a connection that is lost may not have been heard.
        (link.control.connects() == connection).then_some(())
    };
    let heard = timeout(SETTLE_TIMEOUT, answer).await;
    together.push(last);
    if !matches!(heard, Ok(Some(()))) {
        return Some(together);
    }
    for ack in together {
        let _ = ack.heard.send(Ok(()));
    }
    None
}

async fn send_one(link: &Link, ack: Ack) {
    // Whoever doesn't wait any more has given it up.
    let _ = ack.heard.send(ask(link, ack.reply).await);
}

async fn ask(link: &Link, reply: String) -> Result<(), Unanswered> {
    link.ask_within(reply, "+ACK".into(), SETTLE_TIMEOUT).await.map(|_| ())
}
