-- Connectors that definitions name with `Kafka.get(name)` and its like (connectors/store.py).
CREATE TABLE connector (
    workspace     text NOT NULL REFERENCES workspace ON DELETE CASCADE,
    name          text NOT NULL,
    message       bytea NOT NULL,                       -- ExtDatabase of the protocol, its secrets sealed
    number        bigint NOT NULL,                      -- of the changes: each names the one before it
    changed_at    timestamptz NOT NULL DEFAULT now(),
    changed_by    text NOT NULL,
    PRIMARY KEY (workspace, name)
);
