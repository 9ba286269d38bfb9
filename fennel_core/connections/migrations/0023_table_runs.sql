-- The last run of each source that is read on a schedule, by the raw topic of its rows (sources/table_runs.py). Where a read continues is not
-- here but in the position that is written with the rows: this row may be deleted, and the source is then due at once.
CREATE TABLE source_run (
    raw_topic     text PRIMARY KEY REFERENCES asset ON DELETE CASCADE,
    run           text NOT NULL,                        -- its name; a report of another run is refused
    started_at    timestamptz NOT NULL,
    lease_until   timestamptz,                          -- NULL: it has ended. A run that reports nothing until then is lost
    completed_at  timestamptz,                          -- when a run last read all that there was
    first_at      timestamptz NOT NULL,                 -- when the first run of the source began
    failures      integer NOT NULL,                     -- in a row
    retry_at      timestamptz,                          -- when a failed one is tried again
    reason        text,                                 -- why the last run failed
    rows_read     bigint NOT NULL,                      -- of the last run, so far
    cursor        text,                                 -- the last value of the cursor that was read, for people
    held_by       bigint                                -- transactions that were running, whose rows wait for the next run
);
