-- Rows older than `history` leave by default (decision 0089): what holds them, and how far their clock may go.
ALTER TABLE workspace
    ADD COLUMN keeps_old_rows boolean NOT NULL DEFAULT true,   -- it is older than this migration, and no commit has confirmed that rows may leave
    ADD COLUMN aged_to timestamptz NOT NULL DEFAULT now();     -- by what time rows age: each maintenance run moves it on by a bounded step
ALTER TABLE workspace ALTER COLUMN keeps_old_rows SET DEFAULT false;
ALTER TABLE commit ADD COLUMN rows_held_until timestamptz;     -- no branch has the version any more, but a commit may revive what it had until then
ALTER TABLE ingest_clock ADD COLUMN rows_at timestamptz;       -- when rows were last accepted, from whatever source; erasures do not move it
UPDATE ingest_clock c SET rows_at = s.last_rows_at
    FROM (SELECT workspace, max(last_rows_at) AS last_rows_at FROM source_clock GROUP BY workspace) s WHERE s.workspace = c.workspace;

-- Until which time a file was searched is one thing, and which rows have left it another.
ALTER TABLE history_file ADD COLUMN expiry_searched_to bigint NOT NULL DEFAULT 0;   -- rows older than this were searched (microseconds since 1970)
UPDATE history_file SET expiry_searched_to = expired_to, expired_to = CASE WHEN expired_rows > 0 THEN expired_to ELSE 0 END
    WHERE expired_to > 0;
