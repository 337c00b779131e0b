-- A transaction that the runtime has lent to a handler is committed by the runtime or not at all. Its seal, the last statement
-- before its COMMIT, leaves the transaction's own id in inbox.sealed; every other COMMIT is refused here, and with it everything
-- that was written. The runtime's transactions are the deferrable ones, which nothing can change behind the claim (DEFERRABLE
-- has no other meaning for a transaction that writes): claims by hand, imports and restores are not looked at.
CREATE OR REPLACE FUNCTION inbox_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF pg_catalog.current_setting('transaction_deferrable') = 'on'
        AND pg_catalog.current_setting('inbox.sealed', true) IS DISTINCT FROM pg_catalog.pg_current_xact_id()::pg_catalog.text
    THEN
        RAISE EXCEPTION 'a handler tried to commit the inbox''s transaction' USING ERRCODE = 'IB001',
            HINT = 'The runtime commits when the handler has returned; use a savepoint for what may be undone.';
    END IF;
    RETURN NULL;
END
$$;

CREATE CONSTRAINT TRIGGER inbox_guard AFTER INSERT ON inbox_events DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION inbox_guard();
