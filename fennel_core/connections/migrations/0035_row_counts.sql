-- How many rows entered from a source, or changes were written to a sink, in all (sources/row_counts.py, sinks/host.py). For people alone.
ALTER TABLE source_status
    ADD COLUMN row_count bigint;                        -- NULL: not counted yet
