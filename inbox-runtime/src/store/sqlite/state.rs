//! The settings of a connection: those that the runtime needs while it has it, and whether a handler has changed others.

use sqlx::{AssertSqlSafe, Row, SqliteConnection, sqlite::SqliteRow};

/// Every setting that outlives a transaction, can be changed inside one, and changes what statements do or whether others
/// can work; and the databases that are attached, with `temp` among them once there was a temporary table.
///
/// One statement, so that it is one round trip to the connection's thread. (A `PRAGMA` that is kept prepared answers what
/// was true when it was prepared; these functions don't.)
const LOOK: &str = "SELECT (SELECT synchronous FROM pragma_synchronous), (SELECT timeout FROM pragma_busy_timeout), \
    (SELECT journal_mode FROM pragma_journal_mode), (SELECT query_only FROM pragma_query_only), \
    (SELECT locking_mode FROM pragma_locking_mode), (SELECT foreign_keys FROM pragma_foreign_keys), \
    (SELECT ignore_check_constraints FROM pragma_ignore_check_constraints), \
    (SELECT recursive_triggers FROM pragma_recursive_triggers), (SELECT writable_schema FROM pragma_writable_schema), \
    (SELECT read_uncommitted FROM pragma_read_uncommitted), (SELECT trusted_schema FROM pragma_trusted_schema), \
    (SELECT reverse_unordered_selects FROM pragma_reverse_unordered_selects), \
    (SELECT max_page_count FROM pragma_max_page_count), 'a' LIKE 'A', \
    (SELECT group_concat(name || ' ' || file) FROM pragma_database_list)";

/// Where the settings that are no numbers of ours begin in a row of [`LOOK`].
const OTHERS: usize = 2;

/// `synchronous = FULL`: a commit is on the disk when it returns.
const FULL: i64 = 2;

/// How long the runtime waits for the file's write lock at most before it says that somebody else has it, in milliseconds.
const LOCK_WAIT: i64 = 1_000;

/// The settings that the connections of a pool have.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PoolState {
    synchronous: i64,
    /// In milliseconds.
    lock_wait: i64,
    others: Vec<String>,
}

impl PoolState {
    /// Those of a connection that the pool has just lent.
    pub(super) async fn of(conn: &mut SqliteConnection) -> sqlx::Result<Self> {
        let row = sqlx::query(LOOK).fetch_one(&mut *conn).await?;
        let mut others: Vec<_> = (OTHERS..row.len())
            .map(|index| text(&row, index))
            .collect::<sqlx::Result<_>>()?;
        if others.last().is_some_and(|databases| databases.contains("temp ")) {
            let tables = sqlx::query("SELECT name FROM temp.sqlite_schema ORDER BY name")
                .fetch_all(conn)
                .await?;
            for table in &tables {
                others.push(text(table, 0)?);
            }
        }
        Ok(Self {
            synchronous: row.try_get(0)?,
            lock_wait: row.try_get(1)?,
            others,
        })
    }

    /// What the runtime needs: what is acknowledged must survive a power failure, and a pool may have been set to less; and
    /// no wait for the write lock may be so long that health has nothing to say about it.
    fn needed(&self) -> (i64, i64) {
        (self.synchronous.max(FULL), self.lock_wait.min(LOCK_WAIT))
    }

    /// Makes the settings that the runtime needs.
    pub(super) async fn prepare(&self, conn: &mut SqliteConnection) -> sqlx::Result<()> {
        set(conn, self.needed()).await
    }

    /// Makes them again what they were.
    pub(super) async fn restore(&self, conn: &mut SqliteConnection) -> sqlx::Result<()> {
        let own = (self.synchronous, self.lock_wait);
        if own == self.needed() {
            return Ok(());
        }
        set(conn, own).await
    }

    /// Whether a connection that was prepared is as it was then: no handler has changed or left anything.
    pub(super) async fn is_kept_by(&self, conn: &mut SqliteConnection) -> sqlx::Result<bool> {
        let now = Self::of(conn).await?;
        Ok((now.synchronous, now.lock_wait) == self.needed() && now.others == self.others)
    }

    /// Whether the file has a write-ahead log.
    pub(super) fn has_log(&self) -> bool {
        self.others.first().is_some_and(|mode| mode == "wal")
    }
}

async fn set(conn: &mut SqliteConnection, (synchronous, lock_wait): (i64, i64)) -> sqlx::Result<()> {
    let settings = format!("PRAGMA synchronous = {synchronous}; PRAGMA busy_timeout = {lock_wait}");
    sqlx::raw_sql(AssertSqlSafe(settings)).execute(conn).await?;
    Ok(())
}

fn text(row: &SqliteRow, index: usize) -> sqlx::Result<String> {
    let value: Option<String> = row.try_get_unchecked(index)?;
    Ok(value.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sqlx::{Connection, sqlite::SqliteConnectOptions};
    use tempfile::TempDir;

    use super::*;

    async fn exec(conn: &mut SqliteConnection, sql: &'static str) {
        sqlx::raw_sql(sql).execute(conn).await.expect(sql);
    }

    fn file() -> (TempDir, SqliteConnectOptions) {
        let folder = tempfile::tempdir().expect("a folder");
        let options = SqliteConnectOptions::new()
            .filename(folder.path().join("app.db"))
            .create_if_missing(true);
        (folder, options)
    }

    #[tokio::test]
    async fn whatever_a_handler_leaves_is_seen() {
        let (_folder, options) = file();
        for left in [
            "PRAGMA query_only = ON",
            "PRAGMA locking_mode = EXCLUSIVE",
            "PRAGMA ignore_check_constraints = ON",
            "PRAGMA recursive_triggers = ON",
            "PRAGMA writable_schema = ON",
            "PRAGMA case_sensitive_like = ON",
            "PRAGMA busy_timeout = 1",
            "PRAGMA max_page_count = 1000",
            "CREATE TEMP TABLE t (n)",
            "ATTACH ':memory:' AS other",
        ] {
            let mut conn = SqliteConnection::connect_with(&options).await.expect("a connection");
            let state = PoolState::of(&mut conn).await.expect("the settings");
            state.prepare(&mut conn).await.expect("set");
            exec(&mut conn, "BEGIN").await;
            assert!(
                state.is_kept_by(&mut conn).await.expect("looked at"),
                "nothing was left"
            );
            exec(&mut conn, left).await;
            assert!(!state.is_kept_by(&mut conn).await.expect("looked at"), "{left}");
        }
    }

    #[tokio::test]
    async fn the_settings_of_the_program_come_back() {
        let (_folder, options) = file();
        let options = options
            .pragma("synchronous", "OFF")
            .busy_timeout(Duration::from_secs(60));
        let mut conn = SqliteConnection::connect_with(&options).await.expect("a connection");
        exec(&mut conn, "CREATE TEMP TABLE own (n)").await;
        let state = PoolState::of(&mut conn).await.expect("the settings");
        assert_eq!((state.synchronous, state.lock_wait), (0, 60_000));
        state.prepare(&mut conn).await.expect("set");
        let ours = PoolState::of(&mut conn).await.expect("the settings");
        assert_eq!((ours.synchronous, ours.lock_wait), (FULL, LOCK_WAIT));
        assert!(state.is_kept_by(&mut conn).await.expect("looked at"));
        exec(&mut conn, "CREATE TEMP TABLE left_behind (n)").await;
        assert!(
            !state.is_kept_by(&mut conn).await.expect("looked at"),
            "another temporary table"
        );
        exec(&mut conn, "DROP TABLE left_behind").await;
        state.restore(&mut conn).await.expect("set back");
        assert_eq!(PoolState::of(&mut conn).await.expect("the settings"), state);
    }
}
