-- Messages that wait to be published, written in the transaction of the state that they tell of, and deleted when the broker has
-- confirmed them. lane: of its subject and key; the messages of one lane are published by one relay at a time, by id.
-- message_id: also among the headers, by which its consumers deduplicate it. headers: as in inbox_dead_letters.
CREATE TABLE inbox_outbox (
    lane bigint NOT NULL,
    id bigint GENERATED ALWAYS AS IDENTITY,
    message_id text COLLATE "C" NOT NULL,
    subject text COLLATE "C" NOT NULL,
    message_key bytea,
    headers bytea NOT NULL,
    payload bytea,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (lane, id)
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_vacuum_insert_threshold = -1
);

-- Those that are delayed: moved to inbox_outbox when they are due.
CREATE TABLE inbox_outbox_later (
    due_at timestamptz NOT NULL,
    id bigint GENERATED ALWAYS AS IDENTITY,
    lane bigint NOT NULL,
    message_id text COLLATE "C" NOT NULL,
    subject text COLLATE "C" NOT NULL,
    message_key bytea,
    headers bytea NOT NULL,
    payload bytea,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (due_at, id)
);
CREATE INDEX inbox_outbox_later_message ON inbox_outbox_later (message_id);

-- Those that the broker has refused for good, with the reason.
CREATE TABLE inbox_outbox_parked (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    lane bigint NOT NULL,
    message_id text COLLATE "C" NOT NULL,
    subject text COLLATE "C" NOT NULL,
    message_key bytea,
    headers bytea NOT NULL,
    payload bytea,
    created_at timestamptz NOT NULL,
    error text NOT NULL,
    parked_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
