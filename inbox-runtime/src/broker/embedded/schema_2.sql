-- What version 2 adds: retention. Runs behind `schema.sql` in a new file, and on a file of version 1, in one transaction.

PRAGMA user_version = 2;

-- The durable began behind this sequence number: what comes before is not its.
ALTER TABLE consumers ADD COLUMN began_after INTEGER NOT NULL DEFAULT 0;
-- When a process was last known to have it open, in milliseconds since 1970.
ALTER TABLE consumers ADD COLUMN seen_at INTEGER NOT NULL DEFAULT 0;

UPDATE consumers SET seen_at = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER);

-- One that began at the first message has pending or acknowledged all of its messages up to its position. Of another one of
-- version 1 it isn't known where it began, and what lies before now doesn't count as settled by it.
UPDATE consumers SET began_after = position
WHERE acked + (SELECT count(*) FROM pending WHERE consumer = consumers.id)
    < (SELECT count(*) FROM messages WHERE seq <= position AND subject GLOB replace(consumers.subject, '>', '*'));

-- Durables that were removed: what was theirs needn't be kept for a group that may come.
CREATE TABLE removed (
    subject TEXT NOT NULL,
    began_after INTEGER NOT NULL,
    -- The last message that was there when it was removed.
    ended_at INTEGER NOT NULL
) STRICT;

-- Messages that may be settled by every durable, with the time of the last acknowledgement, in milliseconds since 1970. A
-- message that isn't settled is taken out when that is noticed: its last acknowledgement brings it back.
CREATE TABLE settled (
    seq INTEGER PRIMARY KEY,
    at INTEGER NOT NULL
) STRICT;

CREATE INDEX settled_at ON settled (at);

INSERT INTO settled (seq, at)
SELECT DISTINCT m.seq, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)
FROM consumers c JOIN messages m ON m.seq > c.began_after AND m.seq <= c.position
WHERE m.subject GLOB replace(c.subject, '>', '*');

DROP TRIGGER pending_acked;

CREATE TRIGGER pending_acked AFTER DELETE ON pending
BEGIN
    UPDATE consumers SET acked = acked + 1 WHERE id = OLD.consumer;
    INSERT INTO settled (seq, at) VALUES (OLD.seq, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER))
    ON CONFLICT (seq) DO UPDATE SET at = excluded.at;
END;

-- A durable that is removed, by whatever means, holds nothing back any more.
CREATE TRIGGER consumer_removed AFTER DELETE ON consumers
BEGIN
    DELETE FROM pending WHERE consumer = OLD.id;
    INSERT INTO removed (subject, began_after, ended_at)
    SELECT OLD.subject, OLD.began_after, coalesce(max(seq), 0) FROM messages;
    INSERT INTO settled (seq, at)
    SELECT seq, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) FROM messages WHERE seq > OLD.began_after
    ON CONFLICT (seq) DO NOTHING;
END;
