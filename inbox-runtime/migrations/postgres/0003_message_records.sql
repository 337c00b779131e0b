-- Attempts and dead letters belong to a message: its position, id and fingerprint together, since a broker may give a position
-- to another message. Rows from before have no id and the fingerprint 0, which is nobody's: they are kept, can be listed and
-- replayed, and no message finds its attempts in them.
-- unfinished: an attempt began and has not come to an end; if no process has it in hand, one died in it.
ALTER TABLE inbox_attempts ADD COLUMN message_id text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE inbox_attempts ADD COLUMN fingerprint bigint NOT NULL DEFAULT 0;
ALTER TABLE inbox_attempts ADD COLUMN unfinished boolean NOT NULL DEFAULT false;
ALTER TABLE inbox_attempts DROP CONSTRAINT inbox_attempts_pkey;
ALTER TABLE inbox_attempts ADD PRIMARY KEY (consumer_group, handler, position, message_id, fingerprint);

-- replay_lease: the how-many-th lease of a letter its last replay has. replay_taken: somebody has that lease, until replay_at.
ALTER TABLE inbox_dead_letters ADD COLUMN fingerprint bigint NOT NULL DEFAULT 0;
ALTER TABLE inbox_dead_letters ADD COLUMN replay_lease bigint NOT NULL DEFAULT 0;
ALTER TABLE inbox_dead_letters ADD COLUMN replay_taken boolean NOT NULL DEFAULT false;
ALTER TABLE inbox_dead_letters ADD COLUMN replay_requested_at timestamptz;
UPDATE inbox_dead_letters SET replay_requested_at = clock_timestamp() WHERE replay_at IS NOT NULL;
ALTER TABLE inbox_dead_letters DROP CONSTRAINT inbox_dead_letters_consumer_group_handler_position_key;
CREATE UNIQUE INDEX inbox_dead_letters_message
    ON inbox_dead_letters (consumer_group, handler, position, coalesce(message_id, ''), fingerprint);

COMMENT ON COLUMN inbox_events.processed_at IS
    'when the message was claimed, which is before its handler began: its effects were committed after that time';
