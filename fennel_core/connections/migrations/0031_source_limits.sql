-- How many rows per second may be read of a source, by the raw topic that it is written to; kept with the topic (sources/controls.py).
CREATE TABLE source_limit (
    raw_topic     text PRIMARY KEY REFERENCES asset ON DELETE CASCADE,
    rows_per_s    float8 NOT NULL CHECK (rows_per_s > 0 AND rows_per_s < 'Infinity'),
    limited_by    text NOT NULL,
    limited_at    timestamptz NOT NULL DEFAULT now()
);
