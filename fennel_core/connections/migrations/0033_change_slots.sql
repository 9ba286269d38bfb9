-- Replication slots in databases of users (sources/change_slots.py): a row is there before its slot, and until the slot was
-- dropped. So it refers to no asset: the asset goes first.
CREATE TABLE change_slot (
    raw_topic   text PRIMARY KEY,                       -- of the source
    workspace   text NOT NULL,
    slot        text NOT NULL UNIQUE,                   -- random: a server may be used by several installations
    definition  bytea NOT NULL,                         -- canonical wire.connectors.PostgresChanges, secrets sealed
    error       text,                                   -- why it could not be dropped; null: it was not tried, or is in use
    dropped_at  timestamptz,                            -- when it was first dropped; it is dropped again before the row goes
    made_at     timestamptz NOT NULL DEFAULT now()
);
