"""One snapshot pass: request snapshots from every slot, then prune.

Theory. Only the owner of a state can copy it, so a pass sends requests to the slots and waits for
their responses. It keeps no state of its own, and the next pass makes up for one that was lost. A
job partition that moves or replays during a pass is not a failure: its new owner copies it in the
next pass. The functions block, for programs without an event loop such as Airflow tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, cast

from fennel_core.connections import postgres
from fennel_core.connections.frames import Channel
from fennel_core.connections.garbage import DeletionLimit, PostgresGarbageMarks
from fennel_core.connections.installation import installation_objects
from fennel_core.settings.model import Settings
from fennel_core.snapshots.errors import SnapshotPassFailed
from fennel_core.snapshots.postgres import PostgresPointers
from fennel_core.snapshots.pruning import PrunedSnapshots, prune_snapshots
from fennel_core.snapshots.transfer import SnapshotContext

PASS_TIMEOUT_S: Final = 1800
"""A slot that has not responded within this is left to a later pass. It is less than the grace
period of objects: otherwise a slow upload would lose its first files to pruning before its manifest
is written.
"""
OWNING_SLOTS: Final = """
    SELECT DISTINCT s.address FROM slot s JOIN job_partition p ON p.slot_id = s.id
    WHERE s.lease_until > now() AND NOT s.stopping ORDER BY s.address
"""
OWNED_PARTITIONS: Final = """
    SELECT p.job_id, p.part, a.title
    FROM slot s JOIN job_partition p ON p.slot_id = s.id JOIN asset a ON a.id = p.job_id
    WHERE s.lease_until > now() AND p.status = 'running' AND s.address = %s
    ORDER BY p.job_id, p.part
"""
SNAPSHOT_NUMBERS: Final = "SELECT manifest, number FROM snapshot WHERE manifest = ANY(%s::text[])"


@dataclass(frozen=True, slots=True)
class SnapshotResult:
    """What a slot did about one job partition.

    `code`: `taken`, `unchanged`, `failed`, or the code with which the slot refused. `text`: the
    manifest's key, or the reason. `number`: of the snapshot that holds this state now; None if
    there is none. `title`: of the job, for operators.
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
    """Return the addresses of the live slots that own a job partition."""
    with postgres.connect(settings.postgres_dsn.get_secret_value(), name="snapshots") as connection:
        return [str(address) for (address,) in connection.execute(OWNING_SLOTS).fetchall()]


def snapshot_slot(settings: Settings, address: str) -> list[SnapshotResult]:
    """Request a snapshot of every state that one slot owns, and return the results.

    Raises OSError or RemoteError if the slot does not respond.
    """
    dsn = settings.postgres_dsn.get_secret_value()
    with postgres.connect(dsn, name="snapshots") as connection:
        owned = {
            (str(job), part): str(title)
            for job, part, title in connection.execute(OWNED_PARTITIONS, (address,)).fetchall()
        }
    results = asyncio.run(_request(address, [[*each] for each in owned])) if owned else []
    manifests = [text for _, _, _, text, _ in results]
    with postgres.connect(dsn, name="snapshots") as connection:
        rows = connection.execute(SNAPSHOT_NUMBERS, (manifests,)).fetchall()
    numbers = {str(manifest): cast(int, number) for manifest, number in rows}
    return [
        SnapshotResult(job, part, code, text, sent, owned[job, part], numbers.get(text))
        for job, part, code, text, sent in results
    ]


def raise_on_failures(results: Sequence[SnapshotResult]) -> None:
    """Raise SnapshotPassFailed if a state was not copied, unless it moved or is parked."""
    if failed := [
        f"{each.title}[{each.part}] ({each.job}): {each.text}"
        for each in results
        if each.code == "failed"
    ]:
        raise SnapshotPassFailed(
            f"{len(failed)} of {len(results)} states were not copied: {'; '.join(failed)}"
        )


def run_pruning(settings: Settings) -> PrunedSnapshots:
    """Prune snapshots as the settings say.

    Raises SystemUnavailable if S3 or Postgres cannot be used, DeletionRefused beyond the limit.
    """
    return asyncio.run(_prune(settings))


async def _request(address: str, items: list[list[object]]) -> list[tuple[str, int, str, str, int]]:
    async with asyncio.timeout(PASS_TIMEOUT_S):
        channel = await Channel.open(address)
        try:
            return [
                (job, part, code, text, sent)
                for job, part, code, text, sent in await channel.call("snapshot", {"items": items})
            ]
        finally:
            await channel.close()


async def _prune(settings: Settings) -> PrunedSnapshots:
    async with postgres.pool(
        settings.postgres_dsn.get_secret_value(), name="snapshots", size=1
    ) as pool:
        return await prune_snapshots(
            SnapshotContext(installation_objects(settings, pool), PostgresPointers(pool)),
            PostgresGarbageMarks(pool),
            settings.snapshots_kept,
            timedelta(milliseconds=settings.snapshot_grace_ms),
            DeletionLimit(settings.garbage_items, settings.garbage_percent),
        )
