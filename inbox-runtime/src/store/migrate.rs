//! What making and checking the inbox's tables has in common on every database.

use sqlx::{
    SqlSafeStr,
    migrate::{Migration, MigrationType, Migrator},
};

use super::MigrateError;

/// Our own bookkeeping: in sqlx's default table our versions and those of the program would collide.
const BOOKKEEPING: &str = "_inbox_migrations";

/// Every table with its columns, by which a table of the same name that isn't ours is recognised.
const TABLES: [(&str, &[&str]); 3] = [
    (
        "inbox_events",
        &["consumer_group", "message_id", "fingerprint", "processed_at"],
    ),
    (
        "inbox_attempts",
        &[
            "consumer_group",
            "handler",
            "position",
            "message_id",
            "fingerprint",
            "attempts",
            "unfinished",
            "first_at",
            "last_at",
            "last_error",
        ],
    ),
    (
        "inbox_dead_letters",
        &[
            "id",
            "consumer_group",
            "handler",
            "position",
            "subject",
            "message_id",
            "fingerprint",
            "headers",
            "payload",
            "message_key",
            "published_at",
            "reason",
            "error",
            "attempts",
            "first_failed_at",
            "dead_at",
            "replay_at",
            "replay_lease",
            "replay_taken",
            "replay_requested_at",
        ],
    ),
];

/// What makes the tables of a database: statements with a name, in order. One that was made somewhere is never changed.
pub(crate) type Migrations = &'static [(&'static str, &'static str)];

/// A connection that tells what a table looks like.
pub(crate) trait Schema: Send {
    /// The names of a table's columns; none if there is no such table.
    fn columns(&mut self, table: &str) -> impl Future<Output = sqlx::Result<Vec<String>>> + Send;
}

/// Makes the tables, inside a transaction that keeps others from making them at the same time.
pub(crate) async fn make<C>(conn: &mut C, migrations: Migrations) -> Result<(), MigrateError>
where
    C: Schema + sqlx::migrate::Migrate,
{
    // A table of one of our names that we haven't made would make the migration fail with less to say.
    if columns(conn, BOOKKEEPING).await?.is_empty() {
        for (table, wanted) in TABLES {
            let found = columns(conn, table).await?;
            if !found.is_empty() {
                return Err(foreign(table, wanted, &found));
            }
        }
    }
    migrator(migrations)
        .run_direct(None, conn, false)
        .await
        .map_err(|error| MigrateError::Failed(Box::new(error)))
}

/// Whether every migration has been made. Then there is no need for the lock, which somebody may have for minutes.
pub(crate) async fn is_current<C>(conn: &mut C, migrations: Migrations) -> Result<bool, MigrateError>
where
    C: Schema + sqlx::migrate::Migrate,
{
    if columns(conn, BOOKKEEPING).await?.is_empty() {
        return Ok(false);
    }
    let made = conn
        .list_applied_migrations(BOOKKEEPING)
        .await
        .map_err(|error| MigrateError::Failed(Box::new(error)))?;
    Ok(migrator(migrations).iter().all(|migration| {
        made.iter()
            .any(|made| made.version == migration.version && made.checksum == migration.checksum)
    }))
}

fn migrator(migrations: Migrations) -> Migrator {
    let migrations = (1..).zip(migrations).map(|(version, (name, statements))| {
        Migration::new(
            version,
            (*name).into(),
            MigrationType::Simple,
            statements.into_sql_str(),
            false,
        )
    });
    let mut migrator = Migrator::with_migrations(migrations.collect());
    // A newer version of this crate may have been here before, in a rolling upgrade. The lock is ours.
    migrator.set_ignore_missing(true).set_locking(false);
    migrator.dangerous_set_table_name(BOOKKEEPING);
    migrator
}

/// Checks that every table is there and ours.
pub(crate) async fn check(conn: &mut impl Schema) -> Result<(), MigrateError> {
    let ours = !columns(conn, BOOKKEEPING).await?.is_empty();
    for (table, wanted) in TABLES {
        let found = columns(conn, table).await?;
        if found.is_empty() {
            return Err(MigrateError::Shape(format!(
                "the table `{table}` is missing; start once with INBOX_MIGRATE=auto, or call `inbox_runtime::migrate`"
            )));
        }
        let missing: Vec<_> = wanted
            .iter()
            .filter(|column| !found.iter().any(|name| name == *column))
            .copied()
            .collect();
        if missing.is_empty() {
            continue;
        }
        if !ours {
            return Err(foreign(table, wanted, &found));
        }
        return Err(MigrateError::Shape(format!(
            "the table `{table}` was made by an earlier version of the inbox and lacks {}; start once with \
             INBOX_MIGRATE=auto, or call `inbox_runtime::migrate`",
            missing.join(", ")
        )));
    }
    Ok(())
}

async fn columns(conn: &mut impl Schema, table: &str) -> Result<Vec<String>, MigrateError> {
    conn.columns(table)
        .await
        .map_err(|error| MigrateError::Unavailable(Box::new(error)))
}

fn foreign(table: &str, wanted: &[&str], found: &[String]) -> MigrateError {
    MigrateError::Shape(format!(
        "there is a table `{table}` that is not the inbox's: it has the columns {}, the inbox's has {}; rename it, or \
         give the inbox a database or a schema of its own",
        found.join(", "),
        wanted.join(", ")
    ))
}
