//! Reads a table of the inbox from the catalog of a SQLite file.

use sqlx::{Row, SqliteConnection, sqlite::SqliteRow};

use crate::store::schema::{ColumnKind, FoundColumn, FoundKey, FoundTable, TableSpec};

/// The affinities that a kind of column may have. A column's affinity follows from its declared type.
pub(super) const fn types(kind: ColumnKind) -> &'static [&'static str] {
    match kind {
        ColumnKind::Key | ColumnKind::Text => &["TEXT"],
        ColumnKind::Integer | ColumnKind::Time | ColumnKind::Flag => &["INTEGER"],
        ColumnKind::Bytes => &["BLOB"],
    }
}

/// The table of that name; `None` if it doesn't exist.
pub(super) async fn read_table(conn: &mut SqliteConnection, table: &TableSpec) -> sqlx::Result<Option<FoundTable>> {
    let relation = sqlx::query(
        "SELECT type, sql FROM main.sqlite_schema WHERE name = $1 COLLATE NOCASE AND type IN ('table', 'view')",
    )
    .bind(table.name)
    .fetch_optional(&mut *conn)
    .await?;
    let Some(relation) = relation else {
        return Ok(None);
    };
    let mut found = FoundTable {
        columns: columns(conn, table.name).await?,
        keys: keys(conn, table.name).await?,
        ..FoundTable::default()
    };
    let (kind, sql): (String, String) = (relation.try_get(0)?, relation.try_get(1)?);
    if kind == "view" {
        found.problems.push("wanted a table; there is a view".to_owned());
    } else if sql
        .get(..14)
        .is_some_and(|start| start.eq_ignore_ascii_case("CREATE VIRTUAL"))
    {
        found
            .problems
            .push("wanted a table; there is a virtual table".to_owned());
    }
    for column in &mut found.columns {
        let folding = found
            .keys
            .iter()
            .find(|key| key.collation.is_some() && key.columns.contains(&column.name));
        column.collation = folding.and_then(|key| key.collation.clone());
    }
    if let Some(alias) = rowid_alias(conn, table.name).await? {
        // The rowid: SQLite assigns it, and it needs no index.
        for column in found.columns.iter_mut().filter(|column| column.name == alias) {
            (column.not_null, column.has_default) = (true, true);
        }
        found.keys.insert(
            0,
            FoundKey {
                name: "PRIMARY KEY".to_owned(),
                columns: vec![alias],
                complete: true,
                collation: None,
            },
        );
    }
    let triggers = sqlx::query_scalar(
        "SELECT name FROM main.sqlite_schema WHERE type = 'trigger' AND tbl_name = $1 COLLATE NOCASE",
    )
    .bind(table.name)
    .fetch_all(conn)
    .await?;
    found.warnings.extend(triggers.iter().map(|name: &String| {
        format!("the trigger `{name}` fires at the inbox's statements: it must let each row through as it is")
    }));
    Ok(Some(found))
}

/// The columns of a table; none if it doesn't exist.
pub(super) async fn columns(conn: &mut SqliteConnection, table: &str) -> sqlx::Result<Vec<FoundColumn>> {
    let rows = sqlx::query(
        "SELECT name, type, \"notnull\", dflt_value IS NOT NULL OR hidden <> 0 FROM pragma_table_xinfo($1)",
    )
    .bind(table)
    .fetch_all(conn)
    .await?;
    let column = |row: &SqliteRow| {
        Ok(FoundColumn {
            name: row.try_get(0)?,
            kind: affinity(&row.try_get::<String, _>(1)?).to_owned(),
            not_null: row.try_get(2)?,
            has_default: row.try_get(3)?,
            collation: None,
        })
    };
    rows.iter().map(column).collect()
}

/// The affinity that a declared type has, by SQLite's own rules.
fn affinity(declared: &str) -> &'static str {
    let declared = declared.to_ascii_uppercase();
    let has = |part| declared.contains(part);
    if has("INT") {
        "INTEGER"
    } else if has("CHAR") || has("CLOB") || has("TEXT") {
        "TEXT"
    } else if has("BLOB") || declared.is_empty() {
        "BLOB"
    } else if has("REAL") || has("FLOA") || has("DOUB") {
        "REAL"
    } else {
        "NUMERIC"
    }
}

/// The column that is an alias of the rowid, if one is.
async fn rowid_alias(conn: &mut SqliteConnection, table: &str) -> sqlx::Result<Option<String>> {
    let keys = sqlx::query("SELECT name, type FROM pragma_table_info($1) WHERE pk > 0")
        .bind(table)
        .fetch_all(&mut *conn)
        .await?;
    let without_rowid =
        sqlx::query("SELECT wr FROM pragma_table_list WHERE schema = 'main' AND name = $1 COLLATE NOCASE")
            .bind(table)
            .fetch_optional(conn)
            .await?;
    let without_rowid = without_rowid.map(|row| row.try_get::<bool, _>(0)).transpose()?;
    match keys.as_slice() {
        [only] if only.try_get::<String, _>(1)?.eq_ignore_ascii_case("INTEGER") && without_rowid == Some(false) => {
            only.try_get(0).map(Some)
        }
        _ => Ok(None),
    }
}

async fn keys(conn: &mut SqliteConnection, table: &str) -> sqlx::Result<Vec<FoundKey>> {
    let indexes =
        sqlx::query("SELECT name, partial FROM pragma_index_list($1) WHERE \"unique\" ORDER BY origin <> 'pk', name")
            .bind(table)
            .fetch_all(&mut *conn)
            .await?;
    let mut found = Vec::new();
    for index in indexes {
        let mut key = FoundKey {
            name: index.try_get(0)?,
            complete: !index.try_get::<bool, _>(1)?,
            ..FoundKey::default()
        };
        let sql: Option<String> =
            sqlx::query_scalar("SELECT sql FROM main.sqlite_schema WHERE type = 'index' AND name = $1")
                .bind(&key.name)
                .fetch_optional(&mut *conn)
                .await?
                .flatten();
        let sql = sql.unwrap_or_default();
        let parts = sqlx::query("SELECT name, coll FROM pragma_index_xinfo($1) WHERE key")
            .bind(&key.name)
            .fetch_all(&mut *conn)
            .await?;
        for part in parts {
            match part.try_get(0)? {
                Some(column) => key.columns.push(column),
                None => key.columns.push(expression(&sql)),
            }
            let collation: String = part.try_get(1)?;
            if !collation.eq_ignore_ascii_case("BINARY") {
                key.collation = Some(collation);
            }
        }
        found.push(key);
    }
    Ok(found)
}

/// An expression of an index, of which SQLite keeps only the statement that made it: the one that the inbox uses, or another.
fn expression(sql: &str) -> String {
    const OWN: &str = "coalesce(message_id, '')";
    let written: String = sql.to_ascii_lowercase().split_whitespace().collect();
    let own: String = OWN.split_whitespace().collect();
    if written.contains(&own) {
        OWN.to_owned()
    } else {
        "an expression".to_owned()
    }
}
