//! The hooks on a connection that tell who ends its transaction, and let nobody but the runtime commit it.

use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

use sqlx::SqliteConnection;

/// Nothing is guarded: the connection is not ours.
const OFF: u8 = 0;
/// A transaction of ours is open; whoever ends it now is not us.
const ARMED: u8 = 1;
/// We are ending it.
const ENDING: u8 = 2;
/// Somebody else tried to commit it, which the hook turned into a rollback.
const COMMITTED: u8 = 3;
/// Somebody else rolled it back.
const ROLLED_BACK: u8 = 4;

/// The handler is gone and we roll back: what still runs for it is stopped, and can't commit.
const ABANDONED: u8 = 5;
/// As it was stopped, SQLite rolled the transaction back.
const STOPPED: u8 = 6;

/// After how many steps of SQLite's machine a statement looks whether it is still wanted: some ten times a millisecond.
const STEPS: i32 = 1_000;

/// Watches one connection. While armed, every COMMIT is refused and every ROLLBACK is noticed, and since a statement
/// outside a transaction commits by itself, nothing at all can be written once our transaction is gone.
#[derive(Clone, Debug)]
pub(super) struct Guard(Arc<AtomicU8>);

impl Guard {
    /// Installs the hooks, unarmed. What they replace is gone: a connection has one hook of each kind.
    pub(super) async fn install(conn: &mut SqliteConnection) -> sqlx::Result<Self> {
        let state = Arc::new(AtomicU8::new(OFF));
        let mut handle = conn.lock_handle().await?;
        let on_commit = state.clone();
        handle.set_commit_hook(move || {
            let foreign = !matches!(on_commit.load(Ordering::SeqCst), OFF | ENDING);
            note(&on_commit, ARMED, COMMITTED);
            !foreign
        });
        let on_rollback = state.clone();
        handle.set_rollback_hook(move || {
            note(&on_rollback, ARMED, ROLLED_BACK);
            note(&on_rollback, ABANDONED, STOPPED);
        });
        let on_progress = state.clone();
        handle.set_progress_handler(STEPS, move || {
            !matches!(on_progress.load(Ordering::SeqCst), ABANDONED | STOPPED)
        });
        Ok(Self(state))
    }

    /// From now on the transaction is the handler's to use and ours to end.
    pub(super) fn arm(&self) {
        self.0.store(ARMED, Ordering::SeqCst);
    }

    /// From now on the transaction is ended by us, unless somebody else has done it: then the error says who.
    pub(super) fn ending(&self) -> Result<(), &'static str> {
        self.leave_to(ENDING)
    }

    /// From now on nothing is wanted any more of what still runs on the connection; the rest as [`ending`](Self::ending).
    pub(super) fn abandoning(&self) -> Result<(), &'static str> {
        self.leave_to(ABANDONED)
    }

    /// Nothing runs any more. Returns whether the transaction is still there to be rolled back.
    pub(super) fn abandoned(&self) -> bool {
        self.0
            .compare_exchange(ABANDONED, ENDING, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    /// The connection is to be closed, as soon as what runs on it has been stopped.
    pub(super) fn stop(&self) {
        self.0.store(ABANDONED, Ordering::SeqCst);
    }

    fn leave_to(&self, next: u8) -> Result<(), &'static str> {
        match self.0.compare_exchange(ARMED, next, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => Ok(()),
            Err(COMMITTED) => Err("the handler ran COMMIT on the transaction that it was lent; nothing was committed"),
            Err(_) => Err(
                "the transaction was rolled back while the handler had it: it ran ROLLBACK, or swallowed the error of a \
                 statement that rolls back (OR ROLLBACK, a full disk)",
            ),
        }
    }

    /// The connection is the pool's again.
    pub(super) fn disarm(&self) {
        self.0.store(OFF, Ordering::SeqCst);
    }
}

/// Notes who ended the transaction, unless somebody did before.
fn note(state: &AtomicU8, before: u8, who: u8) {
    let _ = state.compare_exchange(before, who, Ordering::SeqCst, Ordering::SeqCst);
}
