-- Workspaces whose queries are logged: the definition server creates the topic of each (ledger/query_logs.py). Query servers insert.
CREATE TABLE query_log (
    workspace    text PRIMARY KEY REFERENCES workspace ON DELETE CASCADE,
    requested_at timestamptz NOT NULL DEFAULT now()
);
