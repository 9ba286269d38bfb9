"""Drills in turns: which job partitions are tried, and what became of the last try of each.

Theory. Nobody can afford to drill everything every night, and a random choice leaves some out for
months; so those go first whose last drill is longest ago, and a row per job partition remembers it.
That row is also the alarm: a drill that did not agree stands in `status`, in a metric and in the
definition server's log until a later drill of the same partition agrees, or its job is gone. A
drill that could not be carried out says nothing about the state and changes no row; one that had
nothing to compare only waits for its turn again.
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
from fennel_core.snapshots import selection
from fennel_core.snapshots.rebuild import SlotClient, SocketSlotClient
from fennel_core.snapshots.selection import NamedPartition, Selection
from fennel_core.vocab.errors import ApiError

DRILL_TIMEOUT_S: Final = 1800.0
"""A drill that takes longer is given up: the next one may be luckier."""
LAST_DRILLS: Final = "SELECT job_id, part, drilled_at FROM drill"
UPSERT_FINDING: Final = """
    INSERT INTO drill (job_id, part, verdict, told, live_hash, drilled_hash) VALUES (%s, %s, %s,
        %s, %s, %s)
    ON CONFLICT (job_id, part) DO UPDATE SET verdict = excluded.verdict, told = excluded.told,
        live_hash = excluded.live_hash,
        drilled_hash = excluded.drilled_hash, drilled_at = now()
"""
UPSERT_SKIPPED: Final = """
    INSERT INTO drill (job_id, part, verdict, told, live_hash, drilled_hash) VALUES (%s, %s, %s,
        %s, '', '')
    ON CONFLICT (job_id, part) DO UPDATE SET drilled_at = now()
"""
SELECT_FAILED: Final = """
    SELECT d.job_id, d.part, a.title, d.verdict, d.told, d.live_hash, d.drilled_hash, d.drilled_at
    FROM drill d JOIN job j ON j.id = d.job_id JOIN asset a ON a.id = d.job_id
    WHERE d.verdict = ANY(%s::text[]) AND j.desired = 'run' ORDER BY d.job_id, d.part
"""


class DrillVerdict(StrEnum):
    AGREES = "agrees"
    DIFFERS = "differs"
    """The live state is not what it should be, or its snapshot would not lead to it."""
    DAMAGED = "damaged"
    """A state or a snapshot cannot be read."""
    LOST = "lost"
    """What the snapshot would need to be replayed is gone."""
    SKIPPED = "skipped"
    """There was nothing to compare."""
    UNKNOWN = "unknown"
    """The drill could not be carried out."""


FAILED_VERDICTS: Final = (DrillVerdict.DIFFERS, DrillVerdict.DAMAGED, DrillVerdict.LOST)


@dataclass(frozen=True, slots=True)
class DrillFinding:
    """What one drill found; the hashes are hex digits, empty where none were compared."""

    verdict: DrillVerdict
    told: str
    live_hash: str = ""
    drilled_hash: str = ""

    def __str__(self) -> str:
        hashes = f" (live {self.live_hash}, drilled {self.drilled_hash})" if self.live_hash else ""
        return f"{self.verdict}: {self.told}{hashes}"


@dataclass(frozen=True, slots=True)
class FailedDrill:
    """A job partition whose last drill did not agree."""

    job: str
    part: int
    title: str
    finding: DrillFinding
    at: datetime

    def __str__(self) -> str:
        return f"{self.title} ({self.job}[{self.part}]): {self.finding}"


REMEDY: Final = (
    "rebuild it with the DAG `recovery` or `fennel-core recover`, from an older "
    "snapshot where the newest one is at fault (`--before` its "
    "number); its local state is put aside then and can be looked at; drill it "
    "again: that ends the alarm"
)


class DrillFailed(Exception):
    """Some job partitions could not be rebuilt as they are; the text names them, with both
    hashes.
    """


class DrillNotRun(Exception):
    """Some drills could not be carried out; the text says which and why."""


def least_recently_drilled(
    known: Sequence[NamedPartition], last: Mapping[tuple[str, int], datetime], limit: int
) -> list[NamedPartition]:
    """At most `limit` of them: those never drilled first, then those whose last drill is longest
    ago.
    """
    return sorted(known, key=lambda each: (each.place in last, last.get(each.place), each.place))[
        :limit
    ]


def due_partitions(
    settings: Settings, wish: Selection, at_most: int | None
) -> list[NamedPartition]:
    """The job partitions to drill now: those that are named, or some of all there are; ApiError
    with what there is for a wrong name.
    """
    there, limit = selection.list_partitions(settings), at_most
    if wish == Selection():
        limit = at_most or settings.drill_partitions
    elif not wish.workspace and not wish.jobs:
        raise ApiError(
            400,
            "form-incomplete",
            "name the workspace too, or name nothing: then those are drilled whose turn it is",
        )
    else:
        there = selection.select_partitions(there, wish)
    with postgres.connect(settings.postgres_dsn.get_secret_value(), name="drills") as connection:
        rows = connection.execute(LAST_DRILLS).fetchall()
    last = {(str(job), cast(int, part)): cast(datetime, at) for job, part, at in rows}
    return least_recently_drilled(there, last, limit or len(there))


def run_drills(
    settings: Settings,
    wanted: Sequence[NamedPartition],
    tell: Callable[[str], None],
    *,
    max_bytes: int,
) -> None:
    """Drill job partitions one after the other, each of at most `max_bytes` of state, and remember
    what was found.

    DrillFailed names those that do not agree; DrillUnknown those that could not be tried, when all
    others agree.
    """
    found: list[tuple[NamedPartition, DrillFinding]] = []
    for each in wanted:
        finding = asyncio.run(drill_at_owner(SocketSlotClient(settings), each, max_bytes))
        tell(f"{each}: {finding}")
        record_finding(settings, each, finding)
        found.append((each, finding))
    raise_on_failures(found)


def record_finding(settings: Settings, drilled: NamedPartition, finding: DrillFinding) -> None:
    """Write a finding into the job partition's row; what says nothing about the state leaves an
    alarm as it is.
    """
    values = (drilled.job, drilled.part, finding.verdict, finding.told)
    with postgres.connect(settings.postgres_dsn.get_secret_value(), name="drills") as connection:
        if finding.verdict is DrillVerdict.SKIPPED:
            connection.execute(UPSERT_SKIPPED, values)
        elif finding.verdict is not DrillVerdict.UNKNOWN:
            connection.execute(UPSERT_FINDING, (*values, finding.live_hash, finding.drilled_hash))


def raise_on_failures(found: Sequence[tuple[NamedPartition, DrillFinding]]) -> None:
    """Raise DrillFailed or DrillUnknown if any finding says so."""
    for verdicts, error in ((FAILED_VERDICTS, DrillFailed), ((DrillVerdict.UNKNOWN,), DrillNotRun)):
        if those := [
            f"{each}: {finding}" for each, finding in found if finding.verdict in verdicts
        ]:
            raise error(f"{len(those)} of {len(found)} drills: {'; '.join(those)}")


async def drill_at_owner(slots: SlotClient, wanted: NamedPartition, max_bytes: int) -> DrillFinding:
    """What the owner of a job partition finds."""
    address = (await slots.owners([wanted.job])).get(wanted.place)
    if address is None:
        return DrillFinding(DrillVerdict.SKIPPED, "no slot owns it now")
    try:
        async with asyncio.timeout(DRILL_TIMEOUT_S):
            verdict, *told = await slots.call(
                address, "drill", {"items": [list(wanted.place)], "max_bytes": max_bytes}
            )
    except RemoteError as refused:
        return DrillFinding(
            DrillVerdict.UNKNOWN if reaction_to(refused) is Reaction.FAIL else DrillVerdict.SKIPPED,
            str(refused),
        )
    except (OSError, TimeoutError) as lost:
        return DrillFinding(
            DrillVerdict.UNKNOWN, f"its slot gave no answer: {lost or 'it took too long'}"
        )
    return DrillFinding(DrillVerdict(verdict), *told)


async def failed_drills(pool: Pool) -> list[FailedDrill]:
    """Every job partition whose last drill did not agree."""
    async with pool.connection() as connection:
        rows = await (await connection.execute(SELECT_FAILED, (list(FAILED_VERDICTS),))).fetchall()
    return [
        FailedDrill(
            str(job),
            cast(int, part),
            str(title),
            DrillFinding(DrillVerdict(str(v)), str(told), str(live), str(drilled)),
            cast(datetime, at),
        )
        for job, part, title, v, told, live, drilled, at in rows
    ]
