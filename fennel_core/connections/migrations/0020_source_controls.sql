-- Sources that a user paused, by the raw topic of what is read; kept with the topic (sources/controls.py).
CREATE TABLE source_pause (
    raw_topic     text PRIMARY KEY REFERENCES asset ON DELETE CASCADE,
    paused_at     timestamptz NOT NULL DEFAULT now(),
    paused_by     text NOT NULL
);

-- How often the positions of a source were moved. A query that began at another number is started again; kept when a pause is lifted.
CREATE TABLE source_rewind (
    raw_topic     text PRIMARY KEY REFERENCES asset ON DELETE CASCADE,
    generation    bigint NOT NULL
);

-- What the process that reads the sources said last about each of them. It may be deleted: nothing is decided by it.
CREATE TABLE source_status (
    raw_topic     text PRIMARY KEY REFERENCES asset ON DELETE CASCADE,
    failures      integer NOT NULL,                     -- in a row; 0 once a batch was read
    behind        bigint,                               -- messages that are not read yet, as of the last batch
    reason        text,                                 -- why it is parked; NULL while it is read
    retry_at      timestamptz,                          -- when a parked one is tried again
    reported_at   timestamptz NOT NULL
);

-- What became of dead letters: rows of letters that were replayed, dropped, or written again because a replay refused them.
ALTER TABLE dead_letter_count
    ADD COLUMN replayed_rows bigint NOT NULL DEFAULT 0,
    ADD COLUMN dropped_rows  bigint NOT NULL DEFAULT 0,
    ADD COLUMN refused_rows  bigint NOT NULL DEFAULT 0;
