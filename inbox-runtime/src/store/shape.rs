//! What the inbox's tables must look like, on every database: the one list that the start checks go by.

/// A table of the inbox.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) name: &'static str,
    /// What the runtime does to it, in the words of `GRANT`.
    #[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "SQLite has no rights"))]
    pub(crate) rights: &'static [&'static str],
    /// Sets of columns, or of expressions as in `coalesce(message_id, '')`, that are unique; the primary key first. Nothing
    /// else may be unique: two rows that differ in these must both fit.
    pub(crate) keys: &'static [&'static [&'static str]],
    pub(crate) columns: &'static [Column],
}

/// A column of such a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// Whether it may be null.
    pub(crate) null: bool,
    /// Whether the table fills it where the runtime's INSERT doesn't: by a default or an identity.
    pub(crate) filled: bool,
}

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Text that is part of a key: compared byte by byte.
    Key,
    Text,
    /// A whole number of 64 bits.
    Whole,
    Bytes,
    Time,
    /// True or false.
    Flag,
}

impl Column {
    const fn new(name: &'static str, kind: Kind) -> Self {
        Self {
            name,
            kind,
            null: false,
            filled: false,
        }
    }

    const fn null(self) -> Self {
        Self { null: true, ..self }
    }

    const fn filled(self) -> Self {
        Self { filled: true, ..self }
    }
}

const fn key(name: &'static str) -> Column {
    Column::new(name, Kind::Key)
}

const fn text(name: &'static str) -> Column {
    Column::new(name, Kind::Text)
}

const fn whole(name: &'static str) -> Column {
    Column::new(name, Kind::Whole)
}

const fn bytes(name: &'static str) -> Column {
    Column::new(name, Kind::Bytes)
}

const fn time(name: &'static str) -> Column {
    Column::new(name, Kind::Time)
}

const fn flag(name: &'static str) -> Column {
    Column::new(name, Kind::Flag)
}

/// Every table of the inbox, as the last migration leaves it.
pub(crate) const TABLES: &[Table] = &[
    Table {
        name: "inbox_events",
        rights: &["SELECT", "INSERT"],
        keys: &[&["consumer_group", "message_id"]],
        columns: &[
            key("consumer_group"),
            key("message_id"),
            whole("fingerprint"),
            time("processed_at").filled(),
        ],
    },
    Table {
        name: "inbox_attempts",
        rights: &["SELECT", "INSERT", "UPDATE", "DELETE"],
        keys: &[&["consumer_group", "handler", "position", "message_id", "fingerprint"]],
        columns: &[
            key("consumer_group"),
            key("handler"),
            key("position"),
            key("message_id").filled(),
            whole("fingerprint").filled(),
            whole("attempts"),
            flag("unfinished").filled(),
            time("first_at").filled(),
            time("last_at").filled(),
            text("last_error").null(),
        ],
    },
    Table {
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
            whole("id").filled(),
            key("consumer_group"),
            key("handler"),
            key("position"),
            text("subject"),
            key("message_id").null(),
            whole("fingerprint").filled(),
            bytes("headers"),
            bytes("payload").null(),
            bytes("message_key").null(),
            time("published_at").null(),
            text("reason"),
            text("error"),
            whole("attempts"),
            time("first_failed_at"),
            time("dead_at").filled(),
            time("replay_at").null(),
            whole("replay_lease").filled(),
            flag("replay_taken").filled(),
            time("replay_requested_at").null(),
        ],
    },
];

/// A column as it was found.
#[derive(Debug, Default)]
pub(crate) struct FoundColumn {
    pub(crate) name: String,
    /// The type in the database's own words.
    pub(crate) kind: String,
    pub(crate) not_null: bool,
    /// Whether the table fills it by itself.
    pub(crate) filled: bool,
    /// The collation, where it makes different texts equal.
    pub(crate) folds: Option<String>,
}

/// A unique index, or what works like one, as it was found.
#[derive(Debug, Default)]
pub(crate) struct FoundKey {
    pub(crate) name: String,
    /// Its columns, and its expressions in lower case, without types.
    pub(crate) columns: Vec<String>,
    /// It holds for every row, and at once: what `ON CONFLICT` needs.
    pub(crate) whole: bool,
    /// The collation of it, where that makes different texts equal.
    pub(crate) folds: Option<String>,
}

impl FoundKey {
    fn has_all(&self, columns: &[&str]) -> bool {
        columns
            .iter()
            .all(|column| self.columns.iter().any(|own| own == column))
    }

    fn is(&self, columns: &[&str]) -> bool {
        self.whole && self.folds.is_none() && self.has_all(columns) && self.columns.len() == columns.len()
    }

    fn describe(&self) -> String {
        let folds = self.folds.as_ref().map(|name| format!(" collated by {name}"));
        let part = if self.whole { "" } else { ", partial or deferred" };
        format!(
            "`{}` ({}{}{part})",
            self.name,
            self.columns.join(", "),
            folds.unwrap_or_default()
        )
    }
}

/// A table as it was found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) columns: Vec<FoundColumn>,
    pub(crate) keys: Vec<FoundKey>,
    /// What is wrong with it that only this database has, each as in `it is UNLOGGED; wanted a logged table`.
    pub(crate) problems: Vec<String>,
    /// What may be wrong with it.
    pub(crate) doubts: Vec<String>,
}

impl Found {
    /// The columns that aren't there.
    pub(crate) fn lacks(&self, table: &Table) -> Vec<&'static str> {
        let is_there = |column: &&Column| self.columns.iter().any(|found| found.name == column.name);
        let missing = table.columns.iter().filter(|column| !is_there(column));
        missing.map(|column| column.name).collect()
    }

    /// Every difference from what is wanted but missing columns: each with what is wanted and what is there.
    ///
    /// `types` has the types in which a kind may be kept, the first of them as the migrations have it.
    pub(crate) fn differences(&self, table: &Table, types: impl Fn(Kind) -> &'static [&'static str]) -> Vec<String> {
        let mut problems = self.problems.clone();
        for found in &self.columns {
            match table.columns.iter().find(|column| column.name == found.name) {
                Some(wanted) => column(wanted, found, types(wanted.kind), &mut problems),
                None if found.not_null && !found.filled => problems.push(format!(
                    "`{}` is a column that the inbox doesn't know and so can't fill: wanted none, or one that may be null or \
                     has a default; there is {} NOT NULL",
                    found.name, found.kind
                )),
                None => {}
            }
        }
        for (index, key) in table.keys.iter().enumerate() {
            if self.keys.iter().any(|found| found.is(key)) {
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
        let harmless = |found: &FoundKey| found.folds.is_none() && table.keys.iter().any(|key| found.has_all(key));
        for found in self.keys.iter().filter(|found| !harmless(found)) {
            problems.push(format!(
                "{} is unique, by which rows of different messages exclude one another: wanted no such index; drop it",
                found.describe()
            ));
        }
        problems
    }
}

fn column(wanted: &Column, found: &FoundColumn, types: &[&str], problems: &mut Vec<String>) {
    let name = wanted.name;
    if !types.contains(&found.kind.as_str()) {
        problems.push(format!("`{name}`: wanted {}; there is {}", types[0], found.kind));
    }
    if wanted.kind == Kind::Key
        && let Some(collation) = &found.folds
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
    if wanted.filled && !found.filled {
        problems.push(format!("`{name}`: wanted a default; there is none"));
    }
}
