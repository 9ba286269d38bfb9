"""The commands `snapshot`, `recover`, `drill`, `integrity` and `maintain-history`: the steps of the
DAGs `snapshot`, `recovery`, `drill`, `integrity` and `history_maintenance`.

The steps do not depend on Airflow, so these commands work on a platform without it, and they are
safe to run while Airflow runs the same steps.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

import psycopg

from fennel_core.connections import postgres
from fennel_core.connections.audit_events import (
    Action,
    audited_command,
    user_of_this_machine,
)
from fennel_core.connections.errors import SystemUnavailable
from fennel_core.connections.frames import RemoteError
from fennel_core.connections.secrets import SecretUnreadable
from fennel_core.definition.kafka_retention import delete_expired_records, removable_records
from fennel_core.history.errors import CompactionFailed
from fennel_core.history.maintenance import maintain_history
from fennel_core.integrity import run as integrity_run
from fennel_core.integrity.errors import IntegrityDiffers, IntegrityNotChecked
from fennel_core.settings.model import Settings
from fennel_core.snapshots import drills, rebuild, selection, snapshot_pass
from fennel_core.snapshots.errors import DrillFailed, DrillNotRun, RebuildFailed, SnapshotPassFailed
from fennel_core.snapshots.selection import Selection
from fennel_core.vocab.errors import ApiError

Report = Callable[[str], None]
"""Shows one line to the user."""
FAILURES: Final = (
    SnapshotPassFailed,
    RebuildFailed,
    DrillFailed,
    DrillNotRun,
    IntegrityDiffers,
    IntegrityNotChecked,
    CompactionFailed,
    ApiError,
    SystemUnavailable,
    SecretUnreadable,
    RemoteError,
    OSError,
    psycopg.Error,
)
"""Failures of these commands that are reported as one sentence; any other exception is a bug."""
REBUILD_S: Final = 5 * 3600.0


def failure_text(error: BaseException) -> str:
    """Return the sentence that reports why a command failed."""
    if isinstance(error, psycopg.OperationalError):
        reason = str(error).splitlines()[0]
        return (
            f"The platform's database is unavailable ({reason}). "
            "Start the platform with `fennel-core up`."
        )
    return str(error)


def snapshot(settings: Settings, report: Report, every_s: float | None) -> None:
    """Run one snapshot pass, or one every `every_s` seconds.

    A pass that fails is reported, and the next one takes the missing snapshots.
    """
    _repeatedly(lambda: _snapshot_pass(settings, report), "snapshot pass", report, every_s)


def merge_history(settings: Settings, report: Report, every_s: float | None) -> None:
    """Merge small files of history once, or every `every_s` seconds.

    A run that fails is reported, and the next one goes on.
    """

    def merge() -> None:
        # A pool would try for a while to connect before it fails.
        postgres.connect(settings.postgres_dsn.get_secret_value(), name="maintenance").close()
        done = asyncio.run(maintain_history(settings, removable_records))
        report(f"history is maintained; {done}")

    _repeatedly(merge, "run", report, every_s)


def show_removable_rows(settings: Settings, report: Report) -> None:
    """Report per topic which rows `maintain-history` would remove, and change nothing."""
    postgres.connect(settings.postgres_dsn.get_secret_value(), name="maintenance").close()
    done = asyncio.run(maintain_history(settings, removable_records, dry_run=True))
    for topic, each in sorted(done.expired.items()):
        if each.rewritten or each.waiting:
            report(
                f"{topic}: {each.rows} rows older than `history` would leave {each.rewritten} "
                f"files; {each.waiting} files with such rows wait"
            )
    if not settings.history_retention:
        report("FENNEL_HISTORY_RETENTION is off: a run removes no rows older than `history`")
    report(f"nothing is changed; a run would do this: {done}")
    done.check()


def _repeatedly(work: Callable[[], None], name: str, report: Report, every_s: float | None) -> None:
    """Run `work` once, or every `every_s` seconds and report its failures."""
    if every_s is None:
        work()
        return
    while True:
        began = time.monotonic()
        try:
            work()
        except FAILURES as error:
            report(f"this {name} failed: {error}")
        time.sleep(max(0.0, began + every_s - time.monotonic()))


def recover(
    settings: Settings,
    report: Report,
    wanted: Selection,
    before: int | None,
    *,
    trust_outputs: bool,
    dry_run: bool,
) -> None:
    """Rebuild the selected job partitions from a snapshot, older than number `before` if given.

    `trust_outputs`: accept state that differs from what the outputs were computed from.
    """
    if trust_outputs and not wanted.jobs:
        raise RebuildFailed("--trust-outputs is a decision per job: name the jobs with --job")
    selected = selection.select_partitions(selection.list_partitions(settings), wanted)
    for each in selected:
        report(f"selected: {each}")
    if not dry_run:
        subject = "job partitions " + ", ".join(str(each) for each in selected)
        dsn = settings.postgres_dsn.get_secret_value()
        with audited_command(dsn, user_of_this_machine(), Action.REBUILD, subject):
            rebuild.rebuild_partitions(
                settings,
                selected,
                report,
                before=before,
                timeout_s=REBUILD_S,
                trust_outputs=trust_outputs,
            )
        if trust_outputs:
            report(
                "take a snapshot now (`fennel-core snapshot`): a replay from an earlier one would "
                "differ again"
            )


def drill(
    settings: Settings,
    report: Report,
    wanted: Selection,
    at_most: int | None,
    max_bytes: int | None,
) -> None:
    """Drill the selected or due job partitions. Raises DrillFailed with the next action."""
    due = drills.due_partitions(settings, wanted, at_most)
    report(f"job partitions to drill: {len(due)}")
    try:
        drills.run_drills(settings, due, report, max_bytes=max_bytes or settings.drill_bytes)
    except DrillFailed as failed:
        raise DrillFailed(f"{failed}\nWhat to do: {drills.REMEDY}") from failed


def integrity(
    settings: Settings,
    report: Report,
    workspace: str | None,
    dataset: str | None,
    keys: int | None,
    seed: int | None,
) -> None:
    """Compare samples of lookups with recomputes. Raises IntegrityDiffers with the next action."""
    try:
        integrity_run.check_integrity(
            settings, report, workspace=workspace, dataset=dataset, keys=keys, seed=seed
        )
    except IntegrityDiffers as differs:
        raise IntegrityDiffers(f"{differs}\nWhat to do: {integrity_run.REMEDY}") from differs


def _snapshot_pass(settings: Settings, report: Report) -> None:
    slots = snapshot_pass.owning_slots(settings)
    results = []
    for address in slots:
        slot_results = snapshot_pass.snapshot_slot(settings, address)
        results += slot_results
        for each in slot_results:
            report(str(each))
    pruned = snapshot_pass.run_pruning(settings)
    expired = delete_expired_records(settings)
    report(
        f"slots: {len(slots)}; job partitions: {len(results)}; snapshots deleted: "
        f"{pruned.snapshots}; objects deleted: {pruned.objects}; "
        f"topic partitions truncated: {len(expired.starts)}; "
        f"files of request history deleted: {expired.requests.files}"
    )
    for alarm in expired.alarms:
        report(f"needed records ({alarm.problem.value}): {alarm.message}")
    snapshot_pass.raise_on_failures(results)
