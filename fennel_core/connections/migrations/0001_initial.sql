-- The platform's durable state. Times are the server's own now(): no client clock decides anything.
-- Every row that belongs to a tenant carries its workspace; every query names it.

CREATE TABLE workspace (
    name        text PRIMARY KEY,
    state       text NOT NULL DEFAULT 'open',          -- open | deleting (the destruction ledger empties it, then the row is deleted)
    partitions  integer,                               -- of every topic and job: fixed by the first commit, never changed
    created_at  timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE token (
    digest      bytea PRIMARY KEY,                     -- SHA-256 of the bearer token; the token itself is never stored
    workspace   text NOT NULL REFERENCES workspace ON DELETE CASCADE,
    created_at  timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE commit (
    id          text PRIMARY KEY,
    workspace   text NOT NULL REFERENCES workspace ON DELETE CASCADE,
    branch      text NOT NULL,
    state       text NOT NULL,                         -- life cycle: ledger/lifecycle.py
    digest      text NOT NULL,                         -- of request and options: the same commit twice is one commit
    request     bytea,                                 -- the client's SyncRequest as received; null, like merged and catalog, once pruned (ledger/pruning.py)
    options     jsonb NOT NULL,                        -- incremental, backfill, allow_data_loss
    base        text,                                  -- the branch's target that the definitions were validated against; final at T1
    merged      bytea,                                 -- the SyncRequest with all entities of this version (differs from request when incremental)
    catalog     bytea,                                 -- canonical blueprints.spec.Catalog, resolved to physical names
    plan        jsonb,                                 -- blueprints.plan_entries.PlanRecord, from T1 on
    stuck       jsonb NOT NULL DEFAULT '[]',           -- parked jobs that keep reads from moving: [{job, title, error}]
    catch_up    jsonb,                                 -- while warming: what the new jobs must have applied (ledger/readiness.py)
    error       text,
    error_code  text,
    error_status integer,                              -- HTTP status of the error
    problems    jsonb NOT NULL DEFAULT '[]',           -- findings of validation that the error lists: [{code, entity, text}]
    attempt     integer NOT NULL DEFAULT 0,            -- number of times the orchestrator was started
    lease_until timestamptz,                           -- until then a worker runs the commit; afterwards reconcile takes over
    created_at  timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz
);
CREATE INDEX commit_open ON commit (created_at) WHERE finished_at IS NULL;
CREATE INDEX commit_workspace ON commit (workspace, branch, created_at);
CREATE INDEX commit_base ON commit (base);
CREATE INDEX commit_prunable ON commit (finished_at) WHERE request IS NOT NULL AND finished_at IS NOT NULL;

CREATE TABLE branch (
    workspace   text NOT NULL REFERENCES workspace ON DELETE CASCADE,
    name        text NOT NULL,
    number      bigint GENERATED ALWAYS AS IDENTITY,   -- creation order
    target      text REFERENCES commit (id),           -- version that jobs write: moves at T2
    serving     text REFERENCES commit (id),           -- version that reads use: moves at the end of warming
    PRIMARY KEY (workspace, name)
);

CREATE SEQUENCE asset_incarnation;                     -- one number per plan; a workspace that is deleted and created again repeats no name

CREATE TABLE asset (
    id          text PRIMARY KEY,                      -- <workspace>.<kind>.<identity>.<incarnation>; never used twice
    workspace   text NOT NULL REFERENCES workspace ON DELETE CASCADE,
    kind        text NOT NULL,                         -- topic | replaylog | job | ...
    identity    text NOT NULL,
    incarnation bigint NOT NULL,                       -- from the sequence above
    state       text NOT NULL,                         -- life cycle: ledger/lifecycle.py
    title       text NOT NULL,                         -- for people
    blueprint   bytea NOT NULL,                        -- canonical blueprints.logical.LogicalTopic or LogicalJob
    sources_changed boolean NOT NULL DEFAULT false,    -- topic of a source dataset: it was continued with other sources (blueprints/source_contents.py)
    created_at  timestamptz NOT NULL DEFAULT now(),
    retained_at timestamptz,                           -- when the last holder released it, while it is retained
    destroy_after timestamptz,                         -- end of the grace period of a retained asset; null: it has no end
    if_empty    boolean NOT NULL DEFAULT false,        -- the grace period ends only if the topic has no rows then
    UNIQUE (workspace, kind, identity, incarnation)
);
CREATE INDEX asset_retained ON asset (workspace, kind, identity) WHERE state = 'retained';
CREATE INDEX asset_deleted ON asset (id) WHERE state = 'deleted';
CREATE UNIQUE INDEX asset_one_alive ON asset (workspace, kind, identity) WHERE state IN ('pending', 'created', 'live');

CREATE TABLE reservation (                             -- T1 reserves the assets that it keeps, adopts or creates
    commit_id   text NOT NULL REFERENCES commit ON DELETE CASCADE,
    asset_id    text NOT NULL REFERENCES asset ON DELETE CASCADE,
    PRIMARY KEY (commit_id, asset_id)
);

CREATE TABLE asset_ref (                               -- the ref-count of an asset is its number of rows here
    workspace   text NOT NULL,                         -- of the branch
    branch      text NOT NULL,
    commit_id   text NOT NULL REFERENCES commit ON DELETE CASCADE,   -- a branch version: a branch's target or serving commit
    asset_id    text NOT NULL REFERENCES asset,
    PRIMARY KEY (workspace, branch, commit_id, asset_id)
);
CREATE INDEX asset_ref_commit ON asset_ref (commit_id);
CREATE INDEX asset_ref_asset ON asset_ref (asset_id);

CREATE TABLE ledger_entry (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    ledger      text NOT NULL,                         -- creation | destruction
    workspace   text NOT NULL,
    commit_id   text,
    asset_id    text NOT NULL REFERENCES asset ON DELETE CASCADE,
    state       text NOT NULL,                         -- life cycle: ledger/lifecycle.py
    attempts    integer NOT NULL DEFAULT 0,
    error       text,
    updated_at  timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ledger_open ON ledger_entry (ledger, workspace) WHERE state IN ('pending', 'failed');
CREATE INDEX ledger_closed ON ledger_entry (updated_at) WHERE state IN ('done', 'cancelled');
CREATE INDEX ledger_of_commit ON ledger_entry (commit_id);
CREATE INDEX ledger_of_asset ON ledger_entry (asset_id);

CREATE TABLE orphan_topic (                            -- topics without an asset, with the time they were first seen: deleted after a grace period
    topic       text PRIMARY KEY,
    seen_at     timestamptz NOT NULL DEFAULT now()
);

-- The job registry: the jobs that engines run.
CREATE TABLE job (
    id          text PRIMARY KEY,                      -- the job's asset id
    workspace   text NOT NULL,
    spec        bytea NOT NULL,                        -- canonical blueprints.spec.Job
    desired     text NOT NULL DEFAULT 'run',           -- run | pause (runners stop, state is kept) | remove (runners stop, local state is deleted, then the row)
    created_at  timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE slot (                                    -- one row per process
    id          text PRIMARY KEY,
    name        text NOT NULL,                         -- <engine>-<number>: the same for each process of a slot; the youngest counts
    life        bigint GENERATED ALWAYS AS IDENTITY,   -- order of registration
    engine      text NOT NULL,
    address     text NOT NULL,                         -- Unix socket path or host:port of the slot's lookup service
    stopping    boolean NOT NULL DEFAULT false,
    lease_until timestamptz NOT NULL
);

CREATE TABLE job_partition (
    job_id      text NOT NULL REFERENCES job ON DELETE CASCADE,
    part        integer NOT NULL,
    epoch       bigint NOT NULL DEFAULT 0,             -- grows by compare-and-set, never repeats
    slot_id     text,
    lease_until timestamptz,
    status      text NOT NULL DEFAULT 'idle',          -- idle | replaying | backfilling | running | parked
    lag         bigint,                                -- records not applied yet, when last reported
    applied     jsonb NOT NULL DEFAULT '{}',           -- next offset per input topic while running: everything below is visible to lookups
    error       text,
    updated_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (job_id, part)
);
CREATE INDEX job_partition_slot ON job_partition (slot_id);

CREATE TABLE source_clock (                            -- one row per source identity: the only lateness state
    workspace    text NOT NULL REFERENCES workspace ON DELETE CASCADE,
    identity     text NOT NULL,
    watermark_us bigint,                               -- largest event time accepted in earlier requests
    discarded    bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (workspace, identity)
);

CREATE TABLE ingest_clock (                            -- causality across ingest servers: every request takes its stamp here
    workspace   text PRIMARY KEY REFERENCES workspace ON DELETE CASCADE,
    hlc         bigint NOT NULL DEFAULT 0
);

CREATE SEQUENCE ingest_server_number MAXVALUE 65535 CYCLE;

CREATE TABLE secret (
    workspace   text NOT NULL REFERENCES workspace ON DELETE CASCADE,
    name        text NOT NULL,
    sealed      bytea NOT NULL,                        -- Fernet token under the platform's key: plaintext never reaches Postgres
    updated_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (workspace, name)
);

-- Wake-ups. Channels: 'registry' (slots: jobs changed, or job partitions are free), 'owners' (readers: job partitions have other owners), 'catalog' (payload '<workspace>/<branch>': reload that branch) and 'commit' (payload: id of a commit whose waiting clients may have an answer).
CREATE FUNCTION notify_registry() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('registry', '');
    RETURN NULL;
END $$;
CREATE TRIGGER job_changed AFTER INSERT OR UPDATE OR DELETE ON job FOR EACH STATEMENT EXECUTE FUNCTION notify_registry();

CREATE FUNCTION notify_catalog() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('catalog', coalesce(NEW.workspace, OLD.workspace) || '/' || coalesce(NEW.name, OLD.name));
    RETURN NULL;
END $$;
CREATE TRIGGER branch_changed AFTER INSERT OR UPDATE OR DELETE ON branch FOR EACH ROW EXECUTE FUNCTION notify_catalog();

CREATE FUNCTION notify_commit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('commit', NEW.id);
    RETURN NULL;
END $$;
CREATE TRIGGER commit_changed AFTER UPDATE OF state, finished_at, stuck ON commit FOR EACH ROW
    WHEN ((OLD.state, OLD.finished_at, OLD.stuck) IS DISTINCT FROM (NEW.state, NEW.finished_at, NEW.stuck))
    EXECUTE FUNCTION notify_commit();
