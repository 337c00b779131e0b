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
    begin_pooled, claim_trouble, classify, code, is_definite,
    seal::{ENDED, UNPREPARED},
    statements::{CLOSE_WAIT, First, Inserted, cancel, first, within},
    trouble, unavailable,
};
use crate::{
    failpoint::failpoint,
    store::{
        AbandonError, Claim, Claimed, FaultClass, FinishError, Following, Session, StoreError,
        transaction::{self, TxConnection},
    },
};

/// How long a rollback may wait for a statement that a dropped handler left running before that is cancelled.
const ROLLBACK_WAIT: Duration = Duration::from_secs(1);
/// How often a worker that always has a next message looks whether the server was set to read only.
const LOOK: Duration = Duration::from_secs(5);
/// After how many duplicates in a row the next message is taken to be one too.
const STREAK: u32 = 2;
/// How long a transaction in which nothing was written may be kept for the next message: its `now()` stands still.
const KEEP: Duration = Duration::from_millis(50);

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
    /// The bound on lock waits of the handler's own statements, as the server writes it.
    pub(super) lock_timeout: String,
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
            lock_timeout: String::new(),
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
        let mut sql = "SELECT pg_backend_pid(), current_setting('default_transaction_isolation'), \
                       current_setting('default_transaction_read_only'), \
                       (SELECT setting FROM pg_settings WHERE name = 'lock_timeout')"
            .to_owned();
        if !self.pooled() {
            sql.push_str("; SET default_transaction_read_only = on");
        }
        let seal = !self.store.plain.load(Ordering::Relaxed);
        if seal {
            sql.push_str("; PREPARE inbox_seal (xid8) AS SELECT 1/(pg_current_xact_id() = $1)::int");
        }
        let asked = async {
            let row = first(self.live()?, sql).await?;
            Ok((
                row.try_get(0)?,
                row.try_get::<String, _>(1)?,
                row.try_get::<String, _>(2)?,
                row.try_get::<String, _>(3)?,
            ))
        };
        let (pid, isolation, read_only, lock_timeout) = asked.await.map_err(trouble)?;
        self.pid = pid;
        self.named.seal = seal;
        // In milliseconds.
        self.lock_timeout = lock_timeout;
        self.read_committed = isolation == "read committed";
        refuse_read_only(&read_only)
    }

    /// Looks again whether the server wants writes: our own setting hides from this session that it was set to read only.
    async fn look(&mut self) -> Result<(), StoreError> {
        if self.pooled() || self.looked.elapsed() < LOOK {
            return Ok(());
        }
        let sql = "SELECT reset_val FROM pg_settings WHERE name = 'default_transaction_read_only'".to_owned();
        let asked = async { first(self.live()?, sql).await?.try_get::<String, _>(0) };
        refuse_read_only(&asked.await.map_err(trouble)?)?;
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
        let pooled = self.pooled();
        let opened = async {
            let conn = self.live()?;
            if !pooled {
                return conn.begin("BEGIN READ WRITE").await;
            }
            begin_pooled(conn).await?;
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
                Err(trouble(error))
            }
        }
    }

    fn pooled(&self) -> bool {
        self.store.settings.transaction_pooler
    }

    pub(super) fn live(&mut self) -> sqlx::Result<&mut TxConnection<Postgres>> {
        self.conn.as_mut().ok_or(sqlx::Error::PoolClosed)
    }

    /// Closes the connection; the server rolls back what is open on it.
    async fn close(&mut self) {
        self.open = None;
        if let Some(conn) = self.conn.take() {
            let _ = tokio::time::timeout(CLOSE_WAIT, conn.close()).await;
        }
    }

    /// After an error of the server's in one of our own statements: the connection can go on after a rollback, unless
    /// its prepared statements are out of date or nothing is certain any more.
    pub(super) async fn recover(&mut self, error: &sqlx::Error) {
        let again = code(error).is_some_and(|code| classify(&code) != FaultClass::Stale);
        if !again || !is_definite(error) || self.rollback().await.is_err() {
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

    /// Opens a transaction, unless there is one, and claims in it.
    async fn begin_and_claim(&mut self, claim: Option<&Claim<'_>>) -> Result<Claimed, StoreError> {
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
        let conn = self.live().map_err(unavailable)?;
        match within(lock_wait, conn, first, || cancel(&pool, pid)).await {
            Some(Ok(inserted)) => Ok(inserted),
            Some(Err(error)) => {
                self.recover(&error).await;
                Err(claim_trouble(error))
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

const SWALLOWED: &str = "a statement of the handler failed and its error was ignored, after which PostgreSQL commits \
                         nothing; return the error, or run the statement in a nested transaction";
const NESTED: &str = "the handler left a nested transaction open; commit it, roll it back or let it drop";

impl Session for PostgresSession {
    type Conn = PgConnection;

    /// Reading and beginning are what the handler needs; a server that can't be written to refuses to begin.
    async fn probe(&mut self) -> Result<(), StoreError> {
        self.ready().await?;
        self.first_statement(None).await?;
        self.rollback().await.map_err(trouble)
    }

    async fn begin(&mut self, claim: Option<&Claim<'_>>) -> Result<Claimed, StoreError> {
        let claimed = match self.open.as_mut().and_then(|open| open.ahead.take()) {
            Some(ahead) if ahead.is(claim) => {
                self.duplicates = 0;
                failpoint!("after_begin");
                Claimed::Fresh
            }
            ahead => {
                if ahead.is_some() {
                    // It holds the claim of a message that was taken out of this worker's hands.
                    self.rollback().await.map_err(trouble)?;
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

    async fn finish(&mut self, following: Following<'_>) -> Result<(), FinishError> {
        if transaction::depth::<Postgres>(self.live().map_err(FinishError::Unknown)?) > 1 {
            self.close().await;
            return Err(FinishError::Broken(NESTED.to_owned()));
        }
        failpoint!("before_commit");
        let old = self.is_old();
        let following = match following {
            _ if old || self.pooled() || self.looked.elapsed() >= LOOK => Following::Nothing,
            Following::Claim(_) if !self.named.seal => Following::Message,
            following => following,
        };
        let error = match self.commit(following).await {
            Ok(()) => {
                if old {
                    self.close().await;
                }
                return Ok(());
            }
            Err(error) => error,
        };
        match (code(&error).as_deref(), is_definite(&error)) {
            (Some("25P02"), _) => {
                self.close().await;
                Err(FinishError::Broken(SWALLOWED.to_owned()))
            }
            (Some("22012"), _) => {
                self.close().await;
                Err(FinishError::Broken(ENDED.to_owned()))
            }
            (Some(sqlstate), true) => {
                if sqlstate == UNPREPARED {
                    self.do_without_names();
                }
                let class = classify(sqlstate);
                self.recover(&error).await;
                match class {
                    FaultClass::Again | FaultClass::Stale => Err(FinishError::Again(error)),
                    FaultClass::Handler => Err(FinishError::Refused(error)),
                    FaultClass::Unavailable => Err(FinishError::Unknown(error)),
                }
            }
            _ => {
                self.close().await;
                Err(FinishError::Unknown(error))
            }
        }
    }

    async fn abandon(&mut self) -> Result<(), AbandonError> {
        if self.conn.is_none() {
            return Ok(());
        }
        let (pool, pid) = (self.store.pool.clone(), self.pid);
        match tokio::time::timeout(ROLLBACK_WAIT, self.roll_back_sealed()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                self.close().await;
                Err(error)
            }
            // A statement of the dropped handler still runs. It ends with the connection, which the server notices only
            // when it is told.
            Err(_) => {
                cancel(&pool, pid).await;
                self.close().await;
                Ok(())
            }
        }
    }

    async fn discard(&mut self) -> Result<(), StoreError> {
        let fresh = self.open.as_ref().is_some_and(|open| open.since.elapsed() < KEEP);
        if fresh && self.read_committed && !self.pooled() {
            return Ok(());
        }
        if let Err(error) = self.rollback().await {
            self.close().await;
            return Err(trouble(error));
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

fn refuse_read_only(setting: &str) -> Result<(), StoreError> {
    if setting == "on" {
        let why = "default_transaction_read_only is on for this server, database or role";
        return Err(StoreError::Unavailable(why.into()));
    }
    Ok(())
}
