-- Dead letters of sinks that are to be sent again, by the process that writes the sink (redrive/sink_replays.py). A row goes with its letter.
CREATE TABLE sink_replay (
    sink           text NOT NULL REFERENCES asset ON DELETE CASCADE,
    topic          text NOT NULL,                       -- of the letter
    part           integer NOT NULL,
    "offset"       bigint NOT NULL,
    message_part   integer,                             -- of the dataset's topic; NULL: the delete of an erased key
    message_offset bigint,
    PRIMARY KEY (sink, topic, part, "offset"),
    CHECK ((message_part IS NULL) = (message_offset IS NULL))
);

-- Changes of dead letters that were not sent again, because a later change of their key followed.
ALTER TABLE dead_letter_count
    ADD COLUMN superseded_rows bigint NOT NULL DEFAULT 0;

-- The last rewind that the writer of the sink has carried out: only shown, the truth is in its position.
ALTER TABLE sink_rewind
    ADD COLUMN carried_out bigint;                      -- its number; NULL: none since this column is here
