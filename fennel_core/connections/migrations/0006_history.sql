-- The index of history: a Parquet file on S3 counts only when its row is here. Rows of one (topic, part) are contiguous: each begins where
-- the one before it ends, the first at offset 0. Topics are asset ids, never used twice; no reference to `asset`, because rows outlive it
-- for a grace period and say which objects are left to delete.
CREATE TABLE history_file (
    topic        text NOT NULL,                        -- a dataset's topic, or the input of a terminal aggregate
    part         integer NOT NULL,
    first_offset bigint NOT NULL,                      -- the file holds exactly the data records of offsets [first_offset, next_offset)
    next_offset  bigint NOT NULL,
    object_key   text NOT NULL UNIQUE,                 -- immutable, uniquely named
    row_count    bigint NOT NULL,
    size_bytes   bigint NOT NULL,
    min_ts       bigint,                               -- event times, microseconds; null when the range held only control records
    max_ts       bigint,
    created_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (topic, part, first_offset),
    CHECK (0 <= first_offset AND first_offset < next_offset)
);

CREATE TABLE garbage (                                 -- stored things that the database does not know: deleted late (connections/garbage.py)
    kind         text NOT NULL,
    name         text NOT NULL,
    seen_at      timestamptz NOT NULL DEFAULT now(),   -- absent without interruption since then
    PRIMARY KEY (kind, name)
);
