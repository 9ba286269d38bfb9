"""What the commands `snapshot`, `recover` and `drill` do: the steps of Airflow's DAGs of the same
names, one after the other.

Theory. The steps are functions of the rooms below and know nothing of Airflow; a platform without
it, or a person in a hurry, calls them from here. They are safe to run while Airflow runs them too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import psycopg

from fennel_core.connections.errors import SystemUnavailable
from fennel_core.connections.frames import RemoteError
from fennel_core.definition.kafka_retention import delete_expired_records
from fennel_core.settings.model import Settings
from fennel_core.snapshots import drills, rebuild, selection, snapshot_pass
from fennel_core.snapshots.errors import DrillFailed, DrillNotRun, RebuildFailed, SnapshotPassFailed
from fennel_core.snapshots.selection import Selection
from fennel_core.vocab.errors import ApiError

Tell = Callable[[str], None]
REASONS: Final = (
    *(
        SnapshotPassFailed,
        RebuildFailed,
        DrillFailed,
        DrillNotRun,
    ),
    *(ApiError, SystemUnavailable, RemoteError, OSError, psycopg.Error),
)
"""What one of these commands may fail with: a sentence each."""


def sentence(error: BaseException) -> str:
    """Why a command failed, for people."""
    if isinstance(error, psycopg.OperationalError):
        return (
            f"The platform's database does not answer ({str(error).splitlines()[0]}): is "
            "the platform up?"
        )
    return str(error)


REBUILD_S: Final = 5 * 3600.0


def snapshots(settings: Settings, tell: Tell, every_s: float | None) -> None:
    """One round, or one every so often (s): then a round that fails is told, and the next one makes
    up for it.
    """
    if every_s is None:
        _round(settings, tell)
        return
    while True:
        began = time.monotonic()
        try:
            _round(settings, tell)
        except REASONS as error:
            tell(f"this round failed: {error}")
        time.sleep(max(0.0, began + every_s - time.monotonic()))


def recover(
    settings: Settings, tell: Tell, wish: Selection, before: int | None, *, dry_run: bool
) -> None:
    found = selection.select_partitions(selection.list_partitions(settings), wish)
    for each in found:
        tell(f"meant: {each}")
    if not dry_run:
        rebuild.rebuild_partitions(settings, found, tell, before=before, timeout_s=REBUILD_S)


def drill(
    settings: Settings, tell: Tell, wish: Selection, at_most: int | None, max_bytes: int | None
) -> None:
    found = drills.due_partitions(settings, wish, at_most)
    tell(f"job partitions to drill: {len(found)}")
    try:
        drills.run_drills(settings, found, tell, max_bytes=max_bytes or settings.drill_bytes)
    except DrillFailed as failed:
        raise DrillFailed(f"{failed}\nWhat to do: {drills.REMEDY}") from failed


def _round(settings: Settings, tell: Tell) -> None:
    slots = snapshot_pass.owning_slots(settings)
    answers = []
    for address in slots:
        theirs = snapshot_pass.snapshot_slot(settings, address)
        answers += theirs
        for each in theirs:
            tell(str(each))
    pruned = snapshot_pass.run_pruning(settings)
    cuts, alarms = delete_expired_records(settings)
    tell(
        f"slots: {len(slots)}; job partitions: {len(answers)}; snapshots removed: "
        f"{pruned.snapshots}; objects removed: {pruned.objects}; "
        f"topic partitions shortened: {len(cuts)}"
    )
    for alarm in alarms:
        tell(f"needed records ({alarm.problem.value}): {alarm.message}")
    snapshot_pass.raise_on_failures(answers)
