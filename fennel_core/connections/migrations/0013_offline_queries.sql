-- Requests for training data (`query_offline`). They leave with their workspace; the objects of a request are below offline/<workspace>/<id>/ of
-- the installation's prefix on S3, and are found there by their id (offline/request_removal.py).
CREATE TABLE offline_query (
    id          text PRIMARY KEY,
    workspace   text NOT NULL REFERENCES workspace ON DELETE CASCADE,
    branch      text NOT NULL,
    actor       text NOT NULL,                         -- who asked, as in the audit log
    definition  jsonb NOT NULL,                        -- offline/request_row.py: RequestDefinition
    state       text NOT NULL,                         -- queued | running | done | failed | cancelled
    created_at  timestamptz NOT NULL DEFAULT now(),
    starts      integer NOT NULL DEFAULT 0,            -- runs that were started for it
    epoch       integer NOT NULL DEFAULT 0,            -- runs that claimed it; only the last one may write
    lease_until timestamptz,                           -- of the started run or of the claim; a later run may take over then
    began_at    timestamptz,
    ended_at    timestamptz,
    completion  double precision NOT NULL DEFAULT 0,   -- 0 to 1, as the last run has reported it
    result      jsonb,                                 -- RequestResult of a request that is done
    failure     jsonb,                                 -- RequestFailure of a failed one
    removed_at  timestamptz                            -- its objects were deleted
);
CREATE INDEX offline_query_of_workspace ON offline_query (workspace, created_at DESC);
CREATE INDEX offline_query_open ON offline_query (created_at) WHERE ended_at IS NULL;
CREATE INDEX offline_query_stored ON offline_query (ended_at) WHERE removed_at IS NULL;
