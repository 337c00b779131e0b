//! Acknowledgements of one process, as many as there are in one statement: a transaction costs more than the rows in it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::{Shared, link::Held};
use crate::{broker::BrokerError, error_chain::text};

/// Acknowledgements that wait to be written.
#[derive(Debug, Default)]
pub(super) struct Acks(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    waiting: Vec<Waiting>,
    /// Whether a task writes them.
    writing: bool,
}

#[derive(Debug)]
struct Waiting {
    consumer: i64,
    seq: i64,
    tell: oneshot::Sender<Result<(), Arc<BrokerError>>>,
}

impl Acks {
    /// Returns whether a task must be started that writes it.
    fn push(&self, waiting: Waiting) -> bool {
        let mut inner = self.lock();
        inner.waiting.push(waiting);
        !std::mem::replace(&mut inner.writing, true)
    }

    fn take(&self) -> Vec<Waiting> {
        std::mem::take(&mut self.lock().waiting)
    }

    /// Whether there are none; the task that asks ends then.
    fn are_written(&self) -> bool {
        let mut inner = self.lock();
        inner.writing = !inner.waiting.is_empty();
        !inner.writing
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Deletes the pending row of a message, whosever it is by now: the work is done.
///
/// Dropped half-way, the message is either acknowledged or not.
pub(super) async fn acknowledge(shared: &Arc<Shared>, consumer: i64, seq: i64) -> Result<(), BrokerError> {
    // The task ends with its runtime, which needn't be that of everybody who waits for it.
    for _ in 0..2 {
        let (tell, told) = oneshot::channel();
        if shared.acks.push(Waiting { consumer, seq, tell }) {
            // A task of its own, for it holds the turn to write: in here that would wait for whoever polls this.
            tokio::spawn(write_all(Arc::clone(shared)));
        }
        if let Ok(answer) = told.await {
            return answer.map_err(own);
        }
    }
    Err(BrokerError::Unavailable {
        message: "the acknowledgement was not written to the embedded broker: the runtime has ended".to_owned(),
        source: None,
    })
}

/// The task that writes acknowledgements, as long as there are any.
async fn write_all(shared: Arc<Shared>) {
    let mut task = Task {
        shared: &shared,
        done: false,
    };
    while !shared.acks.are_written() {
        // Not synced: an ack that a power failure undoes means a redelivery, as an ack that is lost on a network does.
        let writing = match shared.db().await {
            Ok(db) => db.relaxed().await,
            Err(error) => Err(error),
        };
        write(shared.acks.take(), writing).await;
    }
    task.done = true;
}

/// Cut short, the task leaves the acknowledgements to another one.
struct Task<'a> {
    shared: &'a Shared,
    done: bool,
}

impl Drop for Task<'_> {
    fn drop(&mut self) {
        if !self.done {
            *self.shared.acks.lock() = Inner::default();
        }
    }
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
