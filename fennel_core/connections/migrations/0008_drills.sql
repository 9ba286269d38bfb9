-- The result of the last drill of each job partition.
CREATE TABLE drill (
    job_id        text NOT NULL REFERENCES job ON DELETE CASCADE,
    part          integer NOT NULL,
    verdict       text NOT NULL,                         -- agrees | differs | corrupt | lost | skipped
    detail        text NOT NULL,                         -- for operators
    live_hash     text NOT NULL,                         -- hex, empty where none was compared
    drilled_hash  text NOT NULL,
    drilled_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (job_id, part)
);
