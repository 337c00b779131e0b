//! What the handler has left running when its transaction ends, and how a transaction ended whose connection is lost.

use std::time::Duration;

use sqlx::{Connection, PgConnection, PgPool, Row};

use super::{
    connection::PostgresSession,
    errors::is_definite,
    simple_query::{connect_beside, query_first},
};

/// How long a statement that a handler has given up on may run on before its connection is closed.
const DRAIN_WAIT: Duration = Duration::from_secs(1);
/// How long it may take to find out how a transaction ended.
const FATE_WAIT: Duration = Duration::from_secs(3);
/// The pause between two looks at a transaction that is still in progress.
const FATE_INTERVAL: Duration = Duration::from_millis(20);

/// Why a connection can't be used for the end of a transaction.
pub(super) enum DrainError {
    /// What the handler left running doesn't end.
    Running,
    Lost(sqlx::Error),
}

impl PostgresSession {
    /// Waits for what the handler has left running on the connection. Costs nothing where nothing runs.
    pub(super) async fn drain(&mut self) -> Result<(), DrainError> {
        let Some(conn) = &mut self.conn else {
            return Err(DrainError::Lost(sqlx::Error::PoolClosed));
        };
        let quiet = async {
            // Each error in an answer ends one flush.
            loop {
                match conn.flush().await {
                    Ok(()) => return Ok(()),
                    Err(error) if is_definite(&error) => {}
                    Err(error) => return Err(DrainError::Lost(error)),
                }
            }
        };
        tokio::time::timeout(DRAIN_WAIT, quiet)
            .await
            .unwrap_or(Err(DrainError::Running))
    }

    /// Closes the connection and ends what runs on it. Returns whether the transaction was committed, asked on another
    /// connection; `None` if that can't be detected.
    pub(super) async fn resolve(&mut self) -> Option<bool> {
        let xid = self.xid().map(str::to_owned);
        let (pool, pid) = (self.store.pool.clone(), self.pid);
        // Behind a pooler the process that served us may serve somebody else by now.
        let terminate = !self.is_pooled();
        self.close().await;
        let xid = xid?;
        tokio::time::timeout(FATE_WAIT, is_committed(&pool, pid, terminate, &xid))
            .await
            .ok()?
            .inspect_err(|error| tracing::debug!(%error, "the outcome of a transaction could not be found out"))
            .ok()
    }
}

/// Whether the transaction of that id was committed. A server process that still has it open is terminated first.
async fn is_committed(pool: &PgPool, pid: i32, terminate: bool, xid: &str) -> sqlx::Result<bool> {
    let mut conn: PgConnection = connect_beside(pool).await?;
    loop {
        let row = query_first(&mut conn, format!("SELECT pg_xact_status('{xid}'::xid8)")).await?;
        match row.try_get::<Option<String>, _>(0)?.as_deref() {
            Some("committed") => return Ok(true),
            Some("in progress") if terminate => {
                query_first(&mut conn, format!("SELECT pg_terminate_backend({pid})")).await?;
            }
            Some("in progress") => {}
            _ => return Ok(false),
        }
        tokio::time::sleep(FATE_INTERVAL).await;
    }
}
