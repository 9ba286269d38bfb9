"""The bodies of the Airflow tasks: connect to the platform, run one step, log the result.

This module imports the platform, so tasks import it when they run, never at the top of a DAG file.

An `ApiError` is a permanent failure whose text is for users: the task fails with that text, and
with the next action where the text does not name it. `AirflowFailException` also prevents retries,
which would not change the result. An unavailable database, bucket or slot fails the task with the
original exception, so that Airflow retries it.

To find a step in a log, search for `ledger step` (one line per asset, with `action`, `kind`,
`title` and `ms`), `plan:`, `problems:` (as JSON), `commit reconciled`, `snapshot #`, `selected:`,
`caught up` or `what to do:`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeVar

import msgspec
from airflow.sdk.exceptions import AirflowFailException

from fennel_core.connections.airflow_users import actor_of, permit
from fennel_core.connections.audit_events import Action, audited_command
from fennel_core.connections.errors import ConnectionsError
from fennel_core.connections.frames import RemoteError
from fennel_core.connections.roles import Permission
from fennel_core.connections.workspaces import checked_name
from fennel_core.definition import commit_steps
from fennel_core.definition.commit_steps import CommitSteps
from fennel_core.definition.kafka_retention import delete_expired_records
from fennel_core.executors.definitions import read
from fennel_core.executors.internal_errors import DefinitionsNotLoaded
from fennel_core.integrity import run as integrity
from fennel_core.integrity.errors import IntegrityDiffers, IntegrityNotChecked
from fennel_core.ledger.lifecycle import CommitState
from fennel_core.ledger.store import (
    Commit,
    CommitOptions,
    LedgerEntry,
    LedgerKind,
    LedgerTransaction,
)
from fennel_core.settings.model import Settings
from fennel_core.snapshots import drills, rebuild, selection, snapshot_pass
from fennel_core.snapshots.errors import DrillFailed, DrillNotRun, RebuildFailed, SnapshotPassFailed
from fennel_core.snapshots.selection import NamedPartition, Selection
from fennel_core.telemetry.logs import redact_text
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import AssetId, CommitId

T = TypeVar("T")
CommitStep = Callable[[CommitSteps, CommitId], Awaitable[Commit]]
log = logging.getLogger("fennel.airflow")
STEPS: Mapping[str, CommitStep] = {
    "create_assets": CommitSteps.create_assets,
    "switch": CommitSteps.switch,
    "destroy_assets": CommitSteps.destroy_assets,
    "undo": CommitSteps.undo,
}
DIAGNOSE = "run `fennel-core status` for the state of the services and `fennel-core logs PART`"
NEXT_ACTIONS: Mapping[str, str] = {
    "workspace-not-found": (
        "create it with `fennel-core workspace create NAME`, or in development open it once with "
        "the token dev-NAME"
    ),
    "workspace-name": (
        "choose a name of a-z, 0-9 and `-`; `fennel-core workspace list` lists existing ones"
    ),
    "branch-not-found": (
        "create it with the client (`client.init_branch`, `client.clone_branch`), or choose `main`"
    ),
    "commit-not-found": "leave the field `Commit id` empty; only the definition server sets it",
    "kafka-unavailable": f"{DIAGNOSE}; commit again when Kafka is available",
    "asset-not-created": "resolve the reason that the Kafka broker gave, then commit again",
    "commit-abandoned": "commit again",
}
"""The next action per error code, where the error's text does not name it."""
AFTER_REBUILD_FAILED = (
    f"{DIAGNOSE}; resolve the reason and run `recovery` again, or start from an older snapshot "
    "(`Older than snapshot`)"
)
WARM_WAIT_S = 5.0
"""How long the task `warm` holds a worker at its first look; most commits need less. Later looks
do not wait: many commits that warm slowly must leave workers to others.
"""
REBUILD_S = 5 * 3600.0
"""Shorter than the limit of the DAG run, so that the log names the partitions that are late."""
COMPLETED = (CommitState.FINISHED, CommitState.SUPERSEDED)


def preview_commit(params: Mapping[str, Any], user: str) -> None:
    """Log the plan of the form's definitions; nothing is stored."""
    workspace, branch, body = reporting(lambda: _submission(params, user))
    options = _options(params)
    lines = reporting(lambda: commit_steps.preview_commit(workspace, branch, body, options))
    for line in lines:
        log.info("%s", line)


def submit_commit(params: Mapping[str, Any], user: str) -> str:
    """Store the form's definitions as a commit and return its id."""
    workspace, branch, body = reporting(lambda: _submission(params, user))
    options, actor = _options(params), actor_of(user)
    commit_id = reporting(
        lambda: commit_steps.submit_commit(workspace, branch, body, options, actor)
    )
    log.info("stored as commit %s of branch %s in workspace %s", commit_id, branch, workspace)
    return commit_id


def permit_stored_commit(commit_id: str, user: str) -> None:
    """Fail unless `user` may run a commit that is stored.

    The definition server starts such runs with the platform's own login, after it has checked the
    token; other users need the role.
    """
    settings = Settings()
    if not settings.airflow_workspaces or user == settings.airflow_user:
        return
    workspace = reporting(lambda: commit_steps.workspace_of(commit_id))
    subject = f"commit {commit_id}"
    reporting(
        lambda: permit(settings, user, {workspace}, Permission.DEFINE, Action.COMMIT, subject)
    )


def _options(params: Mapping[str, Any]) -> CommitOptions:
    return CommitOptions(
        incremental=params["incremental"],
        backfill=params["backfill"],
        allow_data_loss=params["allow_data_loss"] or Settings().data_loss_allowed,
    )


def compile_commit(
    commit_id: str, waited_s: float
) -> Literal["compiled", "completed", "must wait"]:
    """Validate, compile, plan and reserve.

    Return `completed` if nothing is left to do, and `must wait` while another commit of the branch
    is running: call again later. `waited_s` is how long the commit has waited for it.
    """
    step = partial(_compile_and_log, waited_s=waited_s)
    row = reporting(lambda: asyncio.run(_run_step(step, commit_id)))
    if row.state is CommitState.RECEIVED:
        log.info("another commit of branch %s is running: this one waits for it", row.branch)
        return "must wait"
    return "completed" if row.state in COMPLETED else "compiled"


def run_commit_step(name: str, commit_id: str) -> None:
    """Run the step `name` of a commit."""
    reporting(lambda: asyncio.run(_run_step(STEPS[name], commit_id)))


def reads_have_moved(commit_id: str, *, is_first_look: bool) -> bool:
    """Move reads if they may move and return whether they have; wait briefly at the first look."""
    seconds = WARM_WAIT_S if is_first_look else 0.0
    row = reporting(
        lambda: asyncio.run(_run_step(lambda steps, commit: steps.warm(commit, seconds), commit_id))
    )
    for job in row.stuck:
        log.warning("reads wait for job `%s`, which is parked: %s", job.title, job.error)
    if row.state is CommitState.WARMING:
        log.info("the new jobs have not caught up: reads stay on the previous version until then")
    return row.state is not CommitState.WARMING


def reconcile_ledgers() -> None:
    """Run one reconcile pass."""
    result = reporting(commit_steps.reconcile_all)
    log.info("commits reconciled: %s", ", ".join(result.commits) or "none")
    log.info(
        "open destruction entries: %d%s",
        result.open_entries,
        " (they wait for an engine or for Kafka)" if result.open_entries else "",
    )
    log.info(
        "orphaned topics deleted (no ledger has them): %s", ", ".join(result.orphans) or "none"
    )
    for each in result.failures:
        log.error("%s failed, and stops nothing else: %s", each.item.name, each.error)
    if result.failures:
        names = ", ".join(each.item.name for each in result.failures)
        raise AirflowFailException(f"reconcile failed for {names}; the log has the reasons")


def owning_slots() -> list[str]:
    """Return the addresses of the slots that own a job partition."""
    slots = snapshot_pass.owning_slots(Settings())
    log.info(
        "slots that own job partitions: %s",
        ", ".join(slots) or f"none, so there is nothing to snapshot; {DIAGNOSE}",
    )
    return slots


def snapshot_slot(address: str) -> None:
    """Snapshot every job partition of one slot and log the result of each."""
    results = reporting(lambda: snapshot_pass.snapshot_slot(Settings(), address))
    for each in results:
        log.info("%s", each)
    counts = Counter(each.code for each in results)
    log.info(
        "slot %s: %d job partitions: %s; %d bytes uploaded; newest snapshot #%d",
        address,
        len(results),
        ", ".join(f"{count} {code}" for code, count in sorted(counts.items())),
        sum(each.uploaded_bytes for each in results),
        max((each.number or 0 for each in results), default=0),
    )
    reporting(lambda: snapshot_pass.raise_on_failures(results))


def prune_snapshots() -> None:
    """Delete superseded snapshots."""
    pruned = reporting(lambda: snapshot_pass.run_pruning(Settings()))
    log.info("snapshots deleted: %d; objects deleted: %d", pruned.snapshots, pruned.objects)


def select_partitions(params: Mapping[str, Any], user: str) -> list[NamedPartition]:
    """Return and log the job partitions that the form selects."""
    selected = _selected(params)
    _permit_administration(user, selected)
    log.info("job partitions: %d", len(selected))
    for each in selected:
        log.info("selected: %s", each)
    return selected


def rebuild_partitions(params: Mapping[str, Any], user: str) -> None:
    """Rebuild the selected job partitions and wait until they have caught up."""
    selected = select_partitions(params, user)
    report, settings = partial(log.info, "%s"), Settings()
    subject = _subject(selected)

    def rebuild_audited() -> None:
        dsn = settings.postgres_dsn.get_secret_value()
        with audited_command(dsn, actor_of(user), Action.REBUILD, subject):
            rebuild.rebuild_partitions(
                settings, selected, report, before=params["before"], timeout_s=REBUILD_S
            )

    reporting(rebuild_audited)


def drill_partitions(params: Mapping[str, Any], user: str | None) -> None:
    """Drill the selected or due job partitions; fail the task if a drill fails.

    `user` None: the schedule started the run.
    """
    settings, wanted = Settings(), _selection(params)
    due = reporting(lambda: drills.due_partitions(settings, wanted, params["at_most"]))
    if user is not None:
        _permit_administration(user, due)
    log.info("job partitions to drill: %d", len(due))
    report = partial(log.info, "%s")
    max_bytes = params["max_bytes"] or settings.drill_bytes
    reporting(lambda: drills.run_drills(settings, due, report, max_bytes=max_bytes))


def check_integrity(params: Mapping[str, Any], user: str | None) -> None:
    """Check the selected datasets, or all; fail the task if one differs.

    `user` None: the schedule started the run. The log has keys and rows, so a user needs the
    permission to administer every workspace that is checked.
    """
    settings = Settings()
    if user is not None:
        workspaces = reporting(lambda: integrity.workspaces_of(settings, params["workspace"]))
        reporting(
            lambda: permit(
                settings, user, workspaces, Permission.ADMINISTER, Action.REBUILD, "integrity check"
            )
        )
    reporting(
        lambda: integrity.check_integrity(
            settings,
            partial(log.info, "%s"),
            workspace=params["workspace"],
            dataset=params["dataset"],
            keys=params["keys"],
            seed=params["seed"],
        )
    )


def shorten_logs() -> None:
    """Delete expired records and log readers that need records which are about to expire."""
    expired = delete_expired_records(Settings())
    log.info("topic partitions truncated: %d", len(expired.starts))
    log.info(
        "request history: %d files with %d requests deleted",
        expired.requests.files,
        expired.requests.requests,
    )
    for (topic, partition), start in sorted(expired.starts.items()):
        log.info("%s[%d] starts at offset %d now", topic, partition, start)
    for alarm in expired.alarms:
        log.error("needed records (%s): %s", alarm.problem.value, alarm.message)


def _selection(params: Mapping[str, Any]) -> Selection:
    return Selection(
        params["workspace"],
        params["dataset"],
        tuple(params["jobs"] or ()),
        tuple(params["partitions"] or ()),
    )


def _selected(params: Mapping[str, Any]) -> list[NamedPartition]:
    return reporting(
        lambda: selection.select_partitions(
            selection.list_partitions(Settings()), _selection(params)
        )
    )


def _permit_administration(user: str, selected: Sequence[NamedPartition]) -> None:
    """Fail unless `user` administers every workspace of the job partitions."""
    workspaces = {each.workspace for each in selected}
    subject = _subject(selected)
    reporting(
        lambda: permit(Settings(), user, workspaces, Permission.ADMINISTER, Action.REBUILD, subject)
    )


def _subject(selected: Sequence[NamedPartition]) -> str:
    return "job partitions " + ", ".join(str(each) for each in selected)


def reporting(work: Callable[[], T]) -> T:
    """Run `work`; log the next action of a failure and translate it for Airflow."""
    try:
        return work()
    except ApiError as error:
        text = f"{error.text} [{error.code}]"
        log.error("%s", text)
        if error.problems:
            log.error("problems: %s", msgspec.json.encode(error.problems).decode())
        if action := NEXT_ACTIONS.get(error.code):
            log.error("what to do: %s", action)
            text = f"{text}. What to do: {action}"
        raise AirflowFailException(text) from None
    except DefinitionsNotLoaded as error:
        log.error("%s", error)
        raise AirflowFailException(str(error)) from None
    except (RebuildFailed, DrillFailed) as failed:
        is_rebuild = isinstance(failed, RebuildFailed)
        log.error("%s", failed)
        log.error("what to do: %s", AFTER_REBUILD_FAILED if is_rebuild else drills.REMEDY)
        raise AirflowFailException(str(failed)) from None
    except IntegrityDiffers as differs:
        log.error("%s", differs)
        log.error("what to do: %s", integrity.REMEDY)
        raise AirflowFailException(str(differs)) from None
    except (
        ConnectionsError,
        SnapshotPassFailed,
        DrillNotRun,
        IntegrityNotChecked,
        OSError,
        RemoteError,
    ) as unavailable:
        log.error("%s", unavailable)
        log.error("what to do: %s; `reconcile` or the next run completes or undoes it", DIAGNOSE)
        raise


async def _run_step(step: CommitStep, commit_id: str) -> Commit:
    """Run one step over new connections and log the ledgers, even if the step fails."""
    commit = CommitId(commit_id)
    async with commit_steps.open_commit_steps(Settings()) as steps:
        try:
            return await step(steps, commit)
        finally:
            for line in await _ledger_lines(steps, commit):
                log.info("%s", line)


async def _compile_and_log(steps: CommitSteps, commit: CommitId, *, waited_s: float) -> Commit:
    row = await steps.compile_commit(commit, waited_s)
    for line in await steps.plan_lines(commit):
        log.info("plan: %s", line)
    return row


async def _ledger_lines(steps: CommitSteps, commit: CommitId) -> list[str]:
    """Return the ledgers as lines; an unavailable database must not hide the step's own error."""
    try:
        return await steps.context.ledger.run(lambda tx: _read_ledgers(tx, commit))
    except ConnectionsError as unavailable:
        return [f"the ledgers of commit {commit} are unavailable: {unavailable}"]


async def _read_ledgers(tx: LedgerTransaction, commit: CommitId) -> list[str]:
    """Return the commit's state and every entry of its two ledgers."""
    row = await tx.commit(commit)
    if row is None:
        return [f"commit {commit} does not exist"]
    entries = [
        each
        for kind in LedgerKind
        for each in await tx.entries(kind, commit=commit, only_open=False)
    ]
    titles = {
        each.id: each.title for each in await tx.bank.summaries({entry.asset for entry in entries})
    }
    return [
        f"commit {row.id} of {row.workspace}/{row.branch} is {row.state}",
        *(_entry_line(entry, titles) for entry in entries),
    ]


def _entry_line(entry: LedgerEntry, titles: Mapping[AssetId, str]) -> str:
    asset_kind = entry.asset.split(".")[1]
    error = f" after {entry.attempts} attempts: {entry.error}" if entry.error else ""
    return (
        f"{entry.ledger} ledger: {entry.state} {asset_kind} {titles.get(entry.asset, '')} "
        f"({entry.asset}){error}"
    )


def _submission(params: Mapping[str, Any], user: str) -> tuple[str, str, bytes]:
    """Return workspace, branch and SyncRequest of the form's definitions.

    Their code runs only if `user` may commit to the workspace.
    """
    missing = [name for name in ("definitions", "workspace") if not params[name]]
    if missing:
        raise ApiError(
            400,
            "form-incomplete",
            f"the form has no {' and no '.join(missing)}. Fill in both to commit definitions",
        )
    workspace = checked_name(params["workspace"])
    subject = f"branch {params['branch']}"
    permit(Settings(), user, {workspace}, Permission.DEFINE, Action.COMMIT, subject)
    body, printed = asyncio.run(
        read(
            Settings(),
            params["definitions"],
            workspace=workspace,
            env=params["env"],
            message=params["message"] or "",
        )
    )
    for line in redact_text(printed).splitlines():
        log.info("output of the definitions: %s", line)
    return workspace, params["branch"], body
