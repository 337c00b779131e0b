-- One row per message that a consumer group has handled, written in the transaction of the handler's effects.
-- fingerprint: 32 bits of the subject's hash and 32 of the payload's. Keys are compared byte by byte.
CREATE TABLE inbox_events (
    consumer_group text COLLATE "C" NOT NULL,
    message_id text COLLATE "C" NOT NULL,
    fingerprint bigint NOT NULL,
    processed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer_group, message_id)
);

-- Attempts of a handler on one stored message that have not led to success yet.
CREATE TABLE inbox_attempts (
    consumer_group text COLLATE "C" NOT NULL,
    handler text COLLATE "C" NOT NULL,
    position text COLLATE "C" NOT NULL,
    attempts bigint NOT NULL,
    first_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_error text,
    PRIMARY KEY (consumer_group, handler, position)
);

-- Messages that their handler could not handle. headers: a JSON array of [name, text, bytes or null], as bytes.
-- replay_at: when the message is to go through the pipeline again, or null.
CREATE TABLE inbox_dead_letters (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer_group text COLLATE "C" NOT NULL,
    handler text COLLATE "C" NOT NULL,
    position text COLLATE "C" NOT NULL,
    subject text COLLATE "C" NOT NULL,
    message_id text COLLATE "C",
    headers bytea NOT NULL,
    payload bytea,
    published_at timestamptz,
    reason text NOT NULL,
    error text NOT NULL,
    attempts bigint NOT NULL,
    first_failed_at timestamptz NOT NULL,
    dead_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    replay_at timestamptz,
    UNIQUE (consumer_group, handler, position)
);

CREATE INDEX inbox_dead_letters_replay ON inbox_dead_letters (consumer_group, handler, replay_at) WHERE replay_at IS NOT NULL;
