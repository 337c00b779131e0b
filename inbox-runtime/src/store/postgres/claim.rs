//! The session of a worker on PostgreSQL: begin, claim, seal, commit.
//!
//! When one message follows another, the handler's statement and one simple query carry it: that seals, commits, begins anew
//! and claims the message that follows (`ahead`).

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use sqlx::{PgConnection, Postgres, Row};

use super::{
    PostgresStore,
    ahead::Ahead,
    begin_pooled, code, errors, is_definite,
    seal::Seal,
    statements::{BEGIN, CLOSE_WAIT, First, Inserted, cancel, first, within},
    unavailable,
};
use crate::{
    failpoint::failpoint,
    store::{
        AbandonError, Claim, Claimed, FinishError, NextTx, Session, StoreError,
        transaction::{self, TxConnection},
    },
};

/// How often a worker that always has a next message looks whether the server was set to read only.
const LOOK: Duration = Duration::from_secs(5);
/// After how many duplicates in a row the next message is taken to be one too.
const STREAK: u32 = 2;
/// How long a transaction that is open may be kept for the next message: its `now()` stands still.
const KEEP: Duration = Duration::from_millis(250);

/// A worker's hold on the database: one connection, and the transaction that is open on it.
#[derive(Debug)]
pub struct PostgresSession {
    pub(super) store: PostgresStore,
    /// `None` when it was closed; the next transaction opens another.
    pub(super) conn: Option<TxConnection<Postgres>>,
    pub(super) pid: i32,
    pub(super) opened: Instant,
    /// When it was last seen that the server wants writes.
    pub(super) looked: Instant,
    /// Whether the statements are prepared that are run by name: the seal, and the claim ahead.
    pub(super) named: Named,
    /// What the session was lent with beyond the defaults of its server and role, as the seal sets it again.
    pub(super) restore: String,
    /// How many messages in a row were duplicates.
    pub(super) duplicates: u32,
    /// Whether a statement sees what was committed after its transaction began.
    pub(super) read_committed: bool,
    pub(super) open: Option<Open>,
}

/// What the connection has prepared under names of ours.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Named {
    pub(super) seal: bool,
    pub(super) claim: bool,
}

/// An open transaction.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) since: Instant,
    /// Its id, in digits, once it has one.
    pub(super) xid: Option<String>,
    /// What it has claimed before anybody asked for it.
    pub(super) ahead: Option<Ahead>,
}

impl Open {
    pub(super) fn new() -> Self {
        Self {
            since: Instant::now(),
            xid: None,
            ahead: None,
        }
    }
}

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
            looked: Instant::now(),
            named: Named::default(),
            duplicates: 0,
            restore: String::new(),
            read_committed: false,
            open: None,
        };
        session.prepare().await?;
        Ok(session)
    }

    /// Learns what must be known of the connection, and forbids it to write outside of our transactions, which are
    /// declared to write: what a handler writes after it has lost our transaction then fails instead of committing by
    /// itself. Behind a transaction pooler that setting would stay with a server connection that others use.
    ///
    /// One simple query, which a transaction pooler can't tear apart.
    async fn prepare(&mut self) -> Result<(), StoreError> {
        let named = !self.store.shared.plain.load(Ordering::Relaxed);
        let mut sql = LEARN.to_owned();
        if !self.pooled() {
            sql.push_str("; SET default_transaction_read_only = on");
        }
        if named {
            sql.push_str(&self.prepare_seal());
        }
        let asked = async {
            let row = first(self.live()?, sql).await?;
            Ok((
                row.try_get(0)?,
                row.try_get::<String, _>(1)?,
                row.try_get::<String, _>(2)?,
                row.try_get::<Option<String>, _>(3)?,
                row.try_get::<Option<String>, _>(4)?,
            ))
        };
        let (pid, isolation, read_only, schema, restore) = asked.await.map_err(errors::own)?;
        self.pid = pid;
        self.named.seal = named;
        self.read_committed = isolation == "read committed";
        self.store.shared.found(schema.as_deref());
        refuse_read_only(&read_only)?;
        if let Some(restore) = restore {
            // The pool, or the program, has set something on its connections: it is kept.
            self.restore = restore;
            if named {
                let sql = format!("DEALLOCATE inbox_seal{}", self.prepare_seal());
                self.run(sql).await.map_err(errors::own)?;
            }
        }
        Ok(())
    }

    /// Prepares the seal, as statements behind others.
    fn prepare_seal(&self) -> String {
        let seal = Seal {
            xid: "$1",
            own: !self.pooled(),
            restore: &self.restore,
        };
        format!("; PREPARE inbox_seal (xid8) AS {seal}")
    }

    /// Looks again whether the server wants writes: our own setting hides from this session that it was set to read only.
    async fn look(&mut self) -> Result<(), StoreError> {
        if self.pooled() || self.looked.elapsed() < LOOK {
            return Ok(());
        }
        let sql = "SELECT reset_val FROM pg_settings WHERE name = 'default_transaction_read_only'".to_owned();
        let asked = async { first(self.live()?, sql).await?.try_get::<String, _>(0) };
        refuse_read_only(&asked.await.map_err(errors::own)?)?;
        self.looked = Instant::now();
        Ok(())
    }

    /// Sees to it that there is a connection with an open transaction.
    async fn ready(&mut self) -> Result<(), StoreError> {
        if self.conn.is_none() {
            *self = Self::open(&self.store).await?;
        }
        if self.open.is_none() {
            self.look().await?;
            self.open_transaction().await?;
        }
        Ok(())
    }

    /// Opens a transaction.
    async fn open_transaction(&mut self) -> Result<(), StoreError> {
        let (pooled, parked) = (self.pooled(), self.parked());
        let opened = async {
            if parked {
                return self.run(BEGIN.to_owned()).await;
            }
            let conn = self.live()?;
            if !pooled {
                return conn.begin(BEGIN).await;
            }
            begin_pooled(conn, BEGIN).await?;
            // Each transaction may be on another connection of the pooler's.
            let row = first(conn, "SELECT pg_backend_pid()".to_owned()).await?;
            self.pid = row.try_get(0)?;
            Ok(())
        };
        match opened.await {
            Ok(()) => {
                self.open = Some(Open::new());
                Ok(())
            }
            Err(error) => {
                self.close().await;
                Err(errors::own(error))
            }
        }
    }

    pub(super) fn pooled(&self) -> bool {
        self.store.pooled()
    }

    pub(super) fn live(&mut self) -> sqlx::Result<&mut TxConnection<Postgres>> {
        self.conn.as_mut().ok_or(sqlx::Error::PoolClosed)
    }

    /// Closes the connection; the server rolls back what is open on it.
    pub(super) async fn close(&mut self) {
        self.open = None;
        if let Some(conn) = self.conn.take() {
            let _ = tokio::time::timeout(CLOSE_WAIT, conn.close()).await;
        }
    }

    /// After an error of the server's in one of our own statements: the connection can go on after a rollback, unless
    /// its prepared statements are out of date or nothing is certain any more.
    pub(super) async fn recover(&mut self, error: &sqlx::Error) {
        let stale = matches!(code(error).as_deref(), Some("0A000" | "26000" | "42P05"));
        if stale || !is_definite(error) || self.rollback().await.is_err() {
            self.close().await;
        }
    }

    /// Rolls back everything that is open.
    pub(super) async fn rollback(&mut self) -> sqlx::Result<()> {
        let conn = self.live()?;
        conn.rollback().await?;
        // It still has settings that are ours.
        conn.taint();
        self.open = None;
        Ok(())
    }

    /// Whether the connection is older than its pool wants it to be.
    fn is_old(&self) -> bool {
        self.store
            .pool
            .options()
            .get_max_lifetime()
            .is_some_and(|max| self.opened.elapsed() > max)
    }

    /// Begins after a commit that has begun nothing, in the round trip of the first statement.
    async fn begin_numbered(&mut self) -> Result<Claimed, StoreError> {
        self.look().await?;
        let begun = async {
            let sql = format!("{BEGIN}; SELECT pg_current_xact_id()::text");
            first(self.live()?, sql).await?.try_get(0)
        };
        match begun.await {
            Ok(xid) => {
                let mut open = Open::new();
                open.xid = Some(xid);
                self.open = Some(open);
                Ok(Claimed::Fresh)
            }
            Err(error) => {
                self.close().await;
                Err(errors::own(error))
            }
        }
    }

    /// Whether sqlx counts a transaction that has been committed: the last commit was ours and has begun nothing.
    fn parked(&self) -> bool {
        let depth = self.conn.as_ref().map(|conn| transaction::depth::<Postgres>(conn));
        self.open.is_none() && depth == Some(1)
    }

    /// Opens a transaction, unless there is one, and claims in it.
    async fn begin_and_claim(&mut self, claim: Option<&Claim<'_>>) -> Result<Claimed, StoreError> {
        if claim.is_none() && self.parked() {
            return self.begin_numbered().await;
        }
        self.ready().await?;
        failpoint!("after_begin");
        let inserted = self.first_statement(claim).await?;
        self.duplicates = match inserted.claimed {
            Claimed::Fresh => 0,
            Claimed::Duplicate(_) => self.duplicates.saturating_add(1),
        };
        if let Some(open) = &mut self.open {
            open.xid = inserted.xid;
        }
        Ok(inserted.claimed)
    }

    /// The claim, or at least the transaction's id, within `lock_wait`.
    async fn first_statement(&mut self, claim: Option<&Claim<'_>>) -> Result<Inserted, StoreError> {
        let (pool, pid, lock_wait) = (self.store.pool.clone(), self.pid, self.store.settings.lock_wait);
        let first = match claim {
            None => First::Number,
            Some(claim) if self.duplicates >= STREAK => First::LookAndClaim(claim),
            Some(claim) => First::Claim(claim),
        };
        let statements = self.store.shared.statements();
        let conn = self.live().map_err(unavailable)?;
        match within(lock_wait, conn, &statements, first, || cancel(&pool, pid)).await {
            Some(Ok(inserted)) => Ok(inserted),
            Some(Err(error)) => {
                self.recover(&error).await;
                Err(errors::claim(error))
            }
            None => {
                // The cancel may come late and hit whatever runs then, so that this connection runs nothing else.
                self.close().await;
                let why = format!("another transaction has held the inbox row for more than {lock_wait:?}");
                Err(StoreError::Locked(why.into()))
            }
        }
    }
}

impl Session for PostgresSession {
    type Conn = PgConnection;

    /// Reading and beginning are what the handler needs; a server that can't be written to refuses to begin.
    async fn probe(&mut self) -> Result<(), StoreError> {
        self.ready().await?;
        self.first_statement(None).await?;
        self.rollback().await.map_err(errors::own)
    }

    async fn begin(&mut self, claim: Option<&Claim<'_>>) -> Result<Claimed, StoreError> {
        // A transaction begins when its message does: its `now()` stands still, while the one before may be acknowledged.
        let fresh = self.open.as_ref().is_some_and(|open| open.since.elapsed() < KEEP);
        let claimed = match self.open.as_mut().and_then(|open| open.ahead.take()) {
            Some(ahead) if ahead.is(claim) && fresh => {
                self.duplicates = 0;
                failpoint!("after_begin");
                Claimed::Fresh
            }
            ahead => {
                if ahead.is_some() || (self.open.is_some() && !fresh) {
                    // Too old, or it holds the claim of a message that was taken out of this worker's hands.
                    self.rollback().await.map_err(errors::own)?;
                }
                self.begin_and_claim(claim).await?
            }
        };
        if claim.is_some() {
            failpoint!("after_claim");
        }
        Ok(claimed)
    }

    fn conn(&mut self) -> &mut PgConnection {
        match &mut self.conn {
            Some(conn) => conn,
            None => unreachable!("the pipeline uses the connection between begin and finish only"),
        }
    }

    async fn finish(&mut self, next: NextTx<'_>) -> Result<(), FinishError> {
        failpoint!("before_commit");
        let old = self.is_old();
        let next = match next {
            _ if old || self.pooled() || self.looked.elapsed() >= LOOK => NextTx::None,
            NextTx::Claim(_) if !self.named.seal => NextTx::Begin,
            next => next,
        };
        self.seal_and_commit(next).await?;
        if old {
            self.close().await;
        }
        Ok(())
    }

    async fn abandon(&mut self) -> Result<(), AbandonError> {
        self.roll_back_sealed().await
    }

    async fn discard(&mut self) -> Result<(), StoreError> {
        let fresh = self.open.as_ref().is_some_and(|open| open.since.elapsed() < KEEP);
        if fresh && self.read_committed && !self.pooled() {
            return Ok(());
        }
        if let Err(error) = self.rollback().await {
            self.close().await;
            return Err(errors::own(error));
        }
        Ok(())
    }

    async fn release(mut self) {
        let clean = async {
            self.rollback().await?;
            if self.pooled() {
                return Ok(());
            }
            let mut sql = "RESET default_transaction_read_only".to_owned();
            if self.named.seal {
                sql.push_str("; DEALLOCATE inbox_seal");
            }
            if self.named.claim {
                sql.push_str("; DEALLOCATE inbox_claim");
            }
            self.run(sql).await
        };
        let clean = tokio::time::timeout(CLOSE_WAIT, clean)
            .await
            .is_ok_and(|clean| clean.is_ok());
        match self.conn.take() {
            // Back to the pool.
            Some(mut conn) if clean => conn.clean(),
            // Dropped, it is closed.
            _ => {}
        }
    }
}

/// What a session must know of its connection, in one row: the process that serves it, the isolation and whether the server
/// wants writes; the schema of the inbox's tables, quoted; and what was set on the session before it was lent, as calls that set
/// it again.
///
/// Settings of one's own kind (`app.tenant`) are not listed by PostgreSQL.
const LEARN: &str = "SELECT pg_backend_pid(), current_setting('default_transaction_isolation'), \
    current_setting('default_transaction_read_only'), quote_ident(current_schema()), \
    (SELECT string_agg(format(', set_config(%L, %L, false)', name, setting), '') FROM (\
        SELECT name, current_setting(name) AS setting FROM pg_settings WHERE source = 'session' \
            AND context IN ('user', 'superuser') AND name NOT IN ('role', 'session_authorization', \
            'default_transaction_read_only', 'transaction_read_only', 'transaction_isolation', 'transaction_deferrable') \
        UNION ALL SELECT 'role', current_setting('role') WHERE current_setting('role') <> 'none') AS kept)";

/// Whether the server, the database or the role wants no writes, by what `default_transaction_read_only` was before ours.
pub(super) fn refuse_read_only(setting: &str) -> Result<(), StoreError> {
    if setting == "on" {
        let why = "default_transaction_read_only is on for this server, database or role";
        return Err(StoreError::Unavailable(why.into()));
    }
    Ok(())
}
