"""The settings of each DAG, and the trigger forms as JSON schemas.

Airflow validates every trigger against the schema of each `Param` (an invalid value returns 400 and
nothing starts), and draws the form in the UI from it. The definition server triggers the `commit`
DAG with `commit_id` only, for a request that it has stored; a user fills in the other fields. A
schema cannot express that either is required, so the first task checks it.

Every DAG file, and so every task, imports this module: it must not import anything heavy.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any, Final

from airflow.sdk import Param

TAGS: Final = ["fennel"]
CONCURRENT_COMMITS: Final = 64
"""A run that waits for its new jobs holds no worker, so more runs than workers are useful."""
COMMIT_HOURS: Final = 24
"""How long the new jobs of a commit may catch up; reads move later, too, without the run."""
RECONCILE_SCHEDULE: Final = "*/5 * * * *"
"""Bounds how long a commit whose process died stays unfinished after its lease."""

SNAPSHOT_MINUTES: Final = int(os.environ.get("FENNEL_SNAPSHOT_MINUTES") or 10)
"""`Settings.snapshot_minutes`, read from the environment because the settings model is too heavy to
import here; a test compares the two.
"""

DRILL_SCHEDULE: Final = os.environ.get("FENNEL_DRILL_SCHEDULE", "0 3 * * *").strip() or None
"""`Settings.drill_schedule`, read in the same way."""

INTEGRITY_SCHEDULE: Final = os.environ.get("FENNEL_INTEGRITY_SCHEDULE", "0 4 * * *").strip() or None
"""`Settings.integrity_schedule`, read in the same way."""

HISTORY_SCHEDULE: Final = (
    os.environ.get("FENNEL_HISTORY_MAINTENANCE_SCHEDULE", "20 */6 * * *").strip() or None
)
"""`Settings.history_maintenance_schedule`, read in the same way."""

RECOVERY_HOURS: Final = 6
CONCURRENT_REBUILDS: Final = 2
"""Rebuilds and one drill hold their workers for hours: the pool must have one left for snapshots,
without which logs grow.
"""
_SERVER: Final = "Set by the definition server"


def _workspace(description: str) -> Param:
    return Param(
        None,
        type=["null", "string"],
        pattern="^[a-z0-9-]{1,63}$",
        title="Workspace",
        description=description,
    )


def _branch(description: str) -> Param:
    return Param(
        "main",
        type="string",
        pattern="^[a-zA-Z0-9_./-]+$",
        title="Branch",
        description=description,
    )


def _stored(noun: str, title: str) -> Param:
    return Param(
        None,
        type=["null", "string"],
        title=title,
        description=f"The stored {noun}. Leave it empty: the definition server sets it, and then "
        "all other fields are ignored.",
        section=_SERVER,
    )


COMMIT_PARAMS: Final = {
    "definitions": Param(
        None,
        type=["null", "string"],
        minLength=1,
        title="Definitions",
        description="Module (shop.features) or path (/srv/shop/features.py, or a folder) whose "
        "datasets and featuresets are committed. "
        "Relative paths start at the platform's folder. It is loaded in the client's environment.",
        examples=["examples.fraud", "examples/fraud"],
    ),
    "workspace": _workspace(
        "The workspace that the token of your client opens: dev-alice opens alice, and "
        "creates it if development tokens are enabled."
    ),
    "branch": _branch("The branch that moves to these definitions. It must exist."),
    "message": Param(
        None,
        type=["null", "string"],
        maxLength=10_000,
        title="Message",
        description="What the commit changes and why.",
    ),
    "env": Param(
        None,
        type=["null", "string"],
        title="Environment",
        description="Keep only the definitions for this environment.",
    ),
    "preview": Param(
        False,
        type="boolean",
        title="Preview",
        description="Show the plan without changing anything.",
    ),
    "incremental": Param(
        False,
        type="boolean",
        title="Incremental",
        description="Add to the definitions of the branch, or change the named ones. Otherwise "
        "the definitions replace those of the branch.",
    ),
    "backfill": Param(
        True,
        type="boolean",
        title="Allow backfill",
        description="If off, a commit that must recompute from existing data is rejected.",
    ),
    "allow_data_loss": Param(
        False,
        type="boolean",
        title="Allow data loss",
        description="Confirm that rows which no other version holds may be destroyed. See the plan "
        "of a preview for their number.",
    ),
    "commit_id": _stored("commit to run", "Commit id"),
}

SELECTION_PARAMS: Final = {
    "workspace": _workspace("Select all job partitions of the workspace, or those of one dataset."),
    "dataset": Param(
        None,
        type=["null", "string"],
        minLength=1,
        title="Dataset",
        description="Select only the jobs of this dataset.",
    ),
    "jobs": Param(
        [],
        type="array",
        items={"type": "string"},
        title="Job ids",
        description="Select jobs instead of a workspace: ids as `fennel-core status --json` shows "
        "them, one per line.",
    ),
    "partitions": Param(
        [],
        type="array",
        items={"type": "integer", "minimum": 0},
        title="Partitions",
        description="Select only these partitions; leave it empty to select all.",
    ),
}
RECOVERY_PARAMS: Final = SELECTION_PARAMS | {
    "before": Param(
        None,
        type=["null", "integer"],
        minimum=1,
        title="Older than snapshot",
        description="Start from a snapshot with a lower number. A failed drill reports the number "
        "of its snapshot.",
    ),
    "dry_run": Param(
        False,
        type="boolean",
        title="Dry run",
        description="Show the selected job partitions without rebuilding them.",
    ),
}
DRILL_PARAMS: Final = SELECTION_PARAMS | {
    "at_most": Param(
        None,
        type=["null", "integer"],
        minimum=1,
        title="At most",
        description="Drill at most this many job partitions, least recently drilled first. If "
        "empty, all selected ones, or FENNEL_DRILL_PARTITIONS if none are selected.",
    ),
    "max_bytes": Param(
        None,
        type=["null", "integer"],
        minimum=1,
        title="Largest state",
        description="Skip states with more bytes than this. If empty: FENNEL_DRILL_BYTES.",
    ),
}

INTEGRITY_PARAMS: Final = {
    "workspace": _workspace("Check only the datasets of this workspace."),
    "dataset": Param(
        None,
        type=["null", "string"],
        minLength=1,
        title="Dataset",
        description="Check only this dataset.",
    ),
    "keys": Param(
        None,
        type=["null", "integer"],
        minimum=1,
        maximum=10_000,
        title="Keys",
        description="Keys of each dataset. If empty: FENNEL_INTEGRITY_KEYS.",
    ),
    "seed": Param(
        None,
        type=["null", "integer"],
        title="Seed",
        description="Sample the keys of an earlier check, whose log has its seed. If empty: "
        "another one every day.",
    ),
}

OFFLINE_QUERY_PARAMS: Final = {
    "workspace": _workspace("The workspace whose features are computed."),
    "branch": _branch("The branch that defines the features."),
    "inputs": Param(
        [],
        type="array",
        items={"type": "string"},
        title="Input features",
        description="Features that the rows give, one per line: Shopper.uid",
    ),
    "outputs": Param(
        [],
        type="array",
        items={"type": "string"},
        title="Output features",
        description="Features or featuresets to compute, one per line.",
    ),
    "timestamp_column": Param(
        None,
        type=["null", "string"],
        minLength=1,
        title="Timestamp column",
        description="The column of the rows that has the time of each.",
    ),
    "rows": Param(
        None,
        type=["null", "object"],
        title="Rows",
        description="Columns of values by name: "
        '{"Shopper.uid": [1, 2], "at": ["2026-01-01 00:00:00", "2026-01-02 00:00:00"]}. Programs '
        "send more rows with the client's `query_offline`.",
    ),
    "workflow": Param(
        "default",
        type="string",
        maxLength=200,
        title="Workflow",
        description="A name by which you find the request again.",
    ),
    "request_id": _stored("request to compute", "Request id"),
}

SCHEDULED_SOURCES_PARAMS: Final = {
    "sources": Param(
        [],
        type="array",
        items={"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2},
        title="Sources",
        description=f"{_SERVER}: what to read, and the name of the run. Empty: all that are due.",
    ),
}

RETRIES: Final = {"retries": 3, "retry_delay": timedelta(seconds=3)}
"""Retry a task that was killed, or that could not reach the database or Airflow's own API; steps
may run twice. Three retries outlast a restart of the api-server. An invalid commit is not retried.
"""

COMMIT_POOL: Final = "fennel_commit"
"""Pool of short tasks. `fennel_core/apps/local/airflow.py` makes the pools; a test compares them
with these names.
"""
LONG_POOL: Final = "fennel_long"
"""Pool of tasks that take minutes to hours; it is smaller than the number of workers."""

CHECKS_POOL: Final = "fennel_checks"
"""Pool of integrity checks, which must not take the place of a snapshot."""

OFFLINE_POOL: Final = "fennel_offline"
"""Pool of Spark jobs: offline queries, merges of history. Each uses all cores of its master, so few
run at once.
"""
SOURCES_POOL: Final = "fennel_sources"
"""Pool of reads of tables, one core each: first reads take hours, and others must not wait."""
CONCURRENT_SOURCE_RUNS: Final = 16
OFFLINE_HOURS: Final = 24

COMMIT_TASKS: Final = {**RETRIES, "pool": COMMIT_POOL, "weight_rule": "upstream"}
"""A task goes before those that it follows, also in other runs: commits that have begun are
finished before the first steps of new ones.
"""
AFTER_THE_ANSWER: Final[dict[str, Any]] = {"weight_rule": "absolute", "priority_weight": 0}
"""Tasks that no client waits for go after all tasks of `COMMIT_TASKS`: the definition server moves
reads as soon as it can, and answers then. Runs that have only these left still end, because no more
than `CONCURRENT_COMMITS` runs are active.
"""
LONG_TASKS: Final = {**RETRIES, "pool": LONG_POOL}

SHARED: Final[dict[str, Any]] = {
    "catchup": False,
    "is_paused_upon_creation": False,
    "tags": TAGS,
}
"""Settings of all DAGs."""

COMMIT: Final[dict[str, Any]] = {
    **SHARED,
    "default_args": COMMIT_TASKS,
    "schedule": None,
    "params": COMMIT_PARAMS,
    "max_active_runs": CONCURRENT_COMMITS,
    "dagrun_timeout": timedelta(hours=COMMIT_HOURS),
    "render_template_as_native_obj": True,
}
SNAPSHOT: Final[dict[str, Any]] = {
    **SHARED,
    "default_args": LONG_TASKS,
    "schedule": f"*/{SNAPSHOT_MINUTES} * * * *",
    "max_active_runs": 1,
    "dagrun_timeout": timedelta(hours=2),
}
RECOVERY: Final[dict[str, Any]] = {
    **SHARED,
    "default_args": LONG_TASKS,
    "schedule": None,
    "params": RECOVERY_PARAMS,
    "max_active_runs": CONCURRENT_REBUILDS,
    "dagrun_timeout": timedelta(hours=RECOVERY_HOURS),
}
DRILL: Final[dict[str, Any]] = {
    **SHARED,
    "default_args": LONG_TASKS,
    "schedule": DRILL_SCHEDULE,
    "params": DRILL_PARAMS,
    "max_active_runs": 1,
    "dagrun_timeout": timedelta(hours=RECOVERY_HOURS),
}
INTEGRITY: Final[dict[str, Any]] = {
    **SHARED,
    "default_args": {**RETRIES, "pool": CHECKS_POOL},
    "schedule": INTEGRITY_SCHEDULE,
    "params": INTEGRITY_PARAMS,
    "max_active_runs": 1,
    "dagrun_timeout": timedelta(hours=RECOVERY_HOURS),
}
RECONCILE: Final[dict[str, Any]] = {
    **SHARED,
    "default_args": {**RETRIES, "pool": COMMIT_POOL},
    "schedule": RECONCILE_SCHEDULE,
    "max_active_runs": 1,
    "dagrun_timeout": timedelta(minutes=30),
}
HISTORY_MAINTENANCE: Final[dict[str, Any]] = {
    **SHARED,
    "default_args": {**RETRIES, "pool": OFFLINE_POOL},
    "schedule": HISTORY_SCHEDULE,
    "max_active_runs": 1,
    "dagrun_timeout": timedelta(hours=OFFLINE_HOURS),
}
OFFLINE_QUERY: Final[dict[str, Any]] = {
    **SHARED,
    "default_args": {**RETRIES, "pool": OFFLINE_POOL},
    "schedule": None,
    "params": OFFLINE_QUERY_PARAMS,
    "max_active_runs": CONCURRENT_COMMITS,
    "dagrun_timeout": timedelta(hours=OFFLINE_HOURS),
}
SCHEDULED_SOURCES: Final[dict[str, Any]] = {
    **SHARED,
    # The schedule of the platform tries a source again, after a pause of its own.
    "default_args": {"retries": 0, "pool": SOURCES_POOL},
    "schedule": None,
    "params": SCHEDULED_SOURCES_PARAMS,
    "max_active_runs": CONCURRENT_SOURCE_RUNS,
    "dagrun_timeout": timedelta(hours=OFFLINE_HOURS),
}
