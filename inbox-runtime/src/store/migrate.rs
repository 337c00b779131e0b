//! What making and checking the inbox's tables has in common on every database.

use sqlx::{
    SqlSafeStr,
    migrate::{Migration, MigrationType, Migrator},
};

use super::{
    Migrate, MigrateError,
    shape::{Found, Kind, TABLES, Table},
};

/// Our own bookkeeping: in sqlx's default table our versions and those of the program would collide.
const BOOKKEEPING: &str = "_inbox_migrations";

/// What makes the tables of a database: statements with a name, in order. One that was made somewhere is never changed.
pub(crate) type Migrations = &'static [(&'static str, &'static str)];

/// A connection that tells what a table looks like.
pub(crate) trait Schema: Send {
    /// Whether there is a table of that name.
    fn is_there(&mut self, table: &str) -> impl Future<Output = sqlx::Result<bool>> + Send;

    /// What a table looks like; `None` if there is none.
    fn find(&mut self, table: &Table) -> impl Future<Output = sqlx::Result<Option<Found>>> + Send;

    /// The types in which a kind of column may be kept, the first as the migrations have it.
    fn types(kind: Kind) -> &'static [&'static str];

    /// Whether an error may pass by itself.
    fn passes(error: &sqlx::Error) -> bool;
}

/// Makes the tables, inside a transaction that keeps others from making them at the same time.
pub(crate) async fn make<C>(conn: &mut C, migrations: Migrations) -> Result<(), MigrateError>
where
    C: Schema + sqlx::migrate::Migrate,
{
    // A table of one of our names that we haven't made would make the migration fail with less to say.
    if !is_ours(conn).await? {
        let problems = problems(conn, false).await?;
        let missing = problems
            .iter()
            .filter(|problem| matches!(problem, Problem::Missing(_)))
            .count();
        refuse(problems.into_iter().filter_map(Problem::of_a_table).collect())?;
        if missing < TABLES.len() {
            return Err(MigrateError::Shape(format!(
                "there are tables of the inbox's names, but not `{BOOKKEEPING}`, by which the inbox knows those that it has \
                 made; take them as they are with INBOX_MIGRATE=check, or rename them"
            )));
        }
    }
    migrator(migrations)
        .run_direct(None, conn, false)
        .await
        .map_err(not_made::<C>)
}

/// Whether every migration has been made. Then there is no need for the lock, which somebody may have for minutes.
pub(crate) async fn is_current<C>(conn: &mut C, migrations: Migrations) -> Result<bool, MigrateError>
where
    C: Schema + sqlx::migrate::Migrate,
{
    if !is_ours(conn).await? {
        return Ok(false);
    }
    let made = conn.list_applied_migrations(BOOKKEEPING).await.map_err(not_made::<C>)?;
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

/// Checks that every table is there, ours, and as it must be. The error lists every difference; what may be meant as it is
/// is a warning.
pub(crate) async fn check<C: Schema>(conn: &mut C, mode: Migrate) -> Result<(), MigrateError> {
    let ours = is_ours(conn).await?;
    let problems = problems(conn, ours).await?.into_iter();
    refuse(problems.map(|problem| problem.text(mode)).collect())
}

/// What is wrong with the tables.
enum Problem {
    Missing(&'static str),
    Table(String),
}

impl Problem {
    fn text(self, mode: Migrate) -> String {
        match self {
            Self::Missing(table) if mode == Migrate::Auto => format!(
                "the table `{table}` is missing, although `{BOOKKEEPING}` has it as made; restore it, or make it by the statements in \
                 the folder `migrations` of this crate"
            ),
            Self::Missing(table) => format!("the table `{table}` is missing; {MAKE_THEM}"),
            Self::Table(text) => text,
        }
    }

    fn of_a_table(self) -> Option<String> {
        match self {
            Self::Missing(_) => None,
            Self::Table(text) => Some(text),
        }
    }
}

const MAKE_THEM: &str = "start once with INBOX_MIGRATE=auto, or call `inbox_runtime::migrate`";

async fn problems<C: Schema>(conn: &mut C, ours: bool) -> Result<Vec<Problem>, MigrateError> {
    let mut problems = Vec::new();
    for table in TABLES {
        let name = table.name;
        let Some(found) = conn.find(table).await.map_err(failed::<C>)? else {
            problems.push(Problem::Missing(name));
            continue;
        };
        for doubt in &found.doubts {
            tracing::warn!(table = name, "{doubt}");
        }
        let lacks = found.lacks(table);
        if !lacks.is_empty() && !ours {
            problems.push(Problem::Table(foreign(table, &found)));
            continue;
        }
        if !lacks.is_empty() {
            problems.push(Problem::Table(format!(
                "the table `{name}` was made by an earlier version of the inbox and lacks {}; {MAKE_THEM}",
                lacks.join(", ")
            )));
        }
        let differences = found.differences(table, C::types);
        problems.extend(
            differences
                .into_iter()
                .map(|difference| Problem::Table(format!("the table `{name}`: {difference}"))),
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

async fn is_ours<C: Schema>(conn: &mut C) -> Result<bool, MigrateError> {
    conn.is_there(BOOKKEEPING).await.map_err(failed::<C>)
}

/// Sorts an error of one of our statements at the start.
pub(crate) fn failed<C: Schema>(error: sqlx::Error) -> MigrateError {
    if C::passes(&error) {
        MigrateError::Unavailable(Box::new(error))
    } else {
        MigrateError::Failed(Box::new(error))
    }
}

fn not_made<C: Schema>(error: sqlx::migrate::MigrateError) -> MigrateError {
    use sqlx::migrate::MigrateError as Sqlx;
    match error {
        Sqlx::Execute(error) | Sqlx::ExecuteMigration(error, _) => failed::<C>(error),
        error => MigrateError::Failed(Box::new(error)),
    }
}

fn foreign(table: &Table, found: &Found) -> String {
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
