-- The key of a dead letter's message, where its broker has keys: what a message without a payload is about.
ALTER TABLE inbox_dead_letters ADD COLUMN message_key bytea;
