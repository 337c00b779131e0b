//! One worker: handles one message after another.

use std::{sync::Arc, time::Duration};

use super::{
    background_settle::BackgroundSettler,
    fetch::pause,
    prefetch::Prefetch,
    queue::{Queue, Queued},
    stop::{RELEASE_WAIT, Stop},
};
use crate::{
    handler::AckStrategy,
    outcome::Outcome,
    pipeline::{Decoded, Disposition, Pipeline},
    store::{Session, Store},
};

/// How long a worker without a message keeps its session, for the next one may be on its way: opening a session costs more
/// than handling a message.
const LINGER: Duration = Duration::from_millis(20);

/// Handles one message after another, until the queue is closed and empty. The session is kept while there is a next message,
/// and [`LINGER`] longer.
pub(super) async fn work<S: Store>(pipeline: Arc<Pipeline<S>>, queue: Queue, stop: Stop) {
    let mut worker = Worker {
        pipeline: &pipeline,
        queue: &queue,
        stop: &stop,
        session: None,
        settler: BackgroundSettler::new(pipeline.clone(), stop.now.clone()),
        prefetch: Prefetch::new(&pipeline, &queue),
    };
    while let Some((queued, decoded)) = worker.pop().await {
        worker.handle(queued, decoded).await;
    }
    worker.settler.wait_settled().await;
}

struct Worker<'a, S: Store> {
    pipeline: &'a Pipeline<S>,
    queue: &'a Queue,
    stop: &'a Stop,
    session: Option<S::Session>,
    settler: BackgroundSettler<S>,
    prefetch: Prefetch<'a, S>,
}

impl<S: Store> Worker<'_, S> {
    /// The next message; `None` when the queue is closed and empty.
    async fn pop(&mut self) -> Option<(Queued, Option<Decoded<S>>)> {
        if let Some(prefetched) = self.prefetch.take() {
            return Some(prefetched);
        }
        if let Ok(queued) = self.queue.try_recv() {
            return Some((queued, None));
        }
        if self.session.is_some()
            && let Ok(received) = tokio::time::timeout(LINGER, self.queue.recv()).await
        {
            if received.is_err() {
                self.release_session().await;
            }
            return Some((received.ok()?, None));
        }
        self.release_session().await;
        Some((self.wait().await?, None))
    }

    /// Waits for a message. A panic of what is still being settled shows meanwhile, not only once there is a message.
    async fn wait(&mut self) -> Option<Queued> {
        let mut received = std::pin::pin!(self.queue.recv());
        tokio::select! {
            biased;
            received = &mut received => return received.ok(),
            () = self.settler.wait_settled() => {}
        }
        received.await.ok()
    }

    async fn release_session(&mut self) {
        if let Some(session) = self.session.take() {
            session.release().await;
        }
    }

    /// Handles and settles a message, unless the program stops first.
    async fn handle(&mut self, mut queued: Queued, decoded: Option<Decoded<S>>) {
        self.prefetch.current = Some(queued.job.lease.clone());
        let now = &self.stop.now;
        let executed = now
            .run_until_cancelled(self.execute_until_available(&mut queued, decoded))
            .await;
        self.prefetch.current = None;
        let Queued { mut job, lease, slot } = queued;
        let Some(disposition) = executed.flatten() else {
            self.prefetch.drop_next_in_partition();
            drop(lease);
            self.pipeline.release(&mut job, RELEASE_WAIT).await;
            return;
        };
        if !disposition.is_acknowledged() {
            self.prefetch.drop_next_in_partition();
        }
        // The next message begins before this one is settled only where this one is deduplicated if it is redelivered. A dead
        // letter is settled in the database, which the next message may keep busy for long.
        let is_deduplicated = self.pipeline.meta.ack == AckStrategy::ExactlyOnce && !job.is_replay();
        if is_deduplicated && !self.prefetch.has_next_in_partition() {
            // There is room for another one.
            drop(slot);
            self.settler.begin(job, lease, disposition).await;
        } else {
            self.settler.settle(job, lease, disposition).await;
        }
    }

    /// Executes a message, again and again while the database or the broker is unavailable. `None` if the program stops first.
    async fn execute_until_available(
        &mut self,
        queued: &mut Queued,
        mut decoded: Option<Decoded<S>>,
    ) -> Option<Disposition> {
        let pipeline = self.pipeline;
        let mut failures = 0;
        loop {
            if self.stop.drain.is_cancelled() {
                return None;
            }
            queued.lease.handling(pipeline.meta.timeout);
            let drained = queued.job.drained_before_begin(self.stop.drain.clone());
            let disposition = tokio::select! {
                biased;
                disposition = pipeline.execute(
                    &mut self.session,
                    &mut queued.job,
                    decoded.take(),
                    &mut self.prefetch,
                ) => disposition,
                // It waits for the database, which handlers use that are to finish.
                () = drained => return None,
            };
            if !disposition.is_retried_in_place() {
                if disposition.outcome != Outcome::Deferred {
                    pipeline.status.availability.mark_available();
                }
                return Some(disposition);
            }
            pipeline.count(Outcome::Deferred);
            failures += 1;
            self.stop
                .drain
                .run_until_cancelled(tokio::time::sleep(pause(failures)))
                .await;
        }
    }
}
