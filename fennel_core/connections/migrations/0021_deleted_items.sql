-- What this database itself has deleted is no unknown data: its objects are deleted without regard to the limit (connections/garbage.py).
ALTER TABLE garbage ADD COLUMN deleted boolean NOT NULL DEFAULT false;

CREATE FUNCTION note_deleted_item() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO garbage (kind, name, deleted) VALUES (TG_ARGV[0], OLD.id, true) ON CONFLICT (kind, name) DO UPDATE SET deleted = true;
    RETURN NULL;
END $$;

-- Ids of assets and requests are never used twice.
CREATE TRIGGER job_deleted AFTER DELETE ON asset FOR EACH ROW WHEN (OLD.kind = 'job')
    EXECUTE FUNCTION note_deleted_item('snapshot-job');
CREATE TRIGGER job_destroyed AFTER UPDATE OF state ON asset FOR EACH ROW WHEN (OLD.kind = 'job' AND NEW.state = 'deleted')
    EXECUTE FUNCTION note_deleted_item('snapshot-job');
CREATE TRIGGER topic_deleted AFTER DELETE ON asset FOR EACH ROW WHEN (OLD.kind IN ('topic', 'raw', 'querylog'))
    EXECUTE FUNCTION note_deleted_item('history-topic');
CREATE TRIGGER topic_destroyed AFTER UPDATE OF state ON asset FOR EACH ROW
    WHEN (OLD.kind IN ('topic', 'raw', 'querylog') AND NEW.state = 'deleted')
    EXECUTE FUNCTION note_deleted_item('history-topic');
CREATE TRIGGER offline_request_deleted AFTER DELETE ON offline_query FOR EACH ROW
    EXECUTE FUNCTION note_deleted_item('offline-query');
