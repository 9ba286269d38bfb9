"""The tasks of the DAGs: each makes one step of the platform visible in Airflow.

The steps are idempotent and keep their state in the platform's own database, so a task that Airflow
runs twice does no harm, and `reconcile` finishes a run that dies. One value is passed between
tasks, the commit's id. `compile` pushes it as soon as the commit is stored, because `undo` needs it
even if `compile` fails later.

`task_bodies` imports the platform, so each task imports it when it runs: this file is imported by
the DAG processor and by every task.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from airflow.sdk import Context, get_current_context, task
from airflow.sdk.exceptions import AirflowRescheduleException

from fennel_airflow.factory import AFTER_THE_ANSWER, COMMIT_HOURS

COMPILE: Final = "compile"
COMMIT_ID: Final = "commit_id"
ACCEPT: Final = "accept"
REQUEST_ID: Final = "request_id"
BRANCH_POLL_SECONDS: Final = 3.0
"""Pause between two looks at a branch on which another commit is running."""
WARM_POLL_SECONDS: Final = 10.0
"""Pause between two looks at a commit that warms. The definition server moves its reads by then,
so this only delays the destruction of superseded assets.
"""
SCHEDULED: Final = "scheduled"
UNKNOWN_USER: Final = "unknown"
WARM_TIMEOUT_SECONDS: Final = COMMIT_HOURS * 3600.0


@task(task_id=COMPILE)
def compile_definitions() -> None:
    """Validate the definitions, plan, and reserve every asset; a preview only logs the plan.

    While another commit of the branch is running, the task waits without a worker.
    """
    from fennel_airflow import task_bodies

    context = get_current_context()
    params = context["params"]
    commit_id = params["commit_id"]
    if commit_id is None and params["preview"]:
        task_bodies.preview_commit(params, _user(context))
        _skip("a preview ends with the plan")
    if commit_id is None:
        commit_id = task_bodies.submit_commit(params, _user(context))
    else:
        task_bodies.permit_stored_commit(commit_id, _user(context))
    context["ti"].xcom_push(key=COMMIT_ID, value=commit_id)
    outcome = task_bodies.compile_commit(commit_id, _waited_seconds(context))
    if outcome == "completed":
        _skip("the branch already has these definitions, so nothing is left to do")
    if outcome == "must wait":
        raise AirflowRescheduleException(datetime.now(UTC) + timedelta(seconds=BRANCH_POLL_SECONDS))


@task
def create_assets() -> None:
    """Create every asset of the creation ledger."""
    _run_commit_step("create_assets")


@task
def switch() -> None:
    """Run T2, the transaction after which the new definitions exist."""
    _run_commit_step("switch")


@task.sensor(
    mode="reschedule",
    poke_interval=WARM_POLL_SECONDS,
    timeout=WARM_TIMEOUT_SECONDS,
    **AFTER_THE_ANSWER,
)
def warm() -> bool:
    """Succeed when reads have moved to the new version; between two looks no worker is held."""
    from fennel_airflow import task_bodies

    context = get_current_context()
    commit_id = context["ti"].xcom_pull(task_ids=COMPILE, key=COMMIT_ID)
    return task_bodies.reads_have_moved(str(commit_id), is_first_look=not _waited_seconds(context))


@task(**AFTER_THE_ANSWER)
def destroy_assets() -> None:
    """Destroy the superseded assets."""
    _run_commit_step("destroy_assets")


@task(trigger_rule="one_failed")
def undo() -> None:
    """Roll back what a failed commit reserved and created; the branch does not change."""
    _run_commit_step("undo")


@task
def reconcile_ledgers() -> None:
    """Finish what crashes left behind."""
    from fennel_airflow import task_bodies

    task_bodies.reconcile_ledgers()


@task
def owning_slots() -> list[str]:
    """Return the slots that own job partitions; each is snapshotted by its own task."""
    from fennel_airflow import task_bodies

    return task_bodies.owning_slots()


@task
def snapshot_slot(address: str) -> None:
    """Snapshot the changed job partitions of one slot."""
    from fennel_airflow import task_bodies

    task_bodies.snapshot_slot(address)


@task
def prune_snapshots() -> None:
    """Delete superseded snapshots."""
    from fennel_airflow import task_bodies

    task_bodies.prune_snapshots()


@task
def shorten_logs() -> None:
    """Delete expired records that no snapshot and no reader needs."""
    from fennel_airflow import task_bodies

    task_bodies.shorten_logs()


@task
def choose_partitions() -> None:
    """Log the job partitions that the form selects; a dry run ends here."""
    from fennel_airflow import task_bodies

    context = get_current_context()
    params = context["params"]
    task_bodies.select_partitions(params, _user(context))
    if params["dry_run"]:
        _skip("a dry run ends with the list")


@task
def rebuild_partitions() -> None:
    """Rebuild the selected job partitions and wait until they have caught up."""
    from fennel_airflow import task_bodies

    context = get_current_context()
    task_bodies.rebuild_partitions(context["params"], _user(context))


@task
def drill_partitions() -> None:
    """Drill the selected job partitions, or the due ones, one after the other."""
    from fennel_airflow import task_bodies

    context = get_current_context()
    is_scheduled = context["dag_run"].run_type == SCHEDULED
    task_bodies.drill_partitions(context["params"], None if is_scheduled else _user(context))


@task
def check_integrity() -> None:
    """Compare a sample of live lookups with a recompute from history."""
    from fennel_airflow import task_bodies

    context = get_current_context()
    is_scheduled = context["dag_run"].run_type == SCHEDULED
    task_bodies.check_integrity(context["params"], None if is_scheduled else _user(context))


@task(task_id=ACCEPT)
def accept_request() -> None:
    """Store the form's request, or check that the user may run the one that is stored."""
    from fennel_airflow import offline_bodies
    from fennel_core.offline.request_service import FormRun

    context = get_current_context()
    run = FormRun(context["dag_run"].run_id, context["dag_run"].run_after)
    request_id = offline_bodies.accept(context["params"], _user(context), run)
    context["ti"].xcom_push(key=REQUEST_ID, value=request_id)


@task
def due_sources() -> list[list[str]]:
    """Return the raw topic and the run of each source to read: the form's, or all that are due."""
    from fennel_airflow import source_bodies

    context = get_current_context()
    given = context["params"]["sources"]
    return given or source_bodies.claim_due(context["dag_run"].run_id)


def _user(context: Context) -> str:
    """Return the user who triggered the run, as Airflow's server has recorded it."""
    return context["dag_run"].triggering_user_name or UNKNOWN_USER


def _waited_seconds(context: Context) -> float:
    """Return the time since the first run of this task, 0 if it was not rescheduled."""
    began = context["ti"].get_first_reschedule_date(context)
    return 0.0 if began is None else (datetime.now(UTC) - began).total_seconds()


def _run_commit_step(name: str) -> None:
    from fennel_airflow import task_bodies

    commit_id = get_current_context()["ti"].xcom_pull(task_ids=COMPILE, key=COMMIT_ID)
    if commit_id is None:
        _skip("no commit was stored, so there is nothing to do")
    task_bodies.run_commit_step(name, str(commit_id))


def _skip(reason: str) -> None:
    import logging

    from airflow.sdk.exceptions import AirflowSkipException

    logging.getLogger("fennel.airflow").info("%s", reason)
    raise AirflowSkipException(reason)
