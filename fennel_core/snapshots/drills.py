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
from fennel_core.snapshots import choice
from fennel_core.snapshots.choice import Named, Wish
from fennel_core.snapshots.recovery import LiveSlots, Slots
from fennel_core.vocab.errors import ApiError

DRILL_S: Final = 1800.0
"""A drill that takes longer is given up: the next one may be luckier."""
LAST: Final = "SELECT job_id, part, drilled_at FROM drill"
STORE: Final = """
    INSERT INTO drill (job_id, part, verdict, told, live_hash, drilled_hash) VALUES (%s, %s, %s,
        %s, %s, %s)
    ON CONFLICT (job_id, part) DO UPDATE SET verdict = excluded.verdict, told = excluded.told,
        live_hash = excluded.live_hash,
        drilled_hash = excluded.drilled_hash, drilled_at = now()
"""
WAITED: Final = """
    INSERT INTO drill (job_id, part, verdict, told, live_hash, drilled_hash) VALUES (%s, %s, %s,
        %s, '', '')
    ON CONFLICT (job_id, part) DO UPDATE SET drilled_at = now()
"""
ALARMING: Final = """
    SELECT d.job_id, d.part, a.title, d.verdict, d.told, d.live_hash, d.drilled_hash, d.drilled_at
    FROM drill d JOIN job j ON j.id = d.job_id JOIN asset a ON a.id = d.job_id
    WHERE d.verdict = ANY(%s::text[]) AND j.desired = 'run' ORDER BY d.job_id, d.part
"""


class Verdict(StrEnum):
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


ALARMS: Final = (Verdict.DIFFERS, Verdict.DAMAGED, Verdict.LOST)


@dataclass(frozen=True, slots=True)
class Finding:
    """What one drill found; the hashes are hex digits, empty where none were compared."""

    verdict: Verdict
    told: str
    live_hash: str = ""
    drilled_hash: str = ""

    def __str__(self) -> str:
        hashes = f" (live {self.live_hash}, drilled {self.drilled_hash})" if self.live_hash else ""
        return f"{self.verdict}: {self.told}{hashes}"


@dataclass(frozen=True, slots=True)
class Failing:
    """A job partition whose last drill did not agree."""

    job: str
    part: int
    title: str
    finding: Finding
    at: datetime

    def __str__(self) -> str:
        return f"{self.title} ({self.job}[{self.part}]): {self.finding}"


AFTER_DRILL: Final = (
    "rebuild it with the DAG `recovery` or `fennel-core recover`, from an older "
    "snapshot where the newest one is at fault (`--before` its "
    "number); its local state is put aside then and can be looked at; drill it "
    "again: that ends the alarm"
)


class DrillFailed(Exception):
    """Some job partitions could not be rebuilt as they are; the text names them, with both
    hashes.
    """


class DrillUnknown(Exception):
    """Some drills could not be carried out; the text says which and why."""


def in_turn(
    known: Sequence[Named], last: Mapping[tuple[str, int], datetime], limit: int
) -> list[Named]:
    """At most `limit` of them: those never drilled first, then those whose last drill is longest
    ago.
    """
    return sorted(known, key=lambda each: (each.place in last, last.get(each.place), each.place))[
        :limit
    ]


def due(settings: Settings, wish: Wish, at_most: int | None) -> list[Named]:
    """The job partitions to drill now: those that are named, or some of all there are; ApiError
    with what there is for a wrong name.
    """
    there, limit = choice.known(settings), at_most
    if wish == Wish():
        limit = at_most or settings.drill_partitions
    elif not wish.workspace and not wish.jobs:
        raise ApiError(
            400,
            "form-incomplete",
            "name the workspace too, or name nothing: then those are drilled whose turn it is",
        )
    else:
        there = choice.chosen(there, wish)
    with postgres.connect(settings.postgres_dsn.get_secret_value(), name="drills") as connection:
        rows = connection.execute(LAST).fetchall()
    last = {(str(job), cast(int, part)): cast(datetime, at) for job, part, at in rows}
    return in_turn(there, last, limit or len(there))


def drill(
    settings: Settings, wanted: Sequence[Named], tell: Callable[[str], None], *, max_bytes: int
) -> None:
    """Drill job partitions one after the other, each of at most `max_bytes` of state, and remember
    what was found.

    DrillFailed names those that do not agree; DrillUnknown those that could not be tried, when all
    others agree.
    """
    found: list[tuple[Named, Finding]] = []
    for each in wanted:
        finding = asyncio.run(drilled_by_owner(LiveSlots(settings), each, max_bytes))
        tell(f"{each}: {finding}")
        remember(settings, each, finding)
        found.append((each, finding))
    refuse(found)


def remember(settings: Settings, drilled: Named, finding: Finding) -> None:
    """Write a finding into the job partition's row; what says nothing about the state leaves an
    alarm as it is.
    """
    values = (drilled.job, drilled.part, finding.verdict, finding.told)
    with postgres.connect(settings.postgres_dsn.get_secret_value(), name="drills") as connection:
        if finding.verdict is Verdict.SKIPPED:
            connection.execute(WAITED, values)
        elif finding.verdict is not Verdict.UNKNOWN:
            connection.execute(STORE, (*values, finding.live_hash, finding.drilled_hash))


def refuse(found: Sequence[tuple[Named, Finding]]) -> None:
    """Raise DrillFailed or DrillUnknown if any finding says so."""
    for verdicts, error in ((ALARMS, DrillFailed), ((Verdict.UNKNOWN,), DrillUnknown)):
        if those := [
            f"{each}: {finding}" for each, finding in found if finding.verdict in verdicts
        ]:
            raise error(f"{len(those)} of {len(found)} drills: {'; '.join(those)}")


async def drilled_by_owner(slots: Slots, wanted: Named, max_bytes: int) -> Finding:
    """What the owner of a job partition finds."""
    address = (await slots.owners([wanted.job])).get(wanted.place)
    if address is None:
        return Finding(Verdict.SKIPPED, "no slot owns it now")
    try:
        async with asyncio.timeout(DRILL_S):
            verdict, *told = await slots.call(
                address, "drill", {"items": [list(wanted.place)], "max_bytes": max_bytes}
            )
    except RemoteError as refused:
        return Finding(
            Verdict.UNKNOWN if reaction_to(refused) is Reaction.FAIL else Verdict.SKIPPED,
            str(refused),
        )
    except (OSError, TimeoutError) as lost:
        return Finding(Verdict.UNKNOWN, f"its slot gave no answer: {lost or 'it took too long'}")
    return Finding(Verdict(verdict), *told)


async def failing(pool: Pool) -> list[Failing]:
    """Every job partition whose last drill did not agree."""
    async with pool.connection() as connection:
        rows = await (await connection.execute(ALARMING, (list(ALARMS),))).fetchall()
    return [
        Failing(
            str(job),
            cast(int, part),
            str(title),
            Finding(Verdict(str(v)), str(told), str(live), str(drilled)),
            cast(datetime, at),
        )
        for job, part, title, v, told, live, drilled, at in rows
    ]
