//! How a session takes over a connection of the pool: what it learns, what it sets and prepares, and how it undoes that.

use std::time::{Duration, Instant};

use sqlx::Row;

use super::{
    connection::{CLOSE_WAIT, PostgresSession, PreparedNames},
    errors::own_statement,
    pool::PostgresStore,
    seal::Seal,
    simple_query::query_first,
};
use crate::store::StoreError;

/// How often a worker that always has a next message checks whether the server was set to read only.
pub(super) const CHECK_WRITABLE_EVERY: Duration = Duration::from_secs(5);

/// What a session must know of its connection, in one row: the server process, the isolation and whether the server accepts
/// writes; the schema of the inbox's tables, quoted; and the settings that were made on the session before it was lent, as
/// calls that make them again.
///
/// Custom settings (`app.tenant`) are not listed by PostgreSQL.
const LEARN: &str = "SELECT pg_backend_pid(), current_setting('default_transaction_isolation'), \
    current_setting('default_transaction_read_only'), quote_ident(current_schema()), \
    (SELECT string_agg(format(', set_config(%L, %L, false)', name, setting), '') FROM (\
        SELECT name, current_setting(name) AS setting FROM pg_settings WHERE source = 'session' \
            AND context IN ('user', 'superuser') AND name NOT IN ('role', 'session_authorization', \
            'default_transaction_read_only', 'transaction_read_only', 'transaction_isolation', 'transaction_deferrable') \
        UNION ALL SELECT 'role', current_setting('role') WHERE current_setting('role') <> 'none') AS kept)";

impl PostgresSession {
    pub(super) async fn open(store: &PostgresStore) -> Result<Self, StoreError> {
        let mut conn = store.acquire().await?;
        // A session that isn't released leaves a connection on which writing is forbidden.
        conn.taint();
        let mut session = Self {
            store: store.clone(),
            conn: Some(conn),
            pid: 0,
            opened: Instant::now(),
            checked_writable: Instant::now(),
            prepared: PreparedNames::default(),
            duplicates: 0,
            restore: String::new(),
            read_committed: false,
            open: None,
        };
        session.set_up().await?;
        Ok(session)
    }

    /// Learns what must be known of the connection, and forbids it to write outside of our transactions, which are
    /// declared to write: what a handler writes after it has lost our transaction then fails instead of committing by
    /// itself. Behind a transaction pooler that setting would stay with a server connection that others use.
    ///
    /// It is one simple query, which a transaction pooler can't split.
    async fn set_up(&mut self) -> Result<(), StoreError> {
        let named = self.store.may_name_statements();
        let mut sql = LEARN.to_owned();
        if !self.is_pooled() {
            sql.push_str("; SET default_transaction_read_only = on");
        }
        if named {
            sql.push_str(&self.prepare_seal());
        }
        let asked = async {
            let row = query_first(self.live()?, sql).await?;
            Ok((
                row.try_get(0)?,
                row.try_get::<String, _>(1)?,
                row.try_get::<String, _>(2)?,
                row.try_get::<Option<String>, _>(3)?,
                row.try_get::<Option<String>, _>(4)?,
            ))
        };
        let (pid, isolation, read_only, schema, restore) = asked.await.map_err(own_statement)?;
        self.pid = pid;
        self.prepared.seal = named;
        self.read_committed = isolation == "read committed";
        self.store.set_schema(schema.as_deref());
        refuse_read_only(&read_only)?;
        if let Some(restore) = restore {
            // The pool, or the program, has made settings on its connections: they are kept.
            self.restore = restore;
            if named {
                let sql = format!("DEALLOCATE inbox_seal{}", self.prepare_seal());
                self.run(sql).await.map_err(own_statement)?;
            }
        }
        Ok(())
    }

    /// Prepares the seal, as a statement after others.
    fn prepare_seal(&self) -> String {
        let seal = Seal {
            xid: "$1",
            own: !self.is_pooled(),
            restore: &self.restore,
        };
        format!("; PREPARE inbox_seal (xid8) AS {seal}")
    }

    /// Whether the check that the server accepts writes is due.
    pub(super) fn is_writable_check_due(&self) -> bool {
        self.checked_writable.elapsed() >= CHECK_WRITABLE_EVERY
    }

    /// Checks, if it is due, that the server accepts writes: our own setting hides from this session that it was set to read
    /// only.
    pub(super) async fn check_writable(&mut self) -> Result<(), StoreError> {
        if self.is_pooled() || !self.is_writable_check_due() {
            return Ok(());
        }
        let sql = "SELECT reset_val FROM pg_settings WHERE name = 'default_transaction_read_only'".to_owned();
        let asked = async { query_first(self.live()?, sql).await?.try_get::<String, _>(0) };
        refuse_read_only(&asked.await.map_err(own_statement)?)?;
        self.checked_writable = Instant::now();
        Ok(())
    }

    /// Undoes what the session has set and prepared, and returns the connection to the pool; where that fails it is closed.
    pub(super) async fn return_to_pool(mut self) {
        let undo = async {
            self.rollback().await?;
            if self.is_pooled() {
                return Ok(());
            }
            let mut sql = "RESET default_transaction_read_only".to_owned();
            if self.prepared.seal {
                sql.push_str("; DEALLOCATE inbox_seal");
            }
            if self.prepared.claim {
                sql.push_str("; DEALLOCATE inbox_claim");
            }
            self.run(sql).await
        };
        let undone = tokio::time::timeout(CLOSE_WAIT, undo)
            .await
            .is_ok_and(|undone| undone.is_ok());
        if let Some(mut conn) = self.conn.take()
            && undone
        {
            conn.clean();
        }
    }
}

/// Whether the server, the database or the role refuses writes, by what `default_transaction_read_only` was before ours.
pub(super) fn refuse_read_only(setting: &str) -> Result<(), StoreError> {
    if setting == "on" {
        let why = "default_transaction_read_only is on for this server, database or role";
        return Err(StoreError::Unavailable(why.into()));
    }
    Ok(())
}
