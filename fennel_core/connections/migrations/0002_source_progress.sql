-- Lateness counts only what was accepted before the last accepted request, and a bounded source ends when it has been idle:
-- `watermark_us` is the largest event time before the last accepted request, `latest_us` the largest of all.
ALTER TABLE source_clock ADD COLUMN latest_us bigint;
ALTER TABLE source_clock ADD COLUMN last_rows_at timestamptz;
COMMENT ON COLUMN source_clock.watermark_us IS 'largest event time accepted before the last accepted request: rows older than it less disorder are late';
