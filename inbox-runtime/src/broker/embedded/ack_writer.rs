//! Writes the queued acks of one process in one statement: a transaction costs more than its rows.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::{ack_queue::QueuedAck, connection::ConnectionGuard, shared::EmbeddedShared};
use crate::broker::BrokerError;

/// Deletes the pending row of a message, whoever has its lease: the work is done.
///
/// # Cancel safety
///
/// Dropped, the message may or may not be acknowledged.
pub(super) async fn acknowledge(shared: &Arc<EmbeddedShared>, consumer: i64, seq: i64) -> Result<(), BrokerError> {
    // Twice: the writing task ends with its tokio runtime, which needn't be ours.
    for _ in 0..2 {
        let (done, written) = oneshot::channel();
        if shared.acks.push(QueuedAck { consumer, seq, done }) {
            // A task of its own: it holds the write turn, which in here would wait for whoever polls this future.
            tokio::spawn(write_all(Arc::clone(shared)));
        }
        if let Ok(result) = written.await {
            return result.map_err(|error| error.copied());
        }
    }
    Err(BrokerError::Unavailable {
        message: "the acknowledgement was not written to the embedded broker: the runtime has ended".to_owned(),
        source: None,
    })
}

/// The writing task: writes acks until there are none.
async fn write_all(shared: Arc<EmbeddedShared>) {
    let mut guard = AbortGuard {
        shared: &shared,
        done: false,
    };
    while !shared.acks.is_written() {
        // Not synced: an ack that a power failure undoes causes a redelivery, as one lost on a network does.
        let connection = match shared.db().await {
            Ok(db) => db.relaxed_writer().await,
            Err(error) => Err(error),
        };
        write(shared.acks.take(), connection).await;
    }
    guard.done = true;
}

/// Resets the queue when the task is aborted.
struct AbortGuard<'a> {
    shared: &'a EmbeddedShared,
    done: bool,
}

impl Drop for AbortGuard<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.shared.acks.reset();
        }
    }
}

async fn write(acks: Vec<QueuedAck>, connection: Result<ConnectionGuard<'_>, BrokerError>) {
    let pairs: Vec<_> = acks.iter().map(|ack| [ack.consumer, ack.seq]).collect();
    let result = match connection {
        Ok(mut connection) => {
            let deleted = sqlx::query(
                "DELETE FROM pending WHERE (consumer, seq) IN \
                 (SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?))",
            )
            .bind(format!("{pairs:?}"))
            .execute(&mut *connection)
            .await;
            connection.finish("acknowledge a message to", deleted).map(|_| ())
        }
        Err(error) => Err(error),
    };
    let result = result.map_err(Arc::new);
    for ack in acks {
        // The receiver may have been dropped.
        let _ = ack.done.send(result.clone());
    }
}
