-- How many rows the dead-letter topics hold or held, by who wrote them and why (dead_letters/counts.py). Rows end with their topic.
CREATE TABLE dead_letter_count (
    topic         text NOT NULL REFERENCES asset ON DELETE CASCADE,
    writer        text NOT NULL,                       -- id of a job, or `ingest`
    subject       text NOT NULL,                       -- a dataset, or the title of the job
    kind          text NOT NULL,                       -- not-admitted | user-code | expression | unclassified
    row_count     bigint NOT NULL,
    newest_at     timestamptz NOT NULL,
    newest_reason text NOT NULL,
    PRIMARY KEY (topic, writer, subject, kind)
);

CREATE TABLE dead_letter_position (                    -- up to where the messages of a partition are in the counts; changed with them
    topic         text NOT NULL REFERENCES asset ON DELETE CASCADE,
    part          integer NOT NULL,
    next_offset   bigint NOT NULL,
    PRIMARY KEY (topic, part)
);
