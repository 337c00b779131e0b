//! The tables as they must be on every database, and the comparison of a table that was found with that.

/// A table of the inbox.
#[derive(Debug)]
pub(crate) struct TableSpec {
    pub(crate) name: &'static str,
    /// The rights that the runtime needs, in the words of `GRANT`.
    #[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "SQLite has no rights"))]
    pub(crate) rights: &'static [&'static str],
    /// Sets of columns, or of expressions as in `coalesce(message_id, '')`, that are unique; the primary key first. Nothing
    /// else may be unique, or rows of different messages would conflict.
    pub(crate) keys: &'static [&'static [&'static str]],
    pub(crate) columns: &'static [ColumnSpec],
}

/// A column of such a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ColumnSpec {
    pub(crate) name: &'static str,
    pub(crate) kind: ColumnKind,
    /// Whether it may be null.
    pub(crate) null: bool,
    /// Whether the table sets it where the runtime's INSERT doesn't: by a default or an identity.
    pub(crate) has_default: bool,
}

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColumnKind {
    /// Text that is part of a key: compared byte by byte.
    Key,
    Text,
    /// 64 bits.
    Integer,
    Bytes,
    Time,
    /// True or false.
    Flag,
}

impl ColumnSpec {
    const fn new(name: &'static str, kind: ColumnKind) -> Self {
        Self {
            name,
            kind,
            null: false,
            has_default: false,
        }
    }

    const fn null(self) -> Self {
        Self { null: true, ..self }
    }

    const fn has_default(self) -> Self {
        Self {
            has_default: true,
            ..self
        }
    }
}

const fn key(name: &'static str) -> ColumnSpec {
    ColumnSpec::new(name, ColumnKind::Key)
}

const fn text(name: &'static str) -> ColumnSpec {
    ColumnSpec::new(name, ColumnKind::Text)
}

const fn integer(name: &'static str) -> ColumnSpec {
    ColumnSpec::new(name, ColumnKind::Integer)
}

const fn bytes(name: &'static str) -> ColumnSpec {
    ColumnSpec::new(name, ColumnKind::Bytes)
}

const fn time(name: &'static str) -> ColumnSpec {
    ColumnSpec::new(name, ColumnKind::Time)
}

const fn flag(name: &'static str) -> ColumnSpec {
    ColumnSpec::new(name, ColumnKind::Flag)
}

/// The columns of a table with messages that are published, then others.
macro_rules! outbox_columns {
    ($($other:expr),* $(,)?) => {
        &[
            integer("id").has_default(),
            key("message_id"),
            key("subject"),
            bytes("message_key").null(),
            bytes("headers"),
            bytes("payload").null(),
            $($other,)*
        ]
    };
}
/// Every table of the inbox in PostgreSQL, as the last migration leaves it.
#[cfg(feature = "postgres")]
pub(crate) const POSTGRES: &[TableSpec] = &[
    EVENTS,
    ATTEMPTS,
    DEAD_LETTERS,
    TableSpec {
        name: "inbox_outbox",
        rights: ALL_RIGHTS,
        keys: &[&["lane", "id"]],
        columns: outbox_columns!(integer("lane"), time("created_at").has_default()),
    },
    TableSpec {
        name: "inbox_outbox_later",
        rights: ALL_RIGHTS,
        keys: &[&["due_at", "id"]],
        columns: outbox_columns!(integer("lane"), time("created_at").has_default(), time("due_at")),
    },
    TableSpec {
        name: "inbox_outbox_parked",
        rights: ALL_RIGHTS,
        keys: &[&["id"]],
        columns: outbox_columns!(
            integer("lane"),
            time("created_at"),
            text("error"),
            time("parked_at").has_default()
        ),
    },
];

/// Every table of the inbox in SQLite, whose outbox has no lanes.
#[cfg(feature = "sqlite")]
pub(crate) const SQLITE: &[TableSpec] = &[
    EVENTS,
    ATTEMPTS,
    DEAD_LETTERS,
    TableSpec {
        name: "inbox_outbox",
        rights: ALL_RIGHTS,
        keys: &[&["id"]],
        columns: outbox_columns!(time("created_at").has_default()),
    },
    TableSpec {
        name: "inbox_outbox_later",
        rights: ALL_RIGHTS,
        keys: &[&["id"]],
        columns: outbox_columns!(time("created_at").has_default(), time("due_at")),
    },
    TableSpec {
        name: "inbox_outbox_parked",
        rights: ALL_RIGHTS,
        keys: &[&["id"]],
        columns: outbox_columns!(time("created_at"), text("error"), time("parked_at").has_default()),
    },
];

const ALL_RIGHTS: &[&str] = &["SELECT", "INSERT", "UPDATE", "DELETE"];

/// The inbox rows.
const EVENTS: TableSpec = TableSpec {
    name: "inbox_events",
    rights: &["SELECT", "INSERT"],
    keys: &[&["consumer_group", "message_id"]],
    columns: &[
        key("consumer_group"),
        key("message_id"),
        integer("fingerprint"),
        time("processed_at").has_default(),
    ],
};

/// The attempts.
const ATTEMPTS: TableSpec = TableSpec {
    name: "inbox_attempts",
    rights: &["SELECT", "INSERT", "UPDATE", "DELETE"],
    keys: &[&["consumer_group", "handler", "position", "message_id", "fingerprint"]],
    columns: &[
        key("consumer_group"),
        key("handler"),
        key("position"),
        key("message_id").has_default(),
        integer("fingerprint").has_default(),
        integer("attempts"),
        flag("unfinished").has_default(),
        time("first_at").has_default(),
        time("last_at").has_default(),
        text("last_error").null(),
    ],
};

/// The dead letters.
const DEAD_LETTERS: TableSpec = TableSpec {
    name: "inbox_dead_letters",
    rights: &["SELECT", "INSERT", "UPDATE", "DELETE"],
    keys: &[
        &["id"],
        &[
            "consumer_group",
            "handler",
            "position",
            "coalesce(message_id, '')",
            "fingerprint",
        ],
    ],
    columns: &[
        integer("id").has_default(),
        key("consumer_group"),
        key("handler"),
        key("position"),
        text("subject"),
        key("message_id").null(),
        integer("fingerprint").has_default(),
        bytes("headers"),
        bytes("payload").null(),
        bytes("message_key").null(),
        time("published_at").null(),
        text("reason"),
        text("error"),
        integer("attempts"),
        time("first_failed_at"),
        time("dead_at").has_default(),
        time("replay_at").null(),
        integer("replay_lease").has_default(),
        flag("replay_taken").has_default(),
        time("replay_requested_at").null(),
    ],
};

/// A column as it was found.
#[derive(Debug, Default)]
pub(crate) struct FoundColumn {
    pub(crate) name: String,
    /// The type in the database's own words.
    pub(crate) kind: String,
    pub(crate) not_null: bool,
    /// By a default, an identity or as a generated column.
    pub(crate) has_default: bool,
    /// The collation, if different texts are equal by it.
    pub(crate) collation: Option<String>,
}

/// A unique index or constraint as it was found.
#[derive(Debug, Default)]
pub(crate) struct FoundKey {
    pub(crate) name: String,
    /// Its columns, and its expressions in lower case, without types.
    pub(crate) columns: Vec<String>,
    /// It holds for every row, and immediately: what `ON CONFLICT` needs.
    pub(crate) complete: bool,
    /// The collation, if different texts are equal by it.
    pub(crate) collation: Option<String>,
}

impl FoundKey {
    fn has_all(&self, columns: &[&str]) -> bool {
        columns
            .iter()
            .all(|column| self.columns.iter().any(|own| own == column))
    }

    fn is_on(&self, columns: &[&str]) -> bool {
        self.complete && self.collation.is_none() && self.has_all(columns) && self.columns.len() == columns.len()
    }

    fn describe(&self) -> String {
        let collated = self.collation.as_ref().map(|name| format!(" collated by {name}"));
        let part = if self.complete { "" } else { ", partial or deferred" };
        format!(
            "`{}` ({}{}{part})",
            self.name,
            self.columns.join(", "),
            collated.unwrap_or_default()
        )
    }
}

/// A table as it was found.
#[derive(Debug, Default)]
pub(crate) struct FoundTable {
    pub(crate) columns: Vec<FoundColumn>,
    pub(crate) keys: Vec<FoundKey>,
    /// Problems that only this database has, each as in `wanted a table; there is a view`.
    pub(crate) problems: Vec<String>,
    /// What may be meant as it is.
    pub(crate) warnings: Vec<String>,
}

impl FoundTable {
    /// The columns that don't exist.
    pub(crate) fn missing_columns(&self, table: &TableSpec) -> Vec<&'static str> {
        let exists = |column: &&ColumnSpec| self.columns.iter().any(|found| found.name == column.name);
        let missing = table.columns.iter().filter(|column| !exists(column));
        missing.map(|column| column.name).collect()
    }

    /// Every difference except missing columns: each with what is wanted and what was found.
    ///
    /// `types` are the types that a kind may have, the first as the migrations have it.
    pub(crate) fn differences(
        &self,
        table: &TableSpec,
        types: impl Fn(ColumnKind) -> &'static [&'static str],
    ) -> Vec<String> {
        let mut problems = self.problems.clone();
        for found in &self.columns {
            match table.columns.iter().find(|column| column.name == found.name) {
                Some(wanted) => compare_column(wanted, found, types(wanted.kind), &mut problems),
                None if found.not_null && !found.has_default => problems.push(format!(
                    "`{}` is a column that the inbox doesn't know and so can't fill: wanted none, or one that may be null or \
                     has a default; there is {} NOT NULL",
                    found.name, found.kind
                )),
                None => {}
            }
        }
        for (index, key) in table.keys.iter().enumerate() {
            if self.keys.iter().any(|found| found.is_on(key)) {
                continue;
            }
            let wanted = if index == 0 { "PRIMARY KEY" } else { "UNIQUE" };
            let there: Vec<_> = self.keys.iter().map(FoundKey::describe).collect();
            problems.push(format!(
                "its key: wanted {wanted} ({}); there is {}",
                key.join(", "),
                if there.is_empty() {
                    "none".to_owned()
                } else {
                    there.join(", ")
                }
            ));
        }
        let harmless = |found: &FoundKey| found.collation.is_none() && table.keys.iter().any(|key| found.has_all(key));
        for found in self.keys.iter().filter(|found| !harmless(found)) {
            problems.push(format!(
                "{} is unique, by which rows of different messages exclude one another: wanted no such index; drop it",
                found.describe()
            ));
        }
        problems
    }
}

/// Appends what is wrong with a column.
fn compare_column(wanted: &ColumnSpec, found: &FoundColumn, types: &[&str], problems: &mut Vec<String>) {
    let name = wanted.name;
    if !types.contains(&found.kind.as_str()) {
        problems.push(format!("`{name}`: wanted {}; there is {}", types[0], found.kind));
    }
    if wanted.kind == ColumnKind::Key
        && let Some(collation) = &found.collation
    {
        problems.push(format!(
            "`{name}`: wanted a collation that compares byte by byte; there is {collation}, by which different ids are equal"
        ));
    }
    match (wanted.null, found.not_null) {
        (true, true) => problems.push(format!("`{name}`: wanted a column that may be null; there is NOT NULL")),
        (false, false) => problems.push(format!("`{name}`: wanted NOT NULL; there is a column that may be null")),
        _ => {}
    }
    if wanted.has_default && !found.has_default {
        problems.push(format!("`{name}`: wanted a default; there is none"));
    }
}
