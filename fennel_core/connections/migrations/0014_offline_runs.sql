-- The newest run of a request, and what it has reported. A run that Airflow's form has started has the name of the form's run.
ALTER TABLE offline_query
    ADD COLUMN run_name    text,                          -- NULL: offline-<id>-<starts>, of requests before this migration
    ADD COLUMN failed_rows bigint NOT NULL DEFAULT 0;     -- failed rows so far, as the last run has reported them
