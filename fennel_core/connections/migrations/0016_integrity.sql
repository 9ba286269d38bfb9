-- The result of the last integrity check of each job that serves lookups.
CREATE TABLE integrity_check (
    job_id      text PRIMARY KEY REFERENCES job ON DELETE CASCADE,
    dataset     text NOT NULL,
    verdict     text NOT NULL,                       -- agrees | differs | skipped
    detail      text NOT NULL,                       -- for operators
    compared    bigint NOT NULL,                     -- keys
    differing   bytea[] NOT NULL,                    -- key bytes of keys that differ, at most 100
    seed        bigint NOT NULL,
    checked_at  timestamptz NOT NULL DEFAULT now()
);
