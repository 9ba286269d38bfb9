-- Incarnations start at the time of installation (milliseconds), so that two databases over one Kafka, or one created again, never give one
-- name to two things; and reconcile can distinguish its own orphans (numbers from here on) from those of another installation.
DO $$
DECLARE
    first bigint := (extract(epoch FROM clock_timestamp()) * 1000)::bigint;
BEGIN
    EXECUTE format('ALTER SEQUENCE asset_incarnation MINVALUE %s START WITH %s RESTART WITH %s', first, first, first);
END $$;
