//! Reads a table of the inbox from the catalog of a PostgreSQL database.

use sqlx::{AssertSqlSafe, PgConnection, Row, postgres::PgRow};

use crate::store::schema::{ColumnKind, FoundColumn, FoundKey, FoundTable, TableSpec};

/// Triggers that our own migrations make.
const OWN_TRIGGERS: [&str; 1] = ["inbox_guard"];

/// The types that a kind of column may have, as `format_type` writes them.
pub(super) const fn types(kind: ColumnKind) -> &'static [&'static str] {
    match kind {
        ColumnKind::Key | ColumnKind::Text => &["text", "character varying"],
        ColumnKind::Integer => &["bigint"],
        ColumnKind::Bytes => &["bytea"],
        ColumnKind::Time => &["timestamp with time zone"],
        ColumnKind::Flag => &["boolean"],
    }
}

/// The table of that name in the schema of the inbox's tables; `None` if it doesn't exist. The catalog shows it also to roles
/// without any right to it.
pub(super) async fn read_table(conn: &mut PgConnection, table: &TableSpec) -> sqlx::Result<Option<FoundTable>> {
    let relation = rows(
        conn,
        table.name,
        "SELECT c.relkind::text, c.relpersistence::text, row_security_active(c.oid), \
         has_schema_privilege(c.relnamespace, 'USAGE') FROM pg_class c WHERE c.oid = $table",
    )
    .await?;
    let Some(relation) = relation.first() else {
        return Ok(None);
    };
    let mut found = FoundTable {
        columns: columns(conn, table.name).await?,
        keys: keys(conn, table.name).await?,
        ..FoundTable::default()
    };
    check_relation(relation, &mut found.problems)?;
    check_rights(conn, table, &mut found.problems).await?;
    check_interference(conn, table.name, &mut found).await?;
    Ok(Some(found))
}

/// Runs a query in which `$table` stands for the table's OID. It is a simple query, for the sake of poolers.
async fn rows(conn: &mut PgConnection, table: &str, sql: &str) -> sqlx::Result<Vec<PgRow>> {
    let oid = format!(
        "(SELECT oid FROM pg_class WHERE relname = '{table}' AND relkind NOT IN ('i', 'I', 'S', 'c', 't') \
         AND relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema()))"
    );
    sqlx::raw_sql(AssertSqlSafe(sql.replace("$table", &oid)))
        .fetch_all(conn)
        .await
}

/// The columns of a table; none if it doesn't exist.
pub(super) async fn columns(conn: &mut PgConnection, table: &str) -> sqlx::Result<Vec<FoundColumn>> {
    let sql = "SELECT a.attname::text, format_type(a.atttypid, a.atttypmod), a.attnotnull, \
               a.atthasdef OR a.attidentity <> '', CASE WHEN NOT c.collisdeterministic THEN c.collname::text END \
               FROM pg_attribute a LEFT JOIN pg_collation c ON c.oid = a.attcollation \
               WHERE a.attrelid = $table AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum";
    let column = |row: &PgRow| {
        Ok(FoundColumn {
            name: row.try_get(0)?,
            kind: row.try_get(1)?,
            not_null: row.try_get(2)?,
            has_default: row.try_get(3)?,
            collation: row.try_get(4)?,
        })
    };
    rows(conn, table, sql).await?.iter().map(column).collect()
}

/// Whether it is a table that survives a crash and shows all its rows.
fn check_relation(relation: &PgRow, problems: &mut Vec<String>) -> sqlx::Result<()> {
    let (kind, persistence): (String, String) = (relation.try_get(0)?, relation.try_get(1)?);
    let kind = match kind.as_str() {
        "r" | "p" => None,
        "v" => Some("a view"),
        "m" => Some("a materialized view"),
        "f" => Some("a foreign table"),
        _ => Some("another kind of relation"),
    };
    if let Some(kind) = kind {
        problems.push(format!("wanted a table; there is {kind}"));
    }
    let persistence = match persistence.as_str() {
        "p" => None,
        "u" => Some("an UNLOGGED one, which a crash of the server empties"),
        _ => Some("a temporary one, which ends with its session"),
    };
    if let Some(persistence) = persistence {
        problems.push(format!("wanted a permanent, logged table; there is {persistence}"));
    }
    if relation.try_get(2)? {
        problems.push(
            "wanted no row security, or a role that bypasses it; it is active for this role, so rows that are there may not \
             be seen"
                .to_owned(),
        );
    }
    if !relation.try_get::<bool, _>(3)? {
        problems.push("wanted the right USAGE on its schema; this role has it not".to_owned());
    }
    Ok(())
}

async fn keys(conn: &mut PgConnection, table: &str) -> sqlx::Result<Vec<FoundKey>> {
    let sql = "SELECT n.relname::text, i.indisvalid AND i.indimmediate AND NOT i.indisexclusion AND i.indpred IS NULL, \
               ARRAY(SELECT coalesce(a.attname::text, lower(regexp_replace(pg_get_indexdef(i.indexrelid, k + 1, true), \
               '::(text|character varying)', '', 'g'))) FROM generate_series(0, i.indnkeyatts - 1) k \
               LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[k] AND a.attnum <> 0 \
               ORDER BY k), \
               (SELECT min(c.collname::text) FROM generate_series(0, i.indnkeyatts - 1) k \
               JOIN pg_collation c ON c.oid = i.indcollation[k] WHERE NOT c.collisdeterministic) \
               FROM pg_index i JOIN pg_class n ON n.oid = i.indexrelid \
               WHERE i.indrelid = $table AND (i.indisunique OR i.indisexclusion) ORDER BY i.indisprimary DESC, n.relname";
    let key = |row: &PgRow| {
        Ok(FoundKey {
            name: row.try_get(0)?,
            complete: row.try_get(1)?,
            columns: row.try_get(2)?,
            collation: row.try_get(3)?,
        })
    };
    rows(conn, table, sql).await?.iter().map(key).collect()
}

/// Whether the role may do what the runtime does.
async fn check_rights(conn: &mut PgConnection, table: &TableSpec, problems: &mut Vec<String>) -> sqlx::Result<()> {
    let mut lacking = Vec::new();
    for right in table.rights {
        let sql = format!("SELECT has_table_privilege($table, '{right}')");
        let rows = rows(conn, table.name, &sql).await?;
        if !rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get::<bool, _>(0)? {
            lacking.push(*right);
        }
    }
    // The sequence of a default needs a right, that of an identity doesn't.
    let sequence = "SELECT s.relname::text FROM pg_depend d JOIN pg_class s ON s.oid = d.objid \
                    WHERE d.refobjid = $table AND d.deptype = 'a' AND CASE WHEN s.relkind = 'S' \
                    THEN NOT (has_sequence_privilege(s.oid, 'USAGE') OR has_sequence_privilege(s.oid, 'UPDATE')) \
                    ELSE false END";
    for row in rows(conn, table.name, sequence).await? {
        let name: String = row.try_get(0)?;
        problems.push(format!(
            "wanted the right USAGE on its sequence `{name}`; this role has it not"
        ));
    }
    if !lacking.is_empty() {
        problems.push(format!(
            "wanted the rights {}; this role lacks {} (GRANT {} ON {} TO …)",
            table.rights.join(", "),
            lacking.join(", "),
            lacking.join(", "),
            table.name
        ));
    }
    Ok(())
}

/// Rules change what our statements do; triggers and constraints may.
async fn check_interference(conn: &mut PgConnection, table: &str, found: &mut FoundTable) -> sqlx::Result<()> {
    let rules =
        "SELECT rulename::text FROM pg_rewrite WHERE ev_class = $table AND rulename <> '_RETURN' AND ev_enabled <> 'D'";
    for row in rows(conn, table, rules).await? {
        let name: String = row.try_get(0)?;
        let problem = "which changes what the inbox's statements do: wanted none; drop it";
        found.problems.push(format!("there is a rule `{name}`, {problem}"));
    }
    let triggers = "SELECT t.tgname::text, CASE WHEN t.tgtype & 2 > 0 THEN 'BEFORE' ELSE 'AFTER' END FROM pg_trigger t \
                    WHERE t.tgrelid = $table AND NOT t.tgisinternal AND t.tgenabled <> 'D' ORDER BY t.tgname";
    for row in rows(conn, table, triggers).await? {
        let (name, when): (String, String) = (row.try_get(0)?, row.try_get(1)?);
        if !OWN_TRIGGERS.contains(&name.as_str()) {
            found.warnings.push(format!(
                "the trigger `{name}` fires {when} the inbox's statements: it must let each row through as it is"
            ));
        }
    }
    let constraints = "SELECT k.conname::text, pg_get_constraintdef(k.oid) FROM pg_constraint k \
                       WHERE k.conrelid = $table AND k.contype IN ('c', 'f') ORDER BY k.conname";
    for row in rows(conn, table, constraints).await? {
        let (name, definition): (String, String) = (row.try_get(0)?, row.try_get(1)?);
        found.warnings.push(format!(
            "the constraint `{name}` ({definition}) is not the inbox's: a row that it refuses is a message that can't be \
             handled"
        ));
    }
    Ok(())
}
