-- How far the rows of a topic are evaluated against the expectations of their dataset, and what was found.
CREATE TABLE expectation_position (
    topic        text NOT NULL,
    part         integer NOT NULL,
    next_offset  bigint NOT NULL,
    PRIMARY KEY (topic, part)
);
CREATE TABLE expectation_count (
    topic        text NOT NULL,
    digest       text NOT NULL,                          -- of kind and arguments
    workspace    text NOT NULL REFERENCES workspace ON DELETE CASCADE,
    dataset      text NOT NULL,
    kind         text NOT NULL,
    arguments    text NOT NULL,                          -- JSON, as the client sent it
    mostly       double precision NOT NULL,
    evaluated    bigint NOT NULL,                        -- rows that the expectation considered
    failed       bigint NOT NULL,                        -- those of them that were not as expected
    failed_at    timestamptz,                            -- when the newest of these was evaluated
    PRIMARY KEY (topic, digest)
);
