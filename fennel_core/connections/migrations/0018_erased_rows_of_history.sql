-- Rows of erased keys leave the files of history (history/erasing.py). A file says up to which erasure its rows were searched, and how many were
-- removed. Numbers of erasures (erasure.id) of one workspace grow in the order of their commits: each takes the workspace's clock row first.
ALTER TABLE history_file
    ADD COLUMN searched_to  bigint NOT NULL DEFAULT 0,    -- rows of erasures up to this number are not in the file:
    ADD COLUMN searched_for text   NOT NULL DEFAULT '',   -- those of this dataset
    ADD COLUMN removed_rows bigint NOT NULL DEFAULT 0,    -- rows of erased keys that the file had
    ADD COLUMN min_stamp    bigint NOT NULL DEFAULT 0;    -- no row was accepted before this stamp (vocab.position); 0: not known
-- A replaced object may have rows of erased keys until it is deleted.
ALTER TABLE history_retired
    ADD COLUMN searched_to  bigint NOT NULL DEFAULT 0,
    ADD COLUMN searched_for text   NOT NULL DEFAULT '',
    ADD COLUMN min_stamp    bigint NOT NULL DEFAULT 0;
