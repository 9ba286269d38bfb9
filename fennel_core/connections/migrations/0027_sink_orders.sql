-- Sinks that a user paused, by the name that people use: whatever content a later version of the dataset has (sinks/controls.py).
CREATE TABLE sink_pause (
    workspace     text NOT NULL REFERENCES workspace ON DELETE CASCADE,
    sink          text NOT NULL,                        -- connector and place, as hooks/rows
    paused_at     timestamptz NOT NULL DEFAULT now(),
    paused_by     text NOT NULL,
    PRIMARY KEY (workspace, sink)
);

-- The last rewind of a sink. It is carried out by the writer, whose position has the number then.
CREATE TABLE sink_rewind (
    sink          text PRIMARY KEY REFERENCES asset ON DELETE CASCADE,
    number        bigint NOT NULL,                      -- grows, also behind a restored backup: microseconds since 1970
    whole         boolean NOT NULL,                     -- from the first record that can be read
    partitions    integer[] NOT NULL,
    offsets       bigint[] NOT NULL                     -- of the first message that is written again
);
