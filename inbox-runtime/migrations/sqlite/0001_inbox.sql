-- One row per message that a consumer group has handled, written in the transaction of the handler's effects.
-- fingerprint: 32 bits of the subject's hash and 32 of the payload's; times are milliseconds since 1970 by SQLite's clock.
CREATE TABLE inbox_events (
    consumer_group TEXT NOT NULL COLLATE BINARY,
    message_id TEXT NOT NULL COLLATE BINARY,
    fingerprint INTEGER NOT NULL,
    processed_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER)),
    PRIMARY KEY (consumer_group, message_id)
) STRICT, WITHOUT ROWID;

-- Attempts of a handler on one stored message that have not led to success yet.
CREATE TABLE inbox_attempts (
    consumer_group TEXT NOT NULL COLLATE BINARY,
    handler TEXT NOT NULL COLLATE BINARY,
    position TEXT NOT NULL COLLATE BINARY,
    attempts INTEGER NOT NULL,
    first_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER)),
    last_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER)),
    last_error TEXT,
    PRIMARY KEY (consumer_group, handler, position)
) STRICT, WITHOUT ROWID;

-- Messages that their handler could not handle. headers: a JSON array of [name, bytes or null].
-- replay_at: when the message is to go through the pipeline again, or null.
CREATE TABLE inbox_dead_letters (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    consumer_group TEXT NOT NULL COLLATE BINARY,
    handler TEXT NOT NULL COLLATE BINARY,
    position TEXT NOT NULL COLLATE BINARY,
    subject TEXT NOT NULL,
    message_id TEXT,
    headers BLOB NOT NULL,
    payload BLOB,
    published_at INTEGER,
    reason TEXT NOT NULL,
    error TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    first_failed_at INTEGER NOT NULL,
    dead_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER)),
    replay_at INTEGER,
    UNIQUE (consumer_group, handler, position)
) STRICT;

CREATE INDEX inbox_dead_letters_replay ON inbox_dead_letters (consumer_group, handler, replay_at) WHERE replay_at IS NOT NULL;
