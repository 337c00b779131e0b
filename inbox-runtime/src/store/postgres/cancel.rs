//! Cancelling a statement that has waited too long, through a connection beside the pool.

use std::time::Duration;

use sqlx::{Connection, PgPool, Row};

use super::simple_query::{connect_beside, query_first};

/// How long it may take to have a statement cancelled, a new connection included.
const CANCEL_WAIT: Duration = Duration::from_secs(5);

/// Cancels what the server process runs.
pub(super) async fn cancel(pool: &PgPool, pid: i32) {
    request(pool, format!("SELECT pg_cancel_backend({pid})")).await;
}

/// Cancels what the server process runs if it waits for a lock after the commit of that transaction. Returns whether it was
/// cancelled.
pub(super) async fn cancel_after_commit(pool: &PgPool, pid: i32, xid: Option<&str>) -> bool {
    let Some(xid) = xid.and_then(|xid| xid.parse::<u64>().ok()) else {
        return false;
    };
    // What the server shows of a transaction's id has no epoch. It is shown until the commit is on the disk (and on the
    // standbys that the commit waits for).
    let xid = xid & u64::from(u32::MAX);
    let sql = format!(
        "SELECT coalesce((SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE pid = {pid} \
         AND wait_event_type = 'Lock' AND backend_xid IS DISTINCT FROM '{xid}'::xid), false)"
    );
    request(pool, sql).await
}

async fn request(pool: &PgPool, sql: String) -> bool {
    let cancel = async {
        let mut conn = connect_beside(pool).await?;
        let cancelled = query_first(&mut conn, sql).await?.try_get(0)?;
        conn.close().await?;
        Ok::<bool, sqlx::Error>(cancelled)
    };
    match tokio::time::timeout(CANCEL_WAIT, cancel).await {
        Ok(Ok(cancelled)) => cancelled,
        Ok(Err(error)) => {
            tracing::debug!(%error, "a statement could not be cancelled");
            false
        }
        Err(_) => {
            tracing::debug!("a statement could not be cancelled in time");
            false
        }
    }
}
