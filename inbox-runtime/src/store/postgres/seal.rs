//! The seal: proves that a transaction is alive and ours before it is committed, and before a rollback counts as one; and
//! where it can't be asked any more, what became of the transaction.

use std::sync::atomic::Ordering;

use sqlx::{AssertSqlSafe, PgConnection, PgPool, Postgres, Row, postgres::PgSeverity};

use super::{
    ahead::{self, Ahead, Begun, CommitError, RESET},
    claim::{Named, Open, PostgresSession},
    code,
    errors::{self, EndMeaning},
    is_definite, severity,
    statements::{CLOSE_WAIT, DRAIN_WAIT, cancel_behind, direct, first},
};
use crate::store::{AbandonError, Claim, FinishError, NextTx, transaction};

/// SQLSTATE of a prepared statement that isn't there.
pub(super) const UNPREPARED: &str = "26000";

pub(super) const ENDED: &str = "the handler ended the transaction that it was lent (COMMIT, ROLLBACK, or a `begin()` that was dropped \
                     before it was done)";
const SWALLOWED: &str = "a statement of the handler failed and its error was ignored, after which PostgreSQL commits \
                         nothing; return the error, or run the statement in a nested transaction";
const NESTED: &str = "the handler left a nested transaction open; commit it, roll it back or let it drop";
const RUNNING: &str = "a statement that the handler gave up on was still running when the handler returned, so nothing was \
                       committed; wait for it, or let it be cancelled by a `statement_timeout`";

/// The expressions of a seal. The first fails in every transaction but the one of that id; the others are evaluated only
/// where it doesn't.
///
/// The last thing before a commit, it lets the commit veto pass, sees to it that the commit is durable whatever the server
/// or the handler has set meanwhile, and (on a session of the worker's own, behind [`RESET`]) undoes what a handler may have
/// left on the session: its role, session locks. What it can't undo, which is temporary tables, it reports as its first column.
///
/// It runs for every message, so it sets nothing that needn't be set: each `set_config` costs more than the rest together.
pub(super) struct Seal<'a> {
    /// The transaction's id, in digits or as `$1`.
    pub(super) xid: &'a str,
    /// The connection is the worker's own while the worker has it.
    pub(super) own: bool,
    /// What the session was lent with, as `set_config` calls behind a comma.
    pub(super) restore: &'a str,
}

impl std::fmt::Display for Seal<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { xid, own, restore } = self;
        // Not AND, of which a planner takes `x AND false` for false without a look at x.
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
    /// The statement that proves that the transaction is alive and ours: it fails in any other.
    fn seal(&self) -> String {
        // Our own digits are the only thing that is put into the text.
        let xid = self.open.as_ref().and_then(|open| open.xid.as_deref()).unwrap_or("0");
        if self.named.seal {
            return format!("EXECUTE inbox_seal ('{xid}')");
        }
        let seal = Seal {
            xid: &format!("'{xid}'::xid8"),
            own: !self.pooled(),
            restore: &self.restore,
        };
        seal.to_string()
    }

    /// What stands before the seal.
    fn reset(&self) -> &'static str {
        if self.pooled() { "" } else { RESET }
    }

    /// Runs a simple query that gives no rows of interest.
    pub(super) async fn run(&mut self, sql: String) -> sqlx::Result<()> {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut **self.live()?).await?;
        Ok(())
    }

    /// Seals. Returns whether the handler left something on the session that the seal can't undo.
    async fn run_seal(&mut self) -> sqlx::Result<bool> {
        let sql = format!("{}{}", self.reset(), self.seal());
        first(self.live()?, sql).await?.try_get(0)
    }

    /// A handler has deallocated what was prepared.
    fn do_without_names(&mut self) {
        self.named = Named::default();
        if !self.store.shared.plain.swap(true, Ordering::Relaxed) {
            tracing::warn!("a handler deallocates prepared statements; the inbox goes on without its own");
        }
    }

    /// Waits for what the handler has left running on the connection. It fails where that doesn't end, or the connection is
    /// lost; costs nothing where nothing runs.
    async fn drain(&mut self) -> Result<(), Drained> {
        let Some(conn) = &mut self.conn else {
            return Err(Drained::Lost(sqlx::Error::PoolClosed));
        };
        let quiet = async {
            // Each answer that is an error ends one look.
            loop {
                match sqlx::Connection::flush(&mut **conn).await {
                    Ok(()) => return Ok(()),
                    Err(error) if is_definite(&error) => {}
                    Err(error) => return Err(Drained::Lost(error)),
                }
            }
        };
        tokio::time::timeout(DRAIN_WAIT, quiet)
            .await
            .unwrap_or(Err(Drained::Running))
    }

    /// Seals and commits, and begins the next transaction. Whatever it returns, the session can go on.
    pub(super) async fn seal_and_commit(&mut self, next: NextTx<'_>) -> Result<(), FinishError> {
        match self.drain().await {
            Ok(()) => {}
            Err(Drained::Running) => return Err(self.still_running().await),
            Err(Drained::Lost(error)) => return self.lost_commit(&error).await,
        }
        let nested = self
            .conn
            .as_deref()
            .is_some_and(|conn| transaction::depth::<Postgres>(conn) > 1);
        if nested {
            self.close().await;
            return Err(FinishError::Broken(NESTED.to_owned()));
        }
        let wait = self.store.settings.commit_timeout;
        match tokio::time::timeout(wait, self.commit(next)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => self.refused_commit(error).await,
            Err(_) => {
                let error = format!("the commit had no answer within {}", humantime::format_duration(wait));
                self.lost_commit(&sqlx::Error::Protocol(error)).await
            }
        }
    }

    /// Seals and commits. The next transaction is begun in the same round trip.
    async fn commit(&mut self, next: NextTx<'_>) -> Result<(), CommitError> {
        match next {
            NextTx::None if self.pooled() => self.commit_pooled().await,
            NextTx::None => self.commit_and_begin(false, None).await,
            NextTx::Begin => self.commit_and_begin(true, None).await,
            NextTx::Claim(claim) => self.commit_and_begin(true, Some(&claim)).await,
        }
    }

    /// Two statements, between which a transaction pooler keeps the connection.
    async fn commit_pooled(&mut self) -> Result<(), CommitError> {
        self.run_seal().await.map_err(CommitError::Seal)?;
        let committed = async {
            let conn = self.live()?;
            conn.commit().await?;
            conn.taint();
            Ok(())
        };
        committed.await.map_err(CommitError::Commit)?;
        self.open = None;
        Ok(())
    }

    async fn commit_and_begin(&mut self, begins: bool, claim: Option<&Claim<'_>>) -> Result<(), CommitError> {
        let seal = self.seal();
        let (pool, pid, events) = (self.store.pool.clone(), self.pid, self.store.shared.events());
        let xid = self.open.as_ref().and_then(|open| open.xid.clone());
        let Some(conn) = &mut self.conn else {
            return Err(CommitError::Seal(sqlx::Error::PoolClosed));
        };
        let request = ahead::Request {
            seal: &seal,
            begins,
            claim,
            events: &events,
            prepared: &mut self.named.claim,
            wait: self.store.settings.lock_wait,
        };
        let answer = ahead::commit_and_begin(conn, request, || cancel_behind(&pool, pid, xid.as_deref())).await?;
        // What comes behind the commit is the next message's trouble, which its turn will show; this one is committed.
        match answer.next {
            Begun::Failed(error) => {
                tracing::debug!(%error, "the next message could not be claimed ahead");
                self.open = Some(Open::new());
                self.recover(&error).await;
            }
            // The cancel may come late and hit whatever runs then.
            Begun::Cancelled => self.close().await,
            Begun::Unclaimed => self.open = begins.then(Open::new),
            Begun::Claimed(xid) => {
                let mut open = Open::new();
                open.xid = Some(xid);
                open.ahead = claim.map(Ahead::of);
                self.open = Some(open);
            }
        }
        if answer.dirty && self.conn.is_some() {
            match self.rollback().await {
                Ok(()) => self.tidy().await,
                Err(_) => self.close().await,
            }
        }
        Ok(())
    }

    /// Removes the temporary tables that a handler has left on the session.
    async fn tidy(&mut self) {
        if self.run("DISCARD TEMP".to_owned()).await.is_err() {
            self.close().await;
        }
    }

    /// The seal or the commit was answered with an error, or not at all.
    async fn refused_commit(&mut self, error: CommitError) -> Result<(), FinishError> {
        match errors::end(&error) {
            EndMeaning::Swallowed => {
                self.close().await;
                Err(FinishError::Broken(SWALLOWED.to_owned()))
            }
            EndMeaning::Ended => {
                self.close().await;
                Err(FinishError::Broken(ENDED.to_owned()))
            }
            EndMeaning::Again => {
                let error = error.into_inner();
                if code(&error).as_deref() == Some(UNPREPARED) {
                    self.do_without_names();
                }
                self.recover(&error).await;
                Err(FinishError::Again(error))
            }
            EndMeaning::Refused => {
                let error = error.into_inner();
                self.recover(&error).await;
                Err(FinishError::Refused(error))
            }
            EndMeaning::Lost => self.lost_commit(&error.into_inner()).await,
        }
    }

    /// A statement of the handler's runs on: it is ended with the connection.
    async fn still_running(&mut self) -> FinishError {
        match self.resolve().await {
            // Only the handler itself can have committed it, since it was not sealed.
            Some(true) => FinishError::Broken(ENDED.to_owned()),
            _ => FinishError::Ruined(RUNNING.to_owned()),
        }
    }

    /// The connection went while the transaction was being committed. Even if the server has a committed transaction of that
    /// id, that is no reason to acknowledge: after a failover it may be another one. The redelivery finds the row, or doesn't.
    async fn lost_commit(&mut self, error: &sqlx::Error) -> Result<(), FinishError> {
        // The server has answered and lives: it is what the handler left on the session.
        let ruined = is_definite(error) || ended_by_the_server(error);
        Err(match self.resolve().await {
            Some(false) if ruined => FinishError::Ruined(format!(
                "nothing was committed, because of what the handler did with its session: {error}"
            )),
            Some(false) => FinishError::Lost(format!("the transaction was not committed: {error}")),
            _ => FinishError::Lost(format!("the outcome of the commit is unknown: {error}")),
        })
    }

    /// After the handler's failure: whether the transaction was still ours tells the seal, and where that can't be asked
    /// because a statement failed, the server's record of what became of it.
    pub(super) async fn roll_back_sealed(&mut self) -> Result<(), AbandonError> {
        if self.conn.is_none() {
            return Ok(());
        }
        match self.drain().await {
            Ok(()) => {}
            Err(Drained::Running) => return self.abandoned().await,
            Err(Drained::Lost(error)) => return self.lost_rollback(&error).await,
        }
        let wait = self.store.settings.commit_timeout;
        match tokio::time::timeout(wait, self.seal_and_roll_back()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(RolledBack::Ended)) => {
                self.close().await;
                Err(AbandonError::Broken(ENDED.to_owned()))
            }
            Ok(Err(RolledBack::Lost(error))) => self.lost_rollback(&error).await,
            Err(_) => {
                let error = format!("the rollback had no answer within {}", humantime::format_duration(wait));
                self.lost_rollback(&sqlx::Error::Protocol(error)).await
            }
        }
    }

    async fn seal_and_roll_back(&mut self) -> Result<(), RolledBack> {
        match self.run_seal().await {
            Ok(dirty) => {
                self.rollback().await?;
                if dirty {
                    self.tidy().await;
                }
                return Ok(());
            }
            Err(error) => match code(&error).as_deref() {
                Some("25P02") if is_definite(&error) => {}
                Some(UNPREPARED) => self.do_without_names(),
                Some("22012") => return Err(RolledBack::Ended),
                _ => return Err(RolledBack::Lost(error)),
            },
        }
        let xid = self.open.as_ref().and_then(|open| open.xid.clone());
        self.rollback().await?;
        let locks = if self.pooled() {
            ""
        } else {
            ", pg_advisory_unlock_all()"
        };
        let sql = format!(
            "SELECT pg_xact_status('{}'::xid8){locks}",
            xid.as_deref().unwrap_or("0")
        );
        let status: Option<String> = first(self.live()?, sql).await?.try_get(0)?;
        if status.as_deref() == Some("committed") {
            return Err(RolledBack::Ended);
        }
        Ok(())
    }

    /// A statement of the handler's runs on after its failure: it is ended with the connection, and with it the transaction.
    async fn abandoned(&mut self) -> Result<(), AbandonError> {
        match self.resolve().await {
            Some(true) => Err(AbandonError::Broken(ENDED.to_owned())),
            _ => Ok(()),
        }
    }

    async fn lost_rollback(&mut self, error: &sqlx::Error) -> Result<(), AbandonError> {
        let by_the_server = ended_by_the_server(error);
        match self.resolve().await {
            Some(true) => Err(AbandonError::Broken(ENDED.to_owned())),
            Some(false) if by_the_server || is_definite(error) => Ok(()),
            _ => Err(AbandonError::Lost(error.to_string())),
        }
    }

    /// Ends the connection and what runs on it. Returns whether the transaction was committed, asked on another connection;
    /// `None` if nobody can say.
    async fn resolve(&mut self) -> Option<bool> {
        let xid = self.open.as_ref().and_then(|open| open.xid.clone());
        let (pool, pid) = (self.store.pool.clone(), self.pid);
        // Behind a pooler the process that served us may serve somebody else by now.
        let kill = !self.pooled();
        self.close().await;
        let xid = xid?;
        tokio::time::timeout(FATE_WAIT, fate(&pool, pid, kill, &xid))
            .await
            .ok()?
            .inspect_err(|error| tracing::debug!(%error, "what became of a transaction could not be asked"))
            .ok()
    }
}

/// How long it may take to find out what became of a transaction.
const FATE_WAIT: std::time::Duration = std::time::Duration::from_secs(3);

/// Whether the transaction of that id was committed. A process of the server that still has it open is ended first.
async fn fate(pool: &PgPool, pid: i32, kill: bool, xid: &str) -> sqlx::Result<bool> {
    let mut conn: PgConnection = direct(pool).await?;
    loop {
        let row = first(&mut conn, format!("SELECT pg_xact_status('{xid}'::xid8)")).await?;
        match row.try_get::<Option<String>, _>(0)?.as_deref() {
            Some("committed") => return Ok(true),
            Some("in progress") if kill => {
                first(&mut conn, format!("SELECT pg_terminate_backend({pid})")).await?;
            }
            Some("in progress") => {}
            _ => return Ok(false),
        }
        tokio::time::sleep(CLOSE_WAIT / 50).await;
    }
}

/// Why a connection can't be used for the end of a transaction.
enum Drained {
    /// What the handler left on it doesn't end.
    Running,
    Lost(sqlx::Error),
}

/// Why a rollback isn't one.
enum RolledBack {
    /// The handler has ended the transaction before.
    Ended,
    Lost(sqlx::Error),
}

impl From<sqlx::Error> for RolledBack {
    fn from(error: sqlx::Error) -> Self {
        Self::Lost(error)
    }
}

/// Whether the server ended the session because of what the handler did with it: it was idle in its transaction for too long, or
/// the transaction took too long.
fn ended_by_the_server(error: &sqlx::Error) -> bool {
    matches!(code(error).as_deref(), Some("25P03" | "25P04")) && severity(error) == Some(PgSeverity::Fatal)
}
