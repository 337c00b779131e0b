//! The seal: the last statement before COMMIT or ROLLBACK, which proves that the transaction is alive and ours.

use sqlx::Row;

use super::{
    connection::{PostgresSession, PreparedNames},
    simple_query::query_first,
};

/// What stands before a seal on a session that is the worker's own: it undoes in the handler's own transaction what the handler
/// has left on the session (settings, cursors, channels). The seal makes the settings again that aren't the handler's.
pub(super) const RESET: &str = "RESET ALL; CLOSE ALL; UNLISTEN *; ";

/// The text of a seal. Its first expression fails in every transaction but the one of that id; the others are evaluated only
/// where it doesn't.
///
/// The seal lets the commit veto pass, makes the commit durable whatever the server or the handler has set meanwhile, and (on a
/// session of the worker's own, after [`RESET`]) undoes what a handler may have left on the session: its role, session locks.
/// It can't remove temporary tables, and reports them as its first column.
///
/// It runs for every message, so it sets only what must be set: each `set_config` costs more than the rest together.
pub(super) struct Seal<'a> {
    /// The transaction's id, in digits or as `$1`.
    pub(super) xid: &'a str,
    /// The connection is the worker's own while the worker has it.
    pub(super) own: bool,
    /// What the session was lent with, as `set_config` calls, each after a comma.
    pub(super) restore: &'a str,
}

impl std::fmt::Display for Seal<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { xid, own, restore } = self;
        // Not AND: a planner simplifies `x AND false` to false without evaluating x.
        write!(f, "SELECT 1/(pg_current_xact_id() = {xid})::int = 0 OR ")?;
        if *own {
            f.write_str("pg_my_temp_schema() <> 0")?;
        } else {
            f.write_str("false")?;
        }
        write!(
            f,
            ", set_config('inbox.sealed', {xid}::text, true), \
             CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END"
        )?;
        if *own {
            write!(
                f,
                ", set_config('default_transaction_read_only', 'on', false), \
                 CASE WHEN current_user <> session_user THEN set_config('role', 'none', false) END, \
                 pg_advisory_unlock_all(){restore}"
            )?;
        }
        Ok(())
    }
}

impl PostgresSession {
    /// The seal of the open transaction.
    pub(super) fn seal(&self) -> String {
        // Digits of the server's are the only thing that is put into the text.
        let xid = self.xid().unwrap_or("0");
        if self.prepared.seal {
            return format!("EXECUTE inbox_seal ('{xid}')");
        }
        let seal = Seal {
            xid: &format!("'{xid}'::xid8"),
            own: !self.is_pooled(),
            restore: &self.restore,
        };
        seal.to_string()
    }

    /// Seals. Returns whether the handler left something on the session that the seal can't undo.
    pub(super) async fn run_seal(&mut self) -> sqlx::Result<bool> {
        let reset = if self.is_pooled() { "" } else { RESET };
        let sql = format!("{reset}{}", self.seal());
        query_first(self.live()?, sql).await?.try_get(0)
    }

    /// A handler has deallocated what was prepared by name.
    pub(super) fn stop_naming_statements(&mut self) {
        self.prepared = PreparedNames::default();
        if self.store.stop_naming_statements() {
            tracing::warn!("a handler deallocates prepared statements; the inbox goes on without its own");
        }
    }

    /// Removes the temporary tables that a handler has left on the session.
    pub(super) async fn discard_temp(&mut self) {
        if self.run("DISCARD TEMP".to_owned()).await.is_err() {
            self.close().await;
        }
    }
}
