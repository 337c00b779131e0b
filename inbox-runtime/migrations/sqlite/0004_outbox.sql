-- Messages that wait to be published, written in the transaction of the state that they tell of, and deleted when the broker has
-- confirmed them, in the order of their ids. message_id: also among the headers, by which its consumers deduplicate it.
-- headers: as in inbox_dead_letters.
CREATE TABLE inbox_outbox (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    message_id TEXT NOT NULL COLLATE BINARY,
    subject TEXT NOT NULL COLLATE BINARY,
    message_key BLOB,
    headers BLOB NOT NULL,
    payload BLOB,
    created_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER))
) STRICT;

-- Those that are delayed: moved to inbox_outbox when they are due.
CREATE TABLE inbox_outbox_later (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    due_at INTEGER NOT NULL,
    message_id TEXT NOT NULL COLLATE BINARY,
    subject TEXT NOT NULL COLLATE BINARY,
    message_key BLOB,
    headers BLOB NOT NULL,
    payload BLOB,
    created_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER))
) STRICT;
CREATE INDEX inbox_outbox_later_due ON inbox_outbox_later (due_at, id);
CREATE INDEX inbox_outbox_later_message ON inbox_outbox_later (message_id);

-- Those that the broker has refused for good, with the reason.
CREATE TABLE inbox_outbox_parked (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    message_id TEXT NOT NULL COLLATE BINARY,
    subject TEXT NOT NULL COLLATE BINARY,
    message_key BLOB,
    headers BLOB NOT NULL,
    payload BLOB,
    created_at INTEGER NOT NULL,
    error TEXT NOT NULL,
    parked_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER))
) STRICT;
