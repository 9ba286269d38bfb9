"""Schedule drills, carry them out one after the other, and record the last finding per partition.

Theory. Drilling every job partition every night is too expensive, and a random choice leaves some
out for months. So the least recently drilled ones come first; a row per job partition records its
last drill. That row is also the alarm: a failed drill is shown in `status`, in a metric and in the
definition server's log until a later drill of the same partition succeeds or its job is deleted. A
drill that could not be carried out says nothing about the state and changes no row; one that had
nothing to compare only moves to the end of the queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, cast

from fennel_core.connections import postgres
from fennel_core.connections.frames import RemoteError
from fennel_core.connections.postgres import Pool
from fennel_core.connections.slot_protocol import Reaction, reaction_to
from fennel_core.settings.model import Settings
from fennel_core.snapshots.errors import DrillFailed, DrillNotRun
from fennel_core.snapshots.rebuild import SlotClient, SocketSlotClient
from fennel_core.snapshots.selection import (
    NamedPartition,
    Selection,
    list_partitions,
    select_partitions,
)
from fennel_core.vocab.errors import ApiError

DRILL_TIMEOUT_S: Final = 1800.0
"""A drill that takes longer is abandoned; the next one of the partition may succeed."""
LAST_DRILLS: Final = "SELECT job_id, part, drilled_at FROM drill"
UPSERT_FINDING: Final = """
    INSERT INTO drill (job_id, part, verdict, detail, live_hash, drilled_hash)
    VALUES (%s, %s, %s, %s, %s, %s)
    ON CONFLICT (job_id, part) DO UPDATE
    SET verdict = excluded.verdict, detail = excluded.detail, live_hash = excluded.live_hash,
        drilled_hash = excluded.drilled_hash, drilled_at = now()
"""
UPSERT_SKIPPED: Final = """
    INSERT INTO drill (job_id, part, verdict, detail, live_hash, drilled_hash)
    VALUES (%s, %s, %s, %s, '', '')
    ON CONFLICT (job_id, part) DO UPDATE SET drilled_at = now()
"""
SELECT_FAILED: Final = """
    SELECT d.job_id, d.part, a.title, d.verdict, d.detail, d.live_hash, d.drilled_hash,
        d.drilled_at
    FROM drill d JOIN job j ON j.id = d.job_id JOIN asset a ON a.id = d.job_id
    WHERE d.verdict = ANY(%s::text[]) AND j.desired = 'run' ORDER BY d.job_id, d.part
"""


class DrillVerdict(StrEnum):
    """What a drill found."""

    AGREES = "agrees"
    DIFFERS = "differs"
    """The live state is wrong, or a replay of its snapshot does not produce it."""
    CORRUPT = "corrupt"
    """A state or a snapshot cannot be read."""
    LOST = "lost"
    """Records that a replay of the snapshot needs are deleted."""
    SKIPPED = "skipped"
    """There was nothing to compare."""
    UNKNOWN = "unknown"
    """The drill could not be carried out."""


FAILED_VERDICTS: Final = (DrillVerdict.DIFFERS, DrillVerdict.CORRUPT, DrillVerdict.LOST)


@dataclass(frozen=True, slots=True)
class DrillFinding:
    """The result of one drill; the hashes are hex digits, or empty if none were compared."""

    verdict: DrillVerdict
    detail: str
    live_hash: str = ""
    drilled_hash: str = ""

    def __str__(self) -> str:
        hashes = f" (live {self.live_hash}, drilled {self.drilled_hash})" if self.live_hash else ""
        return f"{self.verdict}: {self.detail}{hashes}"


@dataclass(frozen=True, slots=True)
class FailedDrill:
    """A job partition whose last drill failed."""

    job: str
    part: int
    title: str
    finding: DrillFinding
    at: datetime

    def __str__(self) -> str:
        return f"{self.title} ({self.job}[{self.part}]): {self.finding}"


REMEDY: Final = (
    "rebuild it with the DAG `recovery` or `fennel-core recover`, from an older snapshot if the "
    "newest one is at fault (`--before` its number); its local state is kept in quarantine for "
    "inspection. Then drill it again, which ends the alarm"
)


def least_recently_drilled(
    known: Sequence[NamedPartition], last: Mapping[tuple[str, int], datetime], limit: int
) -> list[NamedPartition]:
    """Return at most `limit` partitions, least recently drilled first; never drilled ones lead."""

    def order(each: NamedPartition) -> tuple[object, ...]:
        return each.partition in last, last.get(each.partition), each.partition

    return sorted(known, key=order)[:limit]


def due_partitions(
    settings: Settings, wanted: Selection, at_most: int | None
) -> list[NamedPartition]:
    """Return the job partitions to drill now: the selected ones, or the next ones of all.

    Raises ApiError, listing valid names, for an unknown name.
    """
    found, limit = list_partitions(settings), at_most
    if wanted == Selection():
        limit = at_most or settings.drill_partitions
    elif not wanted.workspace and not wanted.jobs:
        raise ApiError(
            400,
            "form-incomplete",
            "specify the workspace too, or leave all fields empty to drill the partitions that "
            "are due",
        )
    else:
        found = select_partitions(found, wanted)
    with postgres.connect(settings.postgres_dsn.get_secret_value(), name="drills") as connection:
        rows = connection.execute(LAST_DRILLS).fetchall()
    last = {(str(job), cast(int, part)): cast(datetime, at) for job, part, at in rows}
    return least_recently_drilled(found, last, limit or len(found))


def run_drills(
    settings: Settings,
    partitions: Sequence[NamedPartition],
    report: Callable[[str], None],
    *,
    max_bytes: int,
) -> None:
    """Drill job partitions one after the other and record the findings.

    A state of more than `max_bytes` is skipped. `report` receives lines of text. Raises DrillFailed
    with the partitions that failed, or DrillNotRun if some drills could not be carried out and all
    others agree.
    """
    found: list[tuple[NamedPartition, DrillFinding]] = []
    for each in partitions:
        finding = asyncio.run(drill_at_owner(SocketSlotClient(settings), each, max_bytes))
        report(f"{each}: {finding}")
        record_finding(settings, each, finding)
        found.append((each, finding))
    raise_on_failures(found)


def record_finding(settings: Settings, drilled: NamedPartition, finding: DrillFinding) -> None:
    """Store a finding; one that says nothing about the state leaves an alarm unchanged."""
    values = (drilled.job, drilled.part, finding.verdict, finding.detail)
    with postgres.connect(settings.postgres_dsn.get_secret_value(), name="drills") as connection:
        if finding.verdict is DrillVerdict.SKIPPED:
            connection.execute(UPSERT_SKIPPED, values)
        elif finding.verdict is not DrillVerdict.UNKNOWN:
            connection.execute(UPSERT_FINDING, (*values, finding.live_hash, finding.drilled_hash))


def raise_on_failures(found: Sequence[tuple[NamedPartition, DrillFinding]]) -> None:
    """Raise DrillFailed or DrillNotRun if any finding is one of these."""
    for verdicts, error in (
        (FAILED_VERDICTS, DrillFailed),
        ((DrillVerdict.UNKNOWN,), DrillNotRun),
    ):
        if listed := [
            f"{each}: {finding}" for each, finding in found if finding.verdict in verdicts
        ]:
            raise error(f"{len(listed)} of {len(found)} drills: {'; '.join(listed)}")


async def drill_at_owner(
    slots: SlotClient, drilled: NamedPartition, max_bytes: int
) -> DrillFinding:
    """Request a drill from the owner of a job partition and return its finding."""
    address = (await slots.owners([drilled.job])).get(drilled.partition)
    if address is None:
        return DrillFinding(DrillVerdict.SKIPPED, "no slot owns it now")
    try:
        async with asyncio.timeout(DRILL_TIMEOUT_S):
            verdict, *rest = await slots.call(
                address, "drill", {"items": [list(drilled.partition)], "max_bytes": max_bytes}
            )
    except RemoteError as refused:
        failed = reaction_to(refused) is Reaction.FAIL
        return DrillFinding(DrillVerdict.UNKNOWN if failed else DrillVerdict.SKIPPED, str(refused))
    except (OSError, TimeoutError) as lost:
        return DrillFinding(
            DrillVerdict.UNKNOWN, f"its slot did not respond: {lost or 'it took too long'}"
        )
    return DrillFinding(DrillVerdict(verdict), *rest)


async def failed_drills(pool: Pool) -> list[FailedDrill]:
    """Return every job partition whose last drill failed."""
    async with pool.connection() as connection:
        rows = await (await connection.execute(SELECT_FAILED, (list(FAILED_VERDICTS),))).fetchall()
    return [
        FailedDrill(
            str(job),
            cast(int, part),
            str(title),
            DrillFinding(DrillVerdict(str(v)), str(detail), str(live), str(drilled)),
            cast(datetime, at),
        )
        for job, part, title, v, detail, live, drilled, at in rows
    ]
