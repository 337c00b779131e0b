//! The session of a worker on PostgreSQL: begin, claim, seal, commit.
//!
//! Three round trips carry a message when another one follows it: the claim, the handler's statement, and one simple query
//! that seals, commits and begins anew.

use std::time::{Duration, Instant};

use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool, Postgres, Row, pool::PoolConnection, postgres::PgRow};

use super::{PostgresStore, begin_pooled, classify, code, is_definite, trouble, unavailable};
use crate::{
    failpoint::failpoint,
    store::{AbandonError, Claim, Claimed, FaultClass, Fingerprint, FinishError, Session, StoreError, transaction},
};

/// How long a rollback may wait for a statement that a dropped handler left running before that is cancelled.
const ROLLBACK_WAIT: Duration = Duration::from_secs(1);
/// How long closing a connection, or cancelling what runs on it, may take: the server may be gone.
const CLOSE_WAIT: Duration = Duration::from_secs(1);
/// How often a worker that always has a next message looks whether the server was set to read only.
const LOOK: Duration = Duration::from_secs(5);
/// How long a transaction in which nothing was written may be kept for the next message: its `now()` stands still.
const KEEP: Duration = Duration::from_millis(50);

/// A worker's hold on the database: one connection, and the transaction that is open on it.
#[derive(Debug)]
pub struct PostgresSession {
    store: PostgresStore,
    /// `None` when it was closed; the next transaction opens another.
    conn: Option<PoolConnection<Postgres>>,
    pid: i32,
    opened: Instant,
    /// When it was last seen that the server wants writes.
    looked: Instant,
    /// Whether a statement sees what was committed after its transaction began.
    read_committed: bool,
    open: Option<Open>,
}

/// An open transaction.
#[derive(Debug)]
struct Open {
    since: Instant,
    /// Its id, in digits, once it has one.
    xid: Option<String>,
}

impl Open {
    fn new() -> Self {
        Self {
            since: Instant::now(),
            xid: None,
        }
    }
}

/// What the first statement of a transaction says.
pub(super) struct Inserted {
    pub(super) claimed: Claimed,
    xid: Option<String>,
}

/// A session that isn't released leaves a connection on which writing is forbidden, and perhaps a transaction.
impl Drop for PostgresSession {
    fn drop(&mut self) {
        if let Some(conn) = &mut self.conn {
            conn.close_on_drop();
        }
    }
}

impl PostgresSession {
    pub(super) async fn open(store: &PostgresStore) -> Result<Self, StoreError> {
        let conn = store.pool.acquire().await.map_err(unavailable)?;
        let mut session = Self {
            store: store.clone(),
            conn: Some(conn),
            pid: 0,
            opened: Instant::now(),
            looked: Instant::now(),
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
                       current_setting('default_transaction_read_only')"
            .to_owned();
        if !self.pooled() {
            sql.push_str("; SET default_transaction_read_only = on");
        }
        let asked = async {
            let row = first(self.live()?, sql).await?;
            Ok((
                row.try_get(0)?,
                row.try_get::<String, _>(1)?,
                row.try_get::<String, _>(2)?,
            ))
        };
        let (pid, isolation, read_only) = asked.await.map_err(trouble)?;
        self.pid = pid;
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
                return transaction::begin::<Postgres>(conn, "BEGIN READ WRITE").await;
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

    fn live(&mut self) -> sqlx::Result<&mut PoolConnection<Postgres>> {
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
    async fn recover(&mut self, error: &sqlx::Error) {
        let again = code(error).is_some_and(|code| classify(&code) != FaultClass::Stale);
        if !again || !is_definite(error) || self.rollback().await.is_err() {
            self.close().await;
        }
    }

    /// Rolls back everything that is open.
    async fn rollback(&mut self) -> sqlx::Result<()> {
        let conn = self.live()?;
        while transaction::depth::<Postgres>(conn) > 0 {
            transaction::rollback::<Postgres>(conn).await?;
        }
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

    /// The claim, or at least the transaction's id, within `lock_wait`.
    async fn first_statement(&mut self, claim: Option<&Claim<'_>>) -> Result<Inserted, StoreError> {
        let (pool, pid, lock_wait) = (self.store.pool.clone(), self.pid, self.store.settings.lock_wait);
        let conn = self.live().map_err(unavailable)?;
        match within(lock_wait, conn, claim, || cancel(&pool, pid)).await {
            Some(Ok(inserted)) => Ok(inserted),
            Some(Err(error)) => {
                self.recover(&error).await;
                Err(trouble(error))
            }
            None => {
                // The cancel may come late and hit whatever runs then, so that this connection runs nothing else.
                self.close().await;
                let why = format!("another transaction has held the inbox row for more than {lock_wait:?}");
                Err(StoreError::Locked(why.into()))
            }
        }
    }

    /// Proves that the transaction is alive and ours, and runs `then` only if it is, in one round trip.
    async fn seal(&mut self, then: &str) -> sqlx::Result<()> {
        // Our own digits are the only thing that is put into the text.
        let xid = self.open.as_ref().and_then(|open| open.xid.as_deref()).unwrap_or("0");
        let sql = format!("SELECT 1/(pg_current_xact_id() = '{xid}'::xid8)::int{then}");
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut **self.live()?).await?;
        Ok(())
    }

    /// Seals and commits. With `chain` the next transaction begins in the same round trip.
    async fn commit(&mut self, chain: bool) -> sqlx::Result<()> {
        if chain {
            self.seal("; COMMIT AND CHAIN").await?;
            self.open = Some(Open::new());
            return Ok(());
        }
        self.seal("").await?;
        transaction::commit::<Postgres>(self.live()?).await?;
        self.open = None;
        Ok(())
    }

    /// After the handler's failure: whether the transaction was still ours tells the seal, and where that can't be asked
    /// because a statement failed, the server's record of what became of it.
    async fn roll_back_sealed(&mut self) -> Result<(), AbandonError> {
        match self.seal("").await {
            Ok(()) => return self.rollback().await.map_err(AbandonError::Lost),
            Err(error) => match code(&error).as_deref() {
                Some("25P02") => {}
                Some("22012") => return Err(AbandonError::Broken(ENDED.to_owned())),
                _ => return Err(AbandonError::Lost(error)),
            },
        }
        let xid = self.open.as_ref().and_then(|open| open.xid.clone());
        self.rollback().await.map_err(AbandonError::Lost)?;
        let asked = async {
            let sql = format!("SELECT pg_xact_status('{}'::xid8)", xid.as_deref().unwrap_or("0"));
            first(self.live()?, sql).await?.try_get::<Option<String>, _>(0)
        };
        let status = asked.await.map_err(AbandonError::Lost)?;
        if status.as_deref() == Some("committed") {
            return Err(AbandonError::Broken(ENDED.to_owned()));
        }
        Ok(())
    }
}

const ENDED: &str = "the handler ended the transaction that it was lent (COMMIT, ROLLBACK, or a `begin()` that was dropped \
                     before it was done)";
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
        self.ready().await?;
        failpoint!("after_begin");
        let inserted = self.first_statement(claim).await?;
        if let Some(open) = &mut self.open {
            open.xid = inserted.xid;
        }
        if claim.is_some() {
            failpoint!("after_claim");
        }
        Ok(inserted.claimed)
    }

    fn conn(&mut self) -> &mut PgConnection {
        match &mut self.conn {
            Some(conn) => conn,
            None => unreachable!("the pipeline uses the connection between begin and finish only"),
        }
    }

    async fn finish(&mut self, next: bool) -> Result<(), FinishError> {
        if transaction::depth::<Postgres>(self.live().map_err(FinishError::Unknown)?) > 1 {
            self.close().await;
            return Err(FinishError::Broken(NESTED.to_owned()));
        }
        failpoint!("before_commit");
        let old = self.is_old();
        let chain = next && !old && !self.pooled() && self.looked.elapsed() < LOOK;
        let error = match self.commit(chain).await {
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
            if !self.pooled() {
                sqlx::raw_sql("RESET default_transaction_read_only")
                    .execute(&mut **self.live()?)
                    .await?;
            }
            Ok::<_, sqlx::Error>(())
        };
        let clean = tokio::time::timeout(CLOSE_WAIT, clean)
            .await
            .is_ok_and(|clean| clean.is_ok());
        match self.conn.take() {
            // Back to the pool.
            Some(conn) if clean => drop(conn),
            Some(mut conn) => conn.close_on_drop(),
            None => {}
        }
    }
}

/// Runs the first statement of a transaction. When it has no answer within `wait`, it is cancelled, and there is none.
async fn within<F: Future<Output = ()>>(
    wait: Duration,
    conn: &mut PgConnection,
    claim: Option<&Claim<'_>>,
    cancel: impl FnOnce() -> F,
) -> Option<sqlx::Result<Inserted>> {
    let mut statement = std::pin::pin!(async {
        match claim {
            Some(claim) => insert(conn, claim).await,
            None => number(conn).await,
        }
    });
    if let Ok(answer) = tokio::time::timeout(wait, statement.as_mut()).await {
        return Some(answer);
    }
    cancel().await;
    let _ = tokio::time::timeout(CLOSE_WAIT, statement).await;
    None
}

/// Inserts the inbox row, or says whose row is there: one statement for both, in which the second part is asked only if
/// the first inserted nothing.
pub(super) async fn insert(conn: &mut PgConnection, claim: &Claim<'_>) -> sqlx::Result<Inserted> {
    loop {
        let (xid, kept): (Option<String>, Option<i64>) = sqlx::query_as(
            "WITH claim AS (INSERT INTO inbox_events (consumer_group, message_id, fingerprint) VALUES ($1, $2, $3) \
             ON CONFLICT (consumer_group, message_id) DO NOTHING RETURNING pg_current_xact_id()::text AS xid) \
             SELECT (SELECT xid FROM claim), CASE WHEN EXISTS (SELECT FROM claim) THEN NULL ELSE \
             (SELECT fingerprint FROM inbox_events WHERE consumer_group = $1 AND message_id = $2) END",
        )
        .bind(claim.group)
        .bind(claim.message_id)
        .bind(claim.fingerprint.to_i64())
        .fetch_one(&mut *conn)
        .await?;
        let claimed = match (&xid, kept) {
            (Some(_), _) => Claimed::Fresh,
            (None, Some(kept)) => Claimed::Duplicate(Fingerprint::from_i64(kept)),
            // It was committed while the statement waited for it, so that only the next statement sees it; or it was
            // deleted since, and makes room for ours.
            (None, None) => continue,
        };
        return Ok(Inserted { claimed, xid });
    }
}

/// The transaction's id, for a message that isn't claimed.
async fn number(conn: &mut PgConnection) -> sqlx::Result<Inserted> {
    let xid = sqlx::query_scalar("SELECT pg_current_xact_id()::text")
        .fetch_one(conn)
        .await?;
    Ok(Inserted {
        claimed: Claimed::Fresh,
        xid: Some(xid),
    })
}

/// Cancels what runs on a connection, through another one that no pool can withhold.
async fn cancel(pool: &PgPool, pid: i32) {
    let cancel = async {
        let mut conn = PgConnection::connect_with(&pool.connect_options()).await?;
        first(&mut conn, format!("SELECT pg_cancel_backend({pid})")).await?;
        conn.close().await
    };
    match tokio::time::timeout(CLOSE_WAIT, cancel).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a statement could not be cancelled"),
        Err(_) => tracing::debug!("a statement could not be cancelled in time"),
    }
}

/// The first row of a simple query, whose text has nothing in it that isn't ours. Outside of a transaction it is the only
/// kind that a transaction pooler doesn't spread over several connections.
async fn first(conn: &mut PgConnection, sql: String) -> sqlx::Result<PgRow> {
    let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(conn).await?;
    rows.into_iter().next().ok_or(sqlx::Error::RowNotFound)
}

fn refuse_read_only(setting: &str) -> Result<(), StoreError> {
    if setting == "on" {
        let why = "default_transaction_read_only is on for this server, database or role";
        return Err(StoreError::Unavailable(why.into()));
    }
    Ok(())
}
