"""The tasks of the DAGs: each is one step of `fennel_core.definition.commit_steps` or of
`fennel_core.snapshots`, made visible.

Theory. The steps are idempotent and remember everything in the platform's own database, so a task
that Airflow runs twice does no harm, and a run that dies is finished by `reconcile`. Between tasks
travels one value, the commit's id, which `compile` pushes as soon as the commit is stored: `undo`
must find it even when `compile` fails later.

Nothing of `fennel_core` is imported at the top: this file is imported by every task and by the DAG
processor.
"""

from __future__ import annotations

from typing import Final

from airflow.sdk import get_current_context, task

COMPILE: Final = "compile"
COMMIT_ID: Final = "commit_id"


@task(task_id=COMPILE)
def compile_definitions() -> None:
    """Read and check the definitions, plan, and reserve every asset; a preview only shows the
    plan.
    """
    from fennel_airflow.run import compiled, previewed, submitted

    context = get_current_context()
    params = context["params"]
    commit_id = params["commit_id"]
    if commit_id is None and params["preview"]:
        previewed(params)
        _skip("a preview ends with the plan")
    if commit_id is None:
        commit_id = submitted(params)
    context["ti"].xcom_push(key=COMMIT_ID, value=commit_id)
    if not compiled(commit_id):
        _skip("the branch stands at these definitions already: nothing is left to do")


@task
def create_assets() -> None:
    """Create every asset of the creation ledger."""
    from fennel_airflow.run import step

    step("create_assets", _commit_id())


@task
def switch() -> None:
    """The one transaction after which the new definitions exist."""
    from fennel_airflow.run import step

    step("switch", _commit_id())


@task
def destroy_assets() -> None:
    """Wait until the new jobs have caught up, move the reads, and destroy what nobody needs any
    more.
    """
    from fennel_airflow.run import step

    step("destroy_assets", _commit_id())


@task(trigger_rule="one_failed")
def undo() -> None:
    """Take back what a failed commit reserved and created; the branch stays as it was."""
    from fennel_airflow.run import step

    step("undo", _commit_id())


@task
def reconcile_ledgers() -> None:
    """Finish whatever a crash left behind."""
    from fennel_airflow.run import reconciled

    reconciled()


@task
def owning_slots() -> list[str]:
    """The slots that own something: each is asked by a task of its own."""
    from fennel_airflow.run import slots

    return slots()


@task
def snapshot_slot(address: str) -> None:
    """Have one slot copy every state it owns, if it changed."""
    from fennel_airflow.run import snapshotted

    snapshotted(address)


@task
def prune_snapshots() -> None:
    """Delete old copies, late."""
    from fennel_airflow.run import pruned

    pruned()


@task
def shorten_logs() -> None:
    """Delete from Kafka what no snapshot and nobody else needs."""
    from fennel_airflow.run import shortened

    shortened()


@task
def choose_partitions() -> None:
    """Show which job partitions the form means; a dry run ends here."""
    from fennel_airflow.run import named

    params = get_current_context()["params"]
    named(params)
    if params["dry_run"]:
        _skip("a dry run ends with the list")


@task
def rebuild_partitions() -> None:
    """Have their owners rebuild them, and wait until all have caught up again."""
    from fennel_airflow.run import rebuilt

    rebuilt(get_current_context()["params"])


@task
def drill_partitions() -> None:
    """Drill the job partitions that the form names, or those whose turn it is, one after the
    other.
    """
    from fennel_airflow.run import drilled

    drilled(get_current_context()["params"])


def _commit_id() -> str:
    found = get_current_context()["ti"].xcom_pull(task_ids=COMPILE, key=COMMIT_ID)
    if found is None:
        _skip("no commit was stored, so nothing has happened")
    return str(found)


def _skip(why: str) -> None:
    import logging

    from airflow.sdk.exceptions import AirflowSkipException

    logging.getLogger("fennel.airflow").info("%s", why)
    raise AirflowSkipException(why)
