-- Erased keys, permanently: ingest drops their rows on admission, query servers hide them. `key` are the bytes of the values of `columns`
-- in order (vocab.keys); a dataset is erased by name, in every branch and version that has it.
CREATE TABLE erasure (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    workspace   text NOT NULL REFERENCES workspace ON DELETE CASCADE,
    dataset     text NOT NULL,
    columns     text[] NOT NULL,
    key         bytea NOT NULL,
    hlc         bigint NOT NULL,                       -- stamp at which it was erased: rows of smaller stamps were there before
    created_at  timestamptz NOT NULL DEFAULT now(),
    UNIQUE (workspace, dataset, columns, key)
);

-- Wake-up: channel 'erasure', payload the workspace.
CREATE FUNCTION notify_erasure() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('erasure', NEW.workspace);
    RETURN NULL;
END $$;
CREATE TRIGGER erasure_added AFTER INSERT ON erasure FOR EACH ROW EXECUTE FUNCTION notify_erasure();
