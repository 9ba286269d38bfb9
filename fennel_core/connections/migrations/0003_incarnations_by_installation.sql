-- Incarnations start at the time of installation (milliseconds), so that two databases over one Kafka, or one created again, never give one
-- name to two things; and reconcile can distinguish its own orphans (numbers from here on) from those of another installation.
DO $$
DECLARE
    first bigint := (extract(epoch FROM clock_timestamp()) * 1000)::bigint;
BEGIN
    EXECUTE format('ALTER SEQUENCE asset_incarnation MINVALUE %s START WITH %s RESTART WITH %s', first, first, first);
END $$;

-- The identity of this installation: the first part of every key on S3 and of the path of local states (connections/installation.py). A
-- backup keeps it; give a copy that runs beside the original an id of its own.
CREATE TABLE installation (
    only_row    boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    id          text NOT NULL
);
INSERT INTO installation (id) SELECT substr(replace(gen_random_uuid()::text, '-', ''), 1, 16);
