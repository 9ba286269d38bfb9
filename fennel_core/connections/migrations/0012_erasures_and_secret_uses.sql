-- Erasures leave with their workspace (ON DELETE CASCADE), and query servers forget them: channel 'erasure', payload the workspace.
-- A workspace of the same name, created again, would otherwise have them in the memory of these servers.
CREATE FUNCTION notify_erasures_removed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('erasure', workspace) FROM (SELECT DISTINCT workspace FROM removed) AS each;
    RETURN NULL;
END $$;
CREATE TRIGGER erasure_removed AFTER DELETE ON erasure
    REFERENCING OLD TABLE AS removed FOR EACH STATEMENT EXECUTE FUNCTION notify_erasures_removed();

-- The first use of a secret by each version of code is looked up by each process (connections/secret_uses.py).
CREATE INDEX audit_event_secret_use ON audit_event (workspace, actor, subject) WHERE action = 'use-secret';
