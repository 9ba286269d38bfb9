-- Tokens get a role, a name, an expiry and their last use. Tokens that exist keep what they could do.
ALTER TABLE token
    ADD COLUMN id text GENERATED ALWAYS AS (encode(substring(digest FROM 1 FOR 8), 'hex')) STORED UNIQUE,  -- names a token, opens nothing
    ADD COLUMN role text NOT NULL DEFAULT 'admin',     -- connections/roles.py
    ADD COLUMN name text NOT NULL DEFAULT '',          -- for people
    ADD COLUMN expires_at timestamptz,                 -- null: never
    ADD COLUMN last_used_at timestamptz,               -- at most a minute behind
    ADD COLUMN parent bytea REFERENCES token ON DELETE CASCADE,  -- of a read token: the token that asked for it; null also for development tokens
    ADD COLUMN is_read_token boolean NOT NULL DEFAULT false,     -- short-lived, and issues no other
    ALTER COLUMN workspace DROP NOT NULL,              -- null: a token of the installation
    ADD CONSTRAINT token_of_the_installation CHECK ((role = 'operator') = (workspace IS NULL));
ALTER TABLE token ALTER COLUMN role DROP DEFAULT;
CREATE INDEX token_workspace ON token (workspace);
CREATE INDEX token_parent ON token (parent);

-- Who did what, when, with which outcome. A call writes a row before it does anything and a second one with its outcome.
CREATE TABLE audit_event (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,  -- in order of commit: inserted under a lock
    call        text NOT NULL,                         -- the same in both rows of a call
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    workspace   text,                                  -- null: of the installation. No reference: events outlive their workspace
    actor       text NOT NULL,                         -- id and name of a token, or a user of this machine or of Airflow
    action      text NOT NULL,                         -- connections/audit_events.py
    subject     text NOT NULL,                         -- branch, dataset, name of a secret, ...; never a value
    outcome     text NOT NULL                          -- started | done | the code of the error
);
CREATE INDEX audit_event_workspace ON audit_event (workspace, id);

CREATE FUNCTION refuse_change_of_audit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the audit log is append-only';
END $$;
CREATE TRIGGER audit_event_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_event
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change_of_audit();

-- How far the audit log was exported to Kafka.
CREATE TABLE audit_export (
    exported    bigint NOT NULL                        -- the greatest exported audit_event.id
);
INSERT INTO audit_export VALUES (0);
