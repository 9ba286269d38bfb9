-- Backfills of new job partitions over long history, requested by their owners, computed by a Spark batch. One is a function of its inputs, so
-- any owner may use it and no epoch guards it. No reference to `job`: the row says which objects are left to delete on S3.
CREATE TABLE backfill (
    job_id        text NOT NULL,
    part          integer NOT NULL,
    state         text NOT NULL DEFAULT 'requested',     -- requested | running | staged | failed | expired (no driver claimed it in time)
    claimed_until timestamptz,                           -- until then a driver computes it; afterwards another may
    manifest      text,                                  -- key of the manifest, once staged
    row_count     bigint NOT NULL,                       -- rows in history when it was requested
    error         text,
    updated_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (job_id, part)
);
