//! Handlers that block their thread: nothing can stop them, so an inbox that stops leaves them behind.

use std::{fmt, sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use crate::{pipeline::Running, registry::HandlerMeta};

/// How long a handler that waits for something may take, after it was told to stop now, to be dropped and its message to be
/// given back.
const GRACE: Duration = Duration::from_secs(2);

/// The handlers that a stop has left behind, because they block their threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockedHandlers(Vec<BlockedHandler>);

/// A handler that blocks its thread.
#[derive(Clone, Debug, PartialEq, Eq)]
struct BlockedHandler {
    name: &'static str,
    group: &'static str,
    message_id: String,
    running: Duration,
}

impl fmt::Display for BlockedHandlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the inbox stopped without ")?;
        for (index, handler) in self.0.iter().enumerate() {
            let BlockedHandler {
                name,
                group,
                message_id,
                running,
            } = handler;
            let comma = if index == 0 { "" } else { ", " };
            let seconds = running.as_secs_f64();
            write!(
                f,
                "{comma}`{name}` of the group `{group}`, which has been at the message `{message_id}` for {seconds:.1} s"
            )?;
        }
        f.write_str(
            " and blocks its thread: nothing of it will be committed or acknowledged, and the message comes again; let \
             handlers run what blocks in `tokio::task::spawn_blocking`; a runtime that is dropped waits for the thread, \
             so end the process with `std::process::exit`",
        )
    }
}

/// The handlers of an inbox that is running.
pub(super) struct Handlers(pub(super) Vec<(Arc<HandlerMeta>, Running)>);

impl Handlers {
    /// Waits until handlers are still at a message that were told a while ago to stop `now`. A handler that waits for
    /// something is dropped where it waits and so at none.
    pub(super) async fn left_behind(self, now: CancellationToken) -> BlockedHandlers {
        now.cancelled().await;
        loop {
            tokio::time::sleep(GRACE).await;
            let blocked = self.blocked();
            if !blocked.0.is_empty() {
                return blocked;
            }
        }
    }

    fn blocked(&self) -> BlockedHandlers {
        let of = |(meta, running): &(Arc<HandlerMeta>, Running)| {
            let (name, group) = (meta.name, meta.group);
            let blocked = move |(message_id, running)| BlockedHandler {
                name,
                group,
                message_id,
                running,
            };
            running.list().into_iter().map(blocked)
        };
        BlockedHandlers(self.0.iter().flat_map(of).collect())
    }
}

impl BlockedHandlers {
    /// Names them in the log.
    pub(super) fn log(&self) {
        for handler in &self.0 {
            tracing::error!(
                handler = handler.name,
                group = handler.group,
                message_id = handler.message_id,
                "the handler has run for {:.1} s, blocks its thread beyond the shutdown timeout and is left behind: nothing of \
                 it will be committed; let it run what blocks in `tokio::task::spawn_blocking`",
                handler.running.as_secs_f64()
            );
        }
    }
}
