-- Since when a stream has not been read to its end (sources/feeds.py): kept over a restart of the process that reads it.
ALTER TABLE source_status
    ADD COLUMN fresh_at timestamptz;                    -- when nothing of it was left unread; NULL: never said
