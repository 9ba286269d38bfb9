-- How far a stream is behind where its messages have no numbers, as those of Kinesis (sources/kinesis.py).
ALTER TABLE source_status
    ADD COLUMN behind_ms bigint;                        -- age of the last record that was read beside the newest one
