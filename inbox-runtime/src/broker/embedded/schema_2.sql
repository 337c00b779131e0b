-- Version 2: retention. Runs after `schema.sql` in a new file, and on a file of version 1, in one transaction.

PRAGMA user_version = 2;

-- The consumer started after this sequence number: earlier messages are not its.
ALTER TABLE consumers ADD COLUMN began_after INTEGER NOT NULL DEFAULT 0;
-- When a process last had it open, in milliseconds since 1970.
ALTER TABLE consumers ADD COLUMN seen_at INTEGER NOT NULL DEFAULT 0;

UPDATE consumers SET seen_at = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER);

-- All messages up to the position of a consumer that started at the first one are pending or acknowledged. Where any other consumer
-- of version 1 started is unknown: earlier messages don't count as settled by it.
UPDATE consumers SET began_after = position
WHERE acked + (SELECT count(*) FROM pending WHERE consumer = consumers.id)
    < (SELECT count(*) FROM messages WHERE seq <= position AND subject GLOB replace(consumers.subject, '>', '*'));

-- Removed consumers: their messages needn't be kept for future groups.
CREATE TABLE removed (
    subject TEXT NOT NULL,
    began_after INTEGER NOT NULL,
    -- The last message when it was removed.
    ended_at INTEGER NOT NULL
) STRICT;

-- Messages that may be settled by every consumer, with the time of the last acknowledgement in milliseconds since 1970. One that
-- isn't is deleted when that is noticed, and inserted again by its last acknowledgement.
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

-- A removed consumer keeps no messages, however it was removed.
CREATE TRIGGER consumer_removed AFTER DELETE ON consumers
BEGIN
    DELETE FROM pending WHERE consumer = OLD.id;
    INSERT INTO removed (subject, began_after, ended_at)
    SELECT OLD.subject, OLD.began_after, coalesce(max(seq), 0) FROM messages;
    INSERT INTO settled (seq, at)
    SELECT seq, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) FROM messages WHERE seq > OLD.began_after
    ON CONFLICT (seq) DO NOTHING;
END;
