//! Handlers that block their thread: nothing can stop them, so an inbox that stops leaves them behind.

use std::{sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use crate::{
    error::{BlockedHandler, BlockedHandlers},
    handler::HandlerMeta,
    pipeline::Running,
};

/// How long a handler that waits for something may take, after it was told to stop now, to be dropped and its message to be
/// given back.
const GRACE: Duration = Duration::from_secs(2);

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
            if !blocked.is_empty() {
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
        BlockedHandlers::new(self.0.iter().flat_map(of).collect())
    }
}
