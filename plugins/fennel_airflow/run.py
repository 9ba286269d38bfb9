"""From a task to `fennel_core`: open the platform, run one step, tell what the ledgers say then.
Imported inside tasks only.

What is wrong with a commit is an `ApiError` whose text is for people: the task fails with exactly
that text, on top of its log, because it is what somebody who looks at a red task wants to read, and
then what to do next. `AirflowFailException` also spares it retries, which would not change the
answer. A database, a bucket or a slot that is away fails the task as itself: retries are for that.

To find what was done in a log: `ledger step` (one line per asset, with `action`, `kind`, `title`,
`ms`), `plan:`, `commit reconciled`, `snapshot #`, `meant:`, `caught up`, `what to do:`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from airflow.sdk.exceptions import AirflowFailException

from fennel_core.connections.errors import ConnectionsError
from fennel_core.connections.frames import RemoteError
from fennel_core.connections.workspaces import checked_name
from fennel_core.definition import commit_steps as definition
from fennel_core.definition.commit_steps import CommitSteps
from fennel_core.definition.log_retention import delete_unneeded
from fennel_core.executors.definitions import DefinitionsNotLoaded, read
from fennel_core.ledger.lifecycle import CommitState
from fennel_core.ledger.store import (
    Commit,
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
Ask = Callable[[CommitSteps, CommitId], Awaitable[Commit]]
log = logging.getLogger("fennel.airflow")
STEPS: Mapping[str, Ask] = {
    "create_assets": CommitSteps.create_assets,
    "switch": CommitSteps.switch,
    "destroy_assets": CommitSteps.destroy_assets,
    "undo": CommitSteps.undo,
}
STATUS = "`fennel-core status` shows what runs, `fennel-core logs PART` what it said"
NEXT: Mapping[str, str] = {
    "workspace-not-found": (
        "make it with `fennel-core workspace create NAME`, or in development open it "
        "once with the token dev-NAME"
    ),
    "workspace-name": (
        "choose a name of a-z, 0-9 and `-`; `fennel-core workspace list` shows those there are"
    ),
    "branch-not-found": (
        "make it from the client (`client.init_branch`, `client.clone_branch`), or choose `main`"
    ),
    "commit-not-found": "leave the field `Commit id` empty; only the definition server fills it in",
    "kafka-unavailable": f"{STATUS}; when Kafka answers again, commit again",
    "asset-not-created": "the reason is the broker's own; when it is dealt with, commit again",
    "commit-abandoned": "commit again",
}
"""What somebody does about an error, by its code, where its text does not say so."""
AFTER_REBUILD = (
    f"{STATUS}; deal with the reason and run `recovery` again, or let it start from an "
    "older snapshot (`Older than snapshot`)"
)
REBUILD_S = 5 * 3600.0
"""Less than the run's own limit, so that what is late is named."""
NOTHING_LEFT = (CommitState.FINISHED, CommitState.SUPERSEDED)


def previewed(params: Mapping[str, Any]) -> None:
    """Log the plan of the form's definitions; nothing is stored."""
    workspace, branch, body = _told(lambda: _submission(params))
    incremental, backfill = params["incremental"], params["backfill"]
    for line in _told(
        lambda: definition.preview_commit(
            workspace, branch, body, incremental=incremental, backfill=backfill
        )
    ):
        log.info("%s", line)


def submitted(params: Mapping[str, Any]) -> str:
    """Store the form's definitions as a commit and return its id: from there on it is like any
    other.
    """
    workspace, branch, body = _told(lambda: _submission(params))
    incremental, backfill = params["incremental"], params["backfill"]
    commit_id = _told(
        lambda: definition.submit_commit(
            workspace, branch, body, incremental=incremental, backfill=backfill
        )
    )
    log.info("stored as commit %s of branch %s in workspace %s", commit_id, branch, workspace)
    return commit_id


def compiled(commit_id: str) -> bool:
    """Compile, plan and reserve; False when the commit has been carried out already."""
    row = _told(lambda: asyncio.run(_step(CommitSteps.compile_commit, CommitId(commit_id))))
    for line in row.summary:
        log.info("plan: %s", line)
    return row.state not in NOTHING_LEFT


def step(name: str, commit_id: str) -> None:
    """Run one step of a commit."""
    _told(lambda: asyncio.run(_step(STEPS[name], CommitId(commit_id))))


def reconciled() -> None:
    """Finish whatever a crash left behind."""
    done = _told(definition.reconcile_all)
    log.info("commits moved on: %s", ", ".join(done.commits) or "none")
    log.info(
        "destructions still open: %d%s",
        done.open_entries,
        " (they wait for an engine or for Kafka)" if done.open_entries else "",
    )
    log.info("orphans deleted (topics that no ledger knows): %s", ", ".join(done.orphans) or "none")


def slots() -> list[str]:
    """Addresses of the slots that own something."""
    found = snapshot_pass.owning_slots(Settings())
    log.info(
        "slots that own something: %s", ", ".join(found) or f"none, so nothing is copied; {STATUS}"
    )
    return found


def snapshotted(address: str) -> None:
    """Have one slot copy what it owns, and tell what came of each."""
    answers = _told(lambda: snapshot_pass.snapshot_slot(Settings(), address))
    for each in answers:
        log.info("%s", each)
    outcomes = ", ".join(
        f"{count} {code}" for code, count in sorted(Counter(each.code for each in answers).items())
    )
    sent, newest = (
        sum(each.uploaded_bytes for each in answers),
        max((each.number or 0 for each in answers), default=0),
    )
    log.info(
        "slot %s: %d job partitions: %s; %d bytes uploaded; newest snapshot #%d",
        address,
        len(answers),
        outcomes,
        sent,
        newest,
    )
    _told(lambda: snapshot_pass.raise_on_failures(answers))


def pruned() -> None:
    """Delete the copies that nobody needs any more."""
    done = _told(lambda: snapshot_pass.run_pruning(Settings()))
    log.info("snapshots removed: %d; objects removed: %d", done.snapshots, done.objects)


def named(params: Mapping[str, Any]) -> list[NamedPartition]:
    """The job partitions that the form means."""
    found = _told(
        lambda: selection.select_partitions(selection.list_partitions(Settings()), _wish(params))
    )
    log.info("job partitions: %d", len(found))
    for each in found:
        log.info("meant: %s", each)
    return found


def rebuilt(params: Mapping[str, Any]) -> None:
    """Rebuild what the form means, and wait until it has caught up."""
    found = _told(
        lambda: selection.select_partitions(selection.list_partitions(Settings()), _wish(params))
    )
    tell = partial(log.info, "%s")
    _told(
        lambda: rebuild.rebuild_partitions(
            Settings(), found, tell, before=params["before"], timeout_s=REBUILD_S
        )
    )


def drilled(params: Mapping[str, Any]) -> None:
    """Drill what the form names, or what is due; the task fails where a partition does not
    agree.
    """
    settings, wish = Settings(), _wish(params)
    found = _told(lambda: drills.due_partitions(settings, wish, params["at_most"]))
    log.info("job partitions to drill: %d", len(found))
    tell = partial(log.info, "%s")
    _told(
        lambda: drills.run_drills(
            settings, found, tell, max_bytes=params["max_bytes"] or settings.drill_bytes
        )
    )


def shortened() -> None:
    """Delete the records that nobody needs any more, and tell who needs what is nearly gone."""
    cuts, alarms = delete_unneeded(Settings())
    log.info("topic partitions shortened: %d", len(cuts))
    for (topic, part), start in sorted(cuts.items()):
        log.info("%s[%d] begins at %d now", topic, part, start)
    for alarm in alarms:
        log.error("needed records (%s): %s", alarm.problem.value, alarm.message)


def _wish(params: Mapping[str, Any]) -> Selection:
    return Selection(
        params["workspace"],
        params["dataset"],
        tuple(params["jobs"] or ()),
        tuple(params["partitions"] or ()),
    )


def _told(work: Callable[[], T]) -> T:
    try:
        return work()
    except ApiError as error:
        told = f"{error.text} [{error.code}]"
        log.error("%s", told)
        if after := NEXT.get(error.code):
            log.error("what to do: %s", after)
            told = f"{told}. What to do: {after}"
        raise AirflowFailException(told) from None
    except DefinitionsNotLoaded as error:
        log.error("%s", error)
        raise AirflowFailException(str(error)) from None
    except (RebuildFailed, DrillFailed) as stuck:
        log.error("%s", stuck)
        log.error(
            "what to do: %s",
            AFTER_REBUILD if isinstance(stuck, RebuildFailed) else drills.REMEDY,
        )
        raise AirflowFailException(str(stuck)) from None
    except (
        ConnectionsError,
        SnapshotPassFailed,
        DrillNotRun,
        OSError,
        RemoteError,
    ) as away:
        log.error("%s", away)
        log.error(
            "what to do: %s; what was begun is finished or taken back by "
            "`reconcile`, or by the next run",
            STATUS,
        )
        raise


async def _step(ask: Ask, commit_id: CommitId) -> Commit:
    """One step over connections of its own; what the ledgers say is logged even when it fails."""
    async with definition.open_commit_steps(Settings()) as steps:
        try:
            return await ask(steps, commit_id)
        finally:
            for line in await _ledgers_if_there(steps, commit_id):
                log.info("%s", line)


async def _ledgers_if_there(steps: CommitSteps, commit_id: CommitId) -> list[str]:
    """A database that is away must not hide why the step itself failed."""
    try:
        return await steps.context.ledger.run(lambda tx: _ledgers(tx, commit_id))
    except ConnectionsError as away:
        return [f"the ledgers of commit {commit_id} cannot be read now: {away}"]


async def _ledgers(tx: LedgerTransaction, commit_id: CommitId) -> list[str]:
    """The commit's state and every entry of its two ledgers."""
    row = await tx.commit(commit_id)
    if row is None:
        return [f"commit {commit_id} does not exist"]
    entries = [
        each
        for which in LedgerKind
        for each in await tx.entries(which, commit=commit_id, only_open=False)
    ]
    titles = {
        each.id: each.title for each in await tx.bank.summaries({entry.asset for entry in entries})
    }
    return [
        f"commit {row.id} of {row.workspace}/{row.branch} is {row.state}",
        *(_line(entry, titles) for entry in entries),
    ]


def _line(entry: LedgerEntry, titles: Mapping[AssetId, str]) -> str:
    kind = entry.asset.split(".")[1]
    tail = f" after {entry.attempts} attempts: {entry.error}" if entry.error else ""
    return (
        f"{entry.ledger} ledger: {entry.state} {kind} {titles.get(entry.asset, '')} "
        f"({entry.asset}){tail}"
    )


def _submission(params: Mapping[str, Any]) -> tuple[str, str, bytes]:
    """Workspace, branch and the SyncRequest's bytes of the form's definitions."""
    missing = [name for name in ("definitions", "workspace") if not params[name]]
    if missing:
        raise ApiError(
            400,
            "form-incomplete",
            f"fill in {' and '.join(missing)}: they say what is committed, and where",
        )
    workspace = checked_name(params["workspace"])
    body, printed = asyncio.run(
        read(Settings(), params["definitions"], env=params["env"], message=params["message"] or "")
    )
    for line in redact_text(printed).splitlines():
        log.info("the definitions' own output: %s", line)
    return workspace, params["branch"], body
