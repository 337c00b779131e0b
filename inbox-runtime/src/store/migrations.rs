//! Making and checking the inbox's tables, for every database.

use sqlx::{
    SqlSafeStr,
    migrate::{Migration, MigrationType, Migrator},
};

use super::{
    migrate::{MigrateError, MigrateMode},
    schema::{ColumnKind, FoundTable, TableSpec},
};

/// The table of applied migrations. In sqlx's default table our versions and those of the program would collide.
const BOOKKEEPING: &str = "_inbox_migrations";

/// The migrations of a database: each its name and its statements, in order. A released one is never changed.
pub(crate) type Migrations = &'static [(&'static str, &'static str)];

/// A connection as a reader of its database's catalog.
pub(crate) trait Catalog: Send {
    /// Every table of the inbox, as the last migration leaves it.
    const TABLES: &'static [TableSpec];

    /// Whether a table of that name exists.
    fn table_exists(&mut self, table: &str) -> impl Future<Output = sqlx::Result<bool>> + Send;

    /// The table as it is; `None` if it doesn't exist.
    fn read_table(&mut self, table: &TableSpec) -> impl Future<Output = sqlx::Result<Option<FoundTable>>> + Send;

    /// The types that a kind of column may have, the first as the migrations have it.
    fn types(kind: ColumnKind) -> &'static [&'static str];

    /// Whether waiting may help after that error.
    fn is_transient(error: &sqlx::Error) -> bool;
}

/// Makes the tables, in a transaction that excludes others who would make them at the same time.
pub(crate) async fn apply<C>(conn: &mut C, migrations: Migrations) -> Result<(), MigrateError>
where
    C: Catalog + sqlx::migrate::Migrate,
{
    // A table of one of our names that isn't ours would make the migration fail with a less helpful text.
    if !is_ours(conn).await? {
        let problems = problems(conn, false).await?;
        let missing = problems
            .iter()
            .filter(|problem| matches!(problem, Problem::Missing(_)))
            .count();
        refuse(problems.into_iter().filter_map(Problem::about_table).collect())?;
        if missing < C::TABLES.len() {
            return Err(MigrateError::Shape(format!(
                "there are tables of the inbox's names, but not `{BOOKKEEPING}`, by which the inbox knows those that it has \
                 made; take them as they are with INBOX_MIGRATE=check, or rename them"
            )));
        }
    }
    migrator(migrations)
        .run_direct(None, conn, false)
        .await
        .map_err(migration_failed::<C>)
}

/// Whether every migration has been applied. Then the lock isn't needed, which somebody may hold for minutes.
pub(crate) async fn is_current<C>(conn: &mut C, migrations: Migrations) -> Result<bool, MigrateError>
where
    C: Catalog + sqlx::migrate::Migrate,
{
    if !is_ours(conn).await? {
        return Ok(false);
    }
    let applied = conn
        .list_applied_migrations(BOOKKEEPING)
        .await
        .map_err(migration_failed::<C>)?;
    Ok(migrator(migrations).iter().all(|migration| {
        applied
            .iter()
            .any(|applied| applied.version == migration.version && applied.checksum == migration.checksum)
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
    // In a rolling upgrade a newer version of this crate may have applied more. The caller holds the lock.
    migrator.set_ignore_missing(true).set_locking(false);
    migrator.dangerous_set_table_name(BOOKKEEPING);
    migrator
}

/// Checks that every table exists, is ours, and is as it must be. The error lists every difference; what may be intended is
/// logged as a warning.
pub(crate) async fn check<C: Catalog>(conn: &mut C, mode: MigrateMode) -> Result<(), MigrateError> {
    let ours = is_ours(conn).await?;
    let problems = problems(conn, ours).await?.into_iter();
    refuse(problems.map(|problem| problem.text(mode)).collect())
}

/// What is wrong with the tables.
enum Problem {
    Missing(&'static str),
    Differs(String),
}

impl Problem {
    fn text(self, mode: MigrateMode) -> String {
        match self {
            Self::Missing(table) if mode == MigrateMode::Auto => format!(
                "the table `{table}` is missing, although `{BOOKKEEPING}` has it as made; restore it, or make it by the statements in \
                 the folder `migrations` of this crate"
            ),
            Self::Missing(table) => format!("the table `{table}` is missing; {MAKE_THEM}"),
            Self::Differs(text) => text,
        }
    }

    fn about_table(self) -> Option<String> {
        match self {
            Self::Missing(_) => None,
            Self::Differs(text) => Some(text),
        }
    }
}

const MAKE_THEM: &str = "start once with INBOX_MIGRATE=auto, or call `inbox_runtime::migrate`";

async fn problems<C: Catalog>(conn: &mut C, ours: bool) -> Result<Vec<Problem>, MigrateError> {
    let mut problems = Vec::new();
    for table in C::TABLES {
        let name = table.name;
        let Some(found) = conn.read_table(table).await.map_err(failed::<C>)? else {
            problems.push(Problem::Missing(name));
            continue;
        };
        for warning in &found.warnings {
            tracing::warn!(table = name, "{warning}");
        }
        let missing = found.missing_columns(table);
        if !missing.is_empty() && !ours {
            problems.push(Problem::Differs(foreign(table, &found)));
            continue;
        }
        if !missing.is_empty() {
            problems.push(Problem::Differs(format!(
                "the table `{name}` was made by an earlier version of the inbox and lacks {}; {MAKE_THEM}",
                missing.join(", ")
            )));
        }
        let differences = found.differences(table, C::types);
        problems.extend(
            differences
                .into_iter()
                .map(|difference| Problem::Differs(format!("the table `{name}`: {difference}"))),
        );
    }
    Ok(problems)
}

fn refuse(mut problems: Vec<String>) -> Result<(), MigrateError> {
    match problems.len() {
        0 => Ok(()),
        1 => Err(MigrateError::Shape(problems.remove(0))),
        count => Err(MigrateError::Shape(format!(
            "the inbox's tables are not as they must be, for {count} reasons:\n  - {}",
            problems.join("\n  - ")
        ))),
    }
}

async fn is_ours<C: Catalog>(conn: &mut C) -> Result<bool, MigrateError> {
    conn.table_exists(BOOKKEEPING).await.map_err(failed::<C>)
}

/// The meaning of an error of one of our statements at the start.
pub(crate) fn failed<C: Catalog>(error: sqlx::Error) -> MigrateError {
    if C::is_transient(&error) {
        MigrateError::Unavailable(Box::new(error))
    } else {
        MigrateError::Failed(Box::new(error))
    }
}

fn migration_failed<C: Catalog>(error: sqlx::migrate::MigrateError) -> MigrateError {
    use sqlx::migrate::MigrateError as Sqlx;
    match error {
        Sqlx::Execute(error) | Sqlx::ExecuteMigration(error, _) => failed::<C>(error),
        error => MigrateError::Failed(Box::new(error)),
    }
}

/// The text about a table of our name that isn't ours.
fn foreign(table: &TableSpec, found: &FoundTable) -> String {
    let there: Vec<_> = found.columns.iter().map(|column| column.name.as_str()).collect();
    let wanted: Vec<_> = table.columns.iter().map(|column| column.name).collect();
    format!(
        "there is a table `{}` that is not the inbox's: it has the columns {}, the inbox's has {}; rename it, or give the \
         inbox a database or a schema of its own",
        table.name,
        there.join(", "),
        wanted.join(", ")
    )
}
