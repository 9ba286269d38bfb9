-- What history holds of each partition, so that its end and its totals are read without a scan of all files. It changes with the files, in
-- one transaction, which locks this row first. A partition has a row from its first file on.
CREATE TABLE history_partition (
    topic       text NOT NULL,
    part        integer NOT NULL,
    next_offset bigint NOT NULL,                          -- the largest next_offset of the partition's files
    files       bigint NOT NULL,
    row_count   bigint NOT NULL,
    size_bytes  bigint NOT NULL,
    PRIMARY KEY (topic, part)
);
INSERT INTO history_partition
SELECT topic, part, max(next_offset), count(*), sum(row_count), sum(size_bytes) FROM history_file GROUP BY topic, part;

-- Objects that are no files of history any more: replaced by a compaction, or of a deleted workspace. The row is the proof that the object
-- is this installation's and is not needed, so it is deleted without a mark in `garbage`.
CREATE TABLE history_retired (
    object_key      text PRIMARY KEY,
    topic           text NOT NULL,
    deletable_after timestamptz NOT NULL                  -- reads that were planned before may need the object until then
);
CREATE INDEX history_retired_topic ON history_retired (topic);
CREATE INDEX history_retired_deletable ON history_retired (deletable_after);
