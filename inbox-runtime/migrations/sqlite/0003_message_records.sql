-- Attempts and dead letters belong to a message: its position, id and fingerprint together, since a broker may give a position
-- to another message. Rows from before have no id and the fingerprint 0, which is nobody's: they are kept, can be listed and
-- replayed, and no message finds its attempts in them.
-- unfinished: an attempt began and has not come to an end; if no process has it in hand, one died in it.
CREATE TABLE inbox_attempts_new (
    consumer_group TEXT NOT NULL COLLATE BINARY,
    handler TEXT NOT NULL COLLATE BINARY,
    position TEXT NOT NULL COLLATE BINARY,
    message_id TEXT NOT NULL DEFAULT '' COLLATE BINARY,
    fingerprint INTEGER NOT NULL DEFAULT 0,
    attempts INTEGER NOT NULL,
    unfinished INTEGER NOT NULL DEFAULT 0,
    first_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER)),
    last_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER)),
    last_error TEXT,
    PRIMARY KEY (consumer_group, handler, position, message_id, fingerprint)
) STRICT, WITHOUT ROWID;
INSERT INTO inbox_attempts_new (consumer_group, handler, position, attempts, first_at, last_at, last_error)
    SELECT consumer_group, handler, position, attempts, first_at, last_at, last_error FROM inbox_attempts;
DROP TABLE inbox_attempts;
ALTER TABLE inbox_attempts_new RENAME TO inbox_attempts;

-- replay_lease: the how-many-th lease of a letter its last replay has. replay_taken: somebody has that lease, until replay_at.
CREATE TABLE inbox_dead_letters_new (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    consumer_group TEXT NOT NULL COLLATE BINARY,
    handler TEXT NOT NULL COLLATE BINARY,
    position TEXT NOT NULL COLLATE BINARY,
    subject TEXT NOT NULL,
    message_id TEXT,
    fingerprint INTEGER NOT NULL DEFAULT 0,
    headers BLOB NOT NULL,
    payload BLOB,
    published_at INTEGER,
    reason TEXT NOT NULL,
    error TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    first_failed_at INTEGER NOT NULL,
    dead_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER)),
    replay_at INTEGER,
    message_key BLOB,
    replay_lease INTEGER NOT NULL DEFAULT 0,
    replay_taken INTEGER NOT NULL DEFAULT 0,
    replay_requested_at INTEGER
) STRICT;
INSERT INTO inbox_dead_letters_new (id, consumer_group, handler, position, subject, message_id, headers, payload,
        published_at, reason, error, attempts, first_failed_at, dead_at, replay_at, message_key, replay_requested_at)
    SELECT id, consumer_group, handler, position, subject, message_id, headers, payload, published_at, reason, error,
        attempts, first_failed_at, dead_at, replay_at, message_key,
        CASE WHEN replay_at IS NOT NULL THEN CAST(unixepoch('subsec') * 1000 AS INTEGER) END
    FROM inbox_dead_letters;
-- The number of a letter that is gone is not given again.
DELETE FROM sqlite_sequence WHERE name = 'inbox_dead_letters_new';
INSERT INTO sqlite_sequence (name, seq)
    SELECT 'inbox_dead_letters_new', seq FROM sqlite_sequence WHERE name = 'inbox_dead_letters';
DROP TABLE inbox_dead_letters;
ALTER TABLE inbox_dead_letters_new RENAME TO inbox_dead_letters;
CREATE UNIQUE INDEX inbox_dead_letters_message
    ON inbox_dead_letters (consumer_group, handler, position, coalesce(message_id, ''), fingerprint);
CREATE INDEX inbox_dead_letters_replay ON inbox_dead_letters (consumer_group, handler, replay_at) WHERE replay_at IS NOT NULL;
