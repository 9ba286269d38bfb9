"""Rounds of snapshots, as Airflow asks for them: every slot copies what it owns, and later what
nobody needs is deleted.

Theory. Only the owner of a state can copy it, so a round asks the slots and waits for their
answers; it keeps nothing itself, and a round that is lost is made up for by the next. A job
partition that moves or recovers while a round runs is no failure: its new owner copies it next
time. Calls are blocking, for programs without an event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, cast

from fennel_core.connections import postgres, s3
from fennel_core.connections.frames import Channel
from fennel_core.settings.model import Settings
from fennel_core.snapshots.postgres import PostgresPointers
from fennel_core.snapshots.s3 import S3Objects
from fennel_core.snapshots.transfer import PrunedSnapshots, SnapshotContext, prune_snapshots

PASS_TIMEOUT_S: Final = 1800
"""A slot that does not answer within this is asked again in a later round. Less than the grace
period of objects, or a slow upload would lose its first files to pruning before its manifest is
written.
"""
OWNING_SLOTS = """
    SELECT DISTINCT s.address FROM slot s JOIN job_partition p ON p.slot_id = s.id
    WHERE s.lease_until > now() AND NOT s.stopping ORDER BY s.address
"""
OWNED_PARTITIONS = """
    SELECT p.job_id, p.part, a.title FROM slot s JOIN job_partition p ON p.slot_id = s.id JOIN
        asset a ON a.id = p.job_id
    WHERE s.lease_until > now() AND p.status = 'running' AND s.address = %s ORDER BY p.job_id,
        p.part
"""
SNAPSHOT_NUMBERS = "SELECT manifest, number FROM snapshot WHERE manifest = ANY(%s::text[])"


class SnapshotPassFailed(Exception):
    """Some states could not be copied; the text says which and why."""


@dataclass(frozen=True, slots=True)
class SnapshotResult:
    """`code`: taken, unchanged, failed, or why the slot refused (not-owner, parked). `text`: the
    manifest's key, or the reason.

    `number`: of the snapshot that holds this state now; None where there is none. `title`: of the
    job, for people.
    """

    job: str
    part: int
    code: str
    text: str
    uploaded_bytes: int
    title: str
    number: int | None

    def __str__(self) -> str:
        number = "" if self.number is None else f" #{self.number}"
        return (
            f"snapshot{number} {self.code}: {self.title}[{self.part}], "
            f"{self.uploaded_bytes} bytes uploaded ({self.text})"
        )


def owning_slots(settings: Settings) -> list[str]:
    """Addresses of the live slots that own something."""
    with postgres.connect(settings.postgres_dsn.get_secret_value(), name="snapshots") as connection:
        return [str(address) for (address,) in connection.execute(OWNING_SLOTS).fetchall()]


def snapshot_slot(settings: Settings, address: str) -> list[SnapshotResult]:
    """Ask one slot to copy every state it owns; answers what came of each. OSError or RemoteError
    without an answer.
    """
    dsn = settings.postgres_dsn.get_secret_value()
    with postgres.connect(dsn, name="snapshots") as connection:
        owned = {
            (str(job), part): str(title)
            for job, part, title in connection.execute(OWNED_PARTITIONS, (address,)).fetchall()
        }
    answers = asyncio.run(_asked(address, [[*each] for each in owned])) if owned else []
    with postgres.connect(dsn, name="snapshots") as connection:
        rows = connection.execute(
            SNAPSHOT_NUMBERS, ([text for _, _, _, text, _ in answers],)
        ).fetchall()
    numbers = {str(manifest): cast(int, number) for manifest, number in rows}
    return [
        SnapshotResult(job, part, code, text, sent, owned[job, part], numbers.get(text))
        for job, part, code, text, sent in answers
    ]


def raise_on_failures(answers: Sequence[SnapshotResult]) -> None:
    """RoundFailed when any state could not be copied; one that moved or is parked is no failure."""
    if failed := [
        f"{each.title}[{each.part}] ({each.job}): {each.text}"
        for each in answers
        if each.code == "failed"
    ]:
        raise SnapshotPassFailed(
            f"{len(failed)} of {len(answers)} states were not copied: {'; '.join(failed)}"
        )


def run_pruning(settings: Settings) -> PrunedSnapshots:
    """Delete what nobody needs any more; StoreError when bucket or database are away."""
    return asyncio.run(_pruned(settings))


async def _asked(address: str, items: list[list[object]]) -> list[tuple[str, int, str, str, int]]:
    async with asyncio.timeout(PASS_TIMEOUT_S):
        channel = await Channel.open(address)
        try:
            return [
                (job, part, code, text, sent)
                for job, part, code, text, sent in await channel.call("snapshot", {"items": items})
            ]
        finally:
            await channel.close()


async def _pruned(settings: Settings) -> PrunedSnapshots:
    async with postgres.pool(
        settings.postgres_dsn.get_secret_value(), name="snapshots", size=1
    ) as pool:
        tools = SnapshotContext(
            S3Objects(s3.client(settings), settings.s3_bucket), PostgresPointers(pool)
        )
        return await prune_snapshots(
            tools, settings.snapshots_kept, timedelta(milliseconds=settings.snapshot_grace_ms)
        )
