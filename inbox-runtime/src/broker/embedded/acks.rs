//! Acknowledgements of one process, as many as there are in one statement: a transaction costs more than the rows in it.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

use super::{Shared, link::Held};
use crate::{broker::BrokerError, pipeline::text};

/// Acknowledgements that wait for their turn to write.
#[derive(Debug, Default)]
pub(super) struct Acks(Mutex<Vec<Waiting>>);

#[derive(Debug)]
struct Waiting {
    consumer: i64,
    seq: i64,
    tell: oneshot::Sender<Result<(), Arc<BrokerError>>>,
}

impl Acks {
    fn push(&self, waiting: Waiting) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(waiting);
    }

    fn take(&self) -> Vec<Waiting> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Deletes the pending row of a message, whosever it is by now: the work is done. Who gets to write does so for all that wait.
///
/// Dropped half-way, the message is either acknowledged or not.
pub(super) async fn acknowledge(shared: &Shared, consumer: i64, seq: i64) -> Result<(), BrokerError> {
    loop {
        let (tell, mut told) = oneshot::channel();
        shared.acks.push(Waiting { consumer, seq, tell });
        // Not synced: an ack that a power failure undoes means a redelivery, as an ack that is lost on a network does.
        let db = shared.db().await?;
        let answer = tokio::select! {
            biased;
            answer = &mut told => answer,
            writing = db.relaxed() => {
                write(shared.acks.take(), writing).await;
                told.await
            }
        };
        // Without an answer, who had it in hand was dropped.
        if let Ok(answer) = answer {
            return answer.map_err(own);
        }
    }
}

/// The error of one of those that share it.
fn own(shared: Arc<BrokerError>) -> BrokerError {
    Arc::try_unwrap(shared).unwrap_or_else(|shared| BrokerError::Unavailable {
        message: match &*shared {
            BrokerError::Unavailable {
                message,
                source: Some(source),
            } => format!("{message}: {}", text(&**source)),
            BrokerError::Unavailable { message, .. } => message.clone(),
            other => other.to_string(),
        },
        source: None,
    })
}

async fn write(waiting: Vec<Waiting>, writing: Result<Held<'_>, BrokerError>) {
    let pairs: Vec<_> = waiting.iter().map(|ack| [ack.consumer, ack.seq]).collect();
    let result = match writing {
        Ok(mut writing) => {
            let deleted = sqlx::query(
                "DELETE FROM pending WHERE (consumer, seq) IN \
                 (SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?))",
            )
            .bind(format!("{pairs:?}"))
            .execute(&mut *writing)
            .await;
            writing.done("acknowledge a message to", deleted).map(|_| ())
        }
        Err(error) => Err(error),
    };
    let result = result.map_err(Arc::new);
    for ack in waiting {
        // Nobody may wait for it any more.
        let _ = ack.tell.send(result.clone());
    }
}
