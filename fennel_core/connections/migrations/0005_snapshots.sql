-- Finished snapshots of job partitions' state. A row is added only by the partition's current owner (its epoch). No reference to `job`:
-- the row outlives its job, because it says which objects are left to delete on S3.
CREATE TABLE snapshot (
    number      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id      text NOT NULL,
    part        integer NOT NULL,
    epoch       bigint NOT NULL,
    manifest    text NOT NULL UNIQUE,                  -- key of the manifest in the bucket
    sha256      text NOT NULL,                         -- of the manifest's bytes
    taken_at    timestamptz NOT NULL DEFAULT now(),
    incomplete  boolean NOT NULL DEFAULT false         -- an object of it was missing when objects were listed last
);
CREATE INDEX snapshot_of_partition ON snapshot (job_id, part, number DESC);
