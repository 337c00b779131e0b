//! Hooks on a connection that tell who ends its transaction, and let nobody but the runtime commit it.

use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

use sqlx::SqliteConnection;

/// Nothing is guarded: the connection is the pool's.
const OFF: u8 = 0;
/// Our transaction is open, and the handler has it.
const ARMED: u8 = 1;
/// We are ending it.
const ENDING: u8 = 2;
/// Somebody else tried to commit it, which the hook turned into a rollback.
const COMMITTED: u8 = 3;
/// Somebody else rolled it back.
const ROLLED_BACK: u8 = 4;
/// The handler's future is dropped and we roll back: a statement that still runs is interrupted, and can't commit.
const ABANDONED: u8 = 5;
/// Interrupting that statement, SQLite rolled the transaction back.
const INTERRUPTED: u8 = 6;

/// After how many virtual machine instructions a statement checks whether it is abandoned: some ten times a millisecond.
const STEPS: i32 = 1_000;

/// The hooks on one connection. While armed, every COMMIT is refused and every ROLLBACK is noticed, and since a statement
/// outside a transaction commits by itself, nothing at all can be written once our transaction has ended.
///
/// Dropped before [`disarm`](Self::disarm), it interrupts what still runs on the connection, which is then to be closed.
#[derive(Debug)]
pub(super) struct Guard(Arc<AtomicU8>);

/// How a transaction ended while a handler had it, as far as the hooks can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The handler ran COMMIT, which was refused.
    Committed,
    /// The handler rolled it back, or SQLite did, which the hook can't tell apart.
    RolledBack,
    /// The handler has set a hook of its own, so that nothing is known.
    Unhooked,
}

impl Ended {
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::Committed => "the handler ran COMMIT on the transaction that it was lent; nothing was committed",
            Self::RolledBack => {
                "the transaction was rolled back while the handler had it: it ran ROLLBACK, or swallowed the error of a \
                 statement that rolls back (OR ROLLBACK, a full disk)"
            }
            Self::Unhooked => {
                "the handler set a commit, rollback or progress hook on the connection that it was lent, in place of those \
                 by which the inbox guards its transaction; set it on a connection of your own"
            }
        }
    }
}

/// The guard itself and its three hooks.
const OWNERS: usize = 4;

impl Guard {
    /// Installs the hooks, unarmed. They replace others: a connection has one hook of each kind.
    pub(super) async fn install(conn: &mut SqliteConnection) -> sqlx::Result<Self> {
        let state = Arc::new(AtomicU8::new(OFF));
        let mut handle = conn.lock_handle().await?;
        let on_commit = state.clone();
        handle.set_commit_hook(move || {
            let foreign = !matches!(on_commit.load(Ordering::SeqCst), OFF | ENDING);
            transition(&on_commit, ARMED, COMMITTED);
            !foreign
        });
        let on_rollback = state.clone();
        handle.set_rollback_hook(move || {
            transition(&on_rollback, ARMED, ROLLED_BACK);
            transition(&on_rollback, ABANDONED, INTERRUPTED);
        });
        let on_progress = state.clone();
        handle.set_progress_handler(STEPS, move || {
            !matches!(on_progress.load(Ordering::SeqCst), ABANDONED | INTERRUPTED)
        });
        Ok(Self(state))
    }

    /// From now on the handler has the transaction.
    pub(super) fn arm(&self) {
        self.0.store(ARMED, Ordering::SeqCst);
    }

    /// From now on we end the transaction, unless it has ended: then the error says how.
    pub(super) fn begin_end(&self) -> Result<(), Ended> {
        self.take_from_handler(ENDING)
    }

    /// As [`begin_end`](Self::begin_end), and interrupts what still runs on the connection.
    pub(super) fn begin_abandon(&self) -> Result<(), Ended> {
        self.take_from_handler(ABANDONED)
    }

    /// To be called when nothing runs any more. Returns whether the transaction is still open.
    pub(super) fn end_abandon(&self) -> bool {
        self.0
            .compare_exchange(ABANDONED, ENDING, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    fn take_from_handler(&self, next: u8) -> Result<(), Ended> {
        // sqlx drops a hook when another one takes its place.
        if Arc::strong_count(&self.0) < OWNERS {
            return Err(Ended::Unhooked);
        }
        match self.0.compare_exchange(ARMED, next, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => Ok(()),
            Err(COMMITTED) => Err(Ended::Committed),
            Err(_) => Err(Ended::RolledBack),
        }
    }

    /// From now on nothing is guarded.
    pub(super) fn disarm(&self) {
        self.0.store(OFF, Ordering::SeqCst);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.0.load(Ordering::SeqCst) != OFF {
            self.0.store(ABANDONED, Ordering::SeqCst);
        }
    }
}

/// Changes the state, if it is still `from`.
fn transition(state: &AtomicU8, from: u8, to: u8) {
    let _ = state.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst);
}
