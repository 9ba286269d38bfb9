-- Rows that are older than the `history` of their datasets leave the files of history (history/expiring.py). A file says how many have left, and up
-- to which event time it was searched; a partition has the sum.
ALTER TABLE history_file
    ADD COLUMN expired_rows bigint NOT NULL DEFAULT 0,    -- rows that were removed because they were too old
    ADD COLUMN expired_to   bigint NOT NULL DEFAULT 0;    -- each of them had an earlier event time (microseconds since 1970); 0: never searched
ALTER TABLE history_partition ADD COLUMN expired_rows bigint NOT NULL DEFAULT 0;
