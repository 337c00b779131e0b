//! The settings of a connection: what the runtime sets while it has it, and whether a handler has changed or left anything.

use sqlx::{AssertSqlSafe, Row, SqliteConnection, sqlite::SqliteRow};

/// Every setting that outlives a transaction, can be changed inside one, and changes what statements do or whether others
/// can work; and the attached databases, with `temp` among them once a temporary table was made.
///
/// One statement, so that it is one round trip to the connection's thread. (A `PRAGMA` that stays prepared answers what was
/// true when it was prepared; these functions don't.)
const READ: &str = "SELECT (SELECT synchronous FROM pragma_synchronous), (SELECT timeout FROM pragma_busy_timeout), \
    (SELECT journal_mode FROM pragma_journal_mode), (SELECT query_only FROM pragma_query_only), \
    (SELECT locking_mode FROM pragma_locking_mode), (SELECT foreign_keys FROM pragma_foreign_keys), \
    (SELECT ignore_check_constraints FROM pragma_ignore_check_constraints), \
    (SELECT recursive_triggers FROM pragma_recursive_triggers), (SELECT writable_schema FROM pragma_writable_schema), \
    (SELECT read_uncommitted FROM pragma_read_uncommitted), (SELECT trusted_schema FROM pragma_trusted_schema), \
    (SELECT reverse_unordered_selects FROM pragma_reverse_unordered_selects), \
    (SELECT max_page_count FROM pragma_max_page_count), 'a' LIKE 'A', \
    (SELECT group_concat(name || ' ' || file) FROM pragma_database_list)";

/// Where the settings that the runtime doesn't set begin in a row of [`READ`].
const OTHERS: usize = 2;

/// `synchronous = FULL`: a commit is on the disk when it returns.
const FULL: i64 = 2;

/// How long the runtime waits for the file's write lock before it reports that somebody else holds it, in milliseconds.
const MAX_BUSY_TIMEOUT: i64 = 1_000;

/// The settings of the connections of a pool.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ConnectionSettings {
    synchronous: i64,
    /// In milliseconds.
    busy_timeout: i64,
    others: Vec<String>,
}

impl ConnectionSettings {
    /// Those of a connection that the pool has just lent.
    pub(super) async fn read(conn: &mut SqliteConnection) -> sqlx::Result<Self> {
        let row = sqlx::query(READ).fetch_one(&mut *conn).await?;
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
            busy_timeout: row.try_get(1)?,
            others,
        })
    }

    /// `synchronous` and `busy_timeout` as the runtime needs them, whatever the pool has: what is acknowledged must survive a
    /// power failure, and a wait for the write lock must not be so long that health can't report it.
    fn needed(&self) -> (i64, i64) {
        (self.synchronous.max(FULL), self.busy_timeout.min(MAX_BUSY_TIMEOUT))
    }

    /// Sets what the runtime needs.
    pub(super) async fn apply(&self, conn: &mut SqliteConnection) -> sqlx::Result<()> {
        set(conn, self.needed()).await
    }

    /// Undoes [`apply`](Self::apply).
    pub(super) async fn restore(&self, conn: &mut SqliteConnection) -> sqlx::Result<()> {
        let own = (self.synchronous, self.busy_timeout);
        if own == self.needed() {
            return Ok(());
        }
        set(conn, own).await
    }

    /// Whether the connection is as after [`apply`](Self::apply): no handler has changed or left anything.
    pub(super) async fn are_unchanged(&self, conn: &mut SqliteConnection) -> sqlx::Result<bool> {
        let now = Self::read(conn).await?;
        Ok((now.synchronous, now.busy_timeout) == self.needed() && now.others == self.others)
    }

    /// Whether the file has a write-ahead log.
    pub(super) fn has_wal(&self) -> bool {
        self.others.first().is_some_and(|mode| mode == "wal")
    }
}

async fn set(conn: &mut SqliteConnection, (synchronous, busy_timeout): (i64, i64)) -> sqlx::Result<()> {
    let settings = format!("PRAGMA synchronous = {synchronous}; PRAGMA busy_timeout = {busy_timeout}");
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
    async fn whatever_a_handler_leaves_is_detected() {
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
            let settings = ConnectionSettings::read(&mut conn).await.expect("the settings");
            settings.apply(&mut conn).await.expect("set");
            exec(&mut conn, "BEGIN").await;
            assert!(
                settings.are_unchanged(&mut conn).await.expect("read"),
                "nothing was left"
            );
            exec(&mut conn, left).await;
            assert!(!settings.are_unchanged(&mut conn).await.expect("read"), "{left}");
        }
    }

    #[tokio::test]
    async fn the_settings_of_the_program_are_restored() {
        let (_folder, options) = file();
        let options = options
            .pragma("synchronous", "OFF")
            .busy_timeout(Duration::from_secs(60));
        let mut conn = SqliteConnection::connect_with(&options).await.expect("a connection");
        exec(&mut conn, "CREATE TEMP TABLE own (n)").await;
        let settings = ConnectionSettings::read(&mut conn).await.expect("the settings");
        assert_eq!((settings.synchronous, settings.busy_timeout), (0, 60_000));
        settings.apply(&mut conn).await.expect("set");
        let ours = ConnectionSettings::read(&mut conn).await.expect("the settings");
        assert_eq!((ours.synchronous, ours.busy_timeout), (FULL, MAX_BUSY_TIMEOUT));
        assert!(settings.are_unchanged(&mut conn).await.expect("read"));
        exec(&mut conn, "CREATE TEMP TABLE left_behind (n)").await;
        assert!(
            !settings.are_unchanged(&mut conn).await.expect("read"),
            "another temporary table"
        );
        exec(&mut conn, "DROP TABLE left_behind").await;
        settings.restore(&mut conn).await.expect("set back");
        assert_eq!(
            ConnectionSettings::read(&mut conn).await.expect("the settings"),
            settings
        );
    }
}
