//! The next message of a worker, whose transaction may begin in the commit of the current one.

use crate::store::NextTx;

/// Prefetches a worker's next message.
pub(crate) trait Lookahead: Send {
    /// Prefetches a message, if one is ready and none is prefetched, and says how its transaction begins.
    fn prefetch(&mut self) -> NextTx<'_>;
}

/// There is no next message.
pub(crate) struct NoLookahead;

impl Lookahead for NoLookahead {
    fn prefetch(&mut self) -> NextTx<'_> {
        NextTx::None
    }
}
