-- The tables of the embedded broker, version 1. Runs once, in one transaction, in an empty database.

PRAGMA application_id = 1229084721;
PRAGMA user_version = 1;

CREATE TABLE broker (
    instance TEXT NOT NULL
) STRICT;

-- AUTOINCREMENT: a sequence number is never reused, whatever is deleted.
CREATE TABLE messages (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    subject TEXT NOT NULL,
    published_at INTEGER NOT NULL,
    headers BLOB NOT NULL,
    payload BLOB
) STRICT;

-- A message up to `position` is pending, or settled, or not the consumer's; later ones weren't scanned yet.
CREATE TABLE consumers (
    id INTEGER PRIMARY KEY,
    consumer_group TEXT NOT NULL,
    subject TEXT NOT NULL,
    position INTEGER NOT NULL,
    ack_wait INTEGER NOT NULL,
    acked INTEGER NOT NULL DEFAULT 0,
    UNIQUE (consumer_group, subject)
) STRICT;

-- The unsettled deliveries. `taken_at` is when `visible_at` was set. Both in milliseconds since 1970.
CREATE TABLE pending (
    consumer INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    delivery_count INTEGER NOT NULL,
    taken_at INTEGER NOT NULL,
    visible_at INTEGER NOT NULL,
    PRIMARY KEY (consumer, seq)
) STRICT, WITHOUT ROWID;

CREATE INDEX pending_visible ON pending (consumer, visible_at);
CREATE INDEX pending_taken ON pending (consumer, taken_at);

-- An acknowledgement is one statement, which needs no transaction and can't be cancelled half-way.
CREATE TRIGGER pending_acked AFTER DELETE ON pending
BEGIN
    UPDATE consumers SET acked = acked + 1 WHERE id = OLD.consumer;
END;
