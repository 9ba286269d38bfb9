-- Bounded sources that have ended, by the raw topic of what was read; kept with the topic (sources/controls.py).
CREATE TABLE source_end (
    raw_topic     text PRIMARY KEY REFERENCES asset ON DELETE CASCADE,
    ended_at      timestamptz,                          -- NULL: it was read on, since reopened_at
    reopened_at   timestamptz
);

-- A bounded table has ended when its runs have found no row for its idleness.
ALTER TABLE source_run
    ADD COLUMN last_rows_at timestamptz;                -- when a run that read rows last ended; NULL: none has
