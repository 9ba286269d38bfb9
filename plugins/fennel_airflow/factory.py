"""What the DAG files share: each DAG's settings, and the trigger form of `commit` as JSON schemas.

Theory. A `Param`'s schema does two things: Airflow checks every trigger against it (a wrong value
answers 400 and nothing starts), and the form in the UI is drawn from it. The definition server
triggers the same DAG with nothing but `commit_id`, for a request that it has already stored; a
person fills the rest. Which of the two it is can only be seen from both fields together, so the
first task checks that.

This module is imported by every DAG file and so by every task: nothing heavy may be imported here.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any, Final

from airflow.sdk import Param

TAGS: Final = ["fennel"]
COMMITS_AT_ONCE: Final = 16
COMMIT_HOURS: Final = 2
RECONCILE_SCHEDULE: Final = "*/5 * * * *"
"""How long at most a commit whose process died stays unfinished, beyond its lease."""

SNAPSHOT_MINUTES: Final = int(os.environ.get("FENNEL_SNAPSHOT_MINUTES") or 10)
"""`Settings.snapshot_minutes`, read by hand: the model is too heavy for what every task imports. A
test holds the two together.
"""

DRILL_SCHEDULE: Final = os.environ.get("FENNEL_DRILL_SCHEDULE", "0 3 * * *").strip() or None
"""`Settings.drill_schedule`, likewise."""

RECOVERY_HOURS: Final = 6
_SERVER: Final = "Set by the definition server"

COMMIT_PARAMS: Final = {
    "definitions": Param(
        None,
        type=["null", "string"],
        minLength=1,
        title="Definitions",
        description="Module (shop.features) or path (/srv/shop/features.py, or a folder) whose "
        "datasets and featuresets are committed. "
        "Relative paths start at the platform's folder. Loaded in the client's environment.",
        examples=["examples.fraud", "examples/fraud"],
    ),
    "workspace": Param(
        None,
        type=["null", "string"],
        pattern="^[a-z0-9-]{1,63}$",
        title="Workspace",
        description="The one that the token of your client opens: dev-alice opens alice, and "
        "makes it where development tokens are on.",
    ),
    "branch": Param(
        "main",
        type="string",
        pattern="^[a-zA-Z0-9_./-]+$",
        title="Branch",
        description="The branch that moves to these definitions. It must exist.",
    ),
    "message": Param(
        None,
        type=["null", "string"],
        maxLength=10_000,
        title="Message",
        description="What changes and why.",
    ),
    "env": Param(
        None,
        type=["null", "string"],
        title="Environment",
        description="Keep only what is meant for this environment.",
    ),
    "preview": Param(
        False,
        type="boolean",
        title="Preview",
        description="Show what would be done, and do nothing.",
    ),
    "incremental": Param(
        False,
        type="boolean",
        title="Incremental",
        description="Add to what the branch has and change what is named here. Otherwise the "
        "definitions replace the branch's.",
    ),
    "backfill": Param(
        True,
        type="boolean",
        title="Allow backfill",
        description="When off, a commit that would compute anything again is refused.",
    ),
    "commit_id": Param(
        None,
        type=["null", "string"],
        title="Commit id",
        description="A stored commit to carry out. Leave it empty: the definition server fills "
        "it in, and then nothing else is read.",
        section=_SERVER,
    ),
}

WHICH_PARAMS: Final = {
    "workspace": Param(
        None,
        type=["null", "string"],
        pattern="^[a-z0-9-]{1,63}$",
        title="Workspace",
        description="All of its job partitions, or those of one dataset.",
    ),
    "dataset": Param(
        None,
        type=["null", "string"],
        minLength=1,
        title="Dataset",
        description="Only the jobs that work for this one.",
    ),
    "jobs": Param(
        [],
        type="array",
        items={"type": "string"},
        title="Job ids",
        description="In place of a workspace: ids as `fennel-core status --json` shows them, one "
        "per line.",
    ),
    "partitions": Param(
        [],
        type="array",
        items={"type": "integer", "minimum": 0},
        title="Partitions",
        description="Only these partitions; none: all.",
    ),
}
RECOVERY_PARAMS: Final = WHICH_PARAMS | {
    "before": Param(
        None,
        type=["null", "integer"],
        minimum=1,
        title="Older than snapshot",
        description="Start from a snapshot with a lower number than this: a drill names the "
        "numbers it found bad.",
    ),
    "dry_run": Param(
        False,
        type="boolean",
        title="Dry run",
        description="Show which job partitions are meant, and do nothing.",
    ),
}
DRILL_PARAMS: Final = WHICH_PARAMS | {
    "at_most": Param(
        None,
        type=["null", "integer"],
        minimum=1,
        title="At most",
        description="So many job partitions, those first whose last drill is longest ago. None: "
        "all that are named above, and "
        "FENNEL_DRILL_PARTITIONS of all there are where nothing is named.",
    ),
    "max_bytes": Param(
        None,
        type=["null", "integer"],
        minimum=1,
        title="Largest state",
        description="Skip larger states, bytes. None: FENNEL_DRILL_BYTES.",
    ),
}

TRIED_AGAIN: Final = {"retries": 3, "retry_delay": timedelta(seconds=3)}
"""A task that was killed, found the database away, or could not reach Airflow's own API is run
again: steps may be run twice. Three times outlasts a restart of the api-server, without which a
task fails before it begins. What is wrong with a commit is told at once, without.
"""

EVERY: Final[dict[str, Any]] = {
    "catchup": False,
    "is_paused_upon_creation": False,
    "default_args": TRIED_AGAIN,
    "tags": TAGS,
}
"""What all of our DAGs are alike in."""

COMMIT: Final[dict[str, Any]] = {
    **EVERY,
    "schedule": None,
    "params": COMMIT_PARAMS,
    "max_active_runs": COMMITS_AT_ONCE,
    "dagrun_timeout": timedelta(hours=COMMIT_HOURS),
    "render_template_as_native_obj": True,
}
SNAPSHOT: Final[dict[str, Any]] = {
    **EVERY,
    "schedule": f"*/{SNAPSHOT_MINUTES} * * * *",
    "max_active_runs": 1,
    "dagrun_timeout": timedelta(hours=2),
}
RECOVERY: Final[dict[str, Any]] = {
    **EVERY,
    "schedule": None,
    "params": RECOVERY_PARAMS,
    "max_active_runs": 4,
    "dagrun_timeout": timedelta(hours=RECOVERY_HOURS),
}
DRILL: Final[dict[str, Any]] = {
    **EVERY,
    "schedule": DRILL_SCHEDULE,
    "params": DRILL_PARAMS,
    "max_active_runs": 1,
    "dagrun_timeout": timedelta(hours=RECOVERY_HOURS),
}
RECONCILE: Final[dict[str, Any]] = {
    **EVERY,
    "schedule": RECONCILE_SCHEDULE,
    "max_active_runs": 1,
    "dagrun_timeout": timedelta(minutes=30),
}
