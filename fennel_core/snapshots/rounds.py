"""Rounds of snapshots, as Airflow asks for them: every slot copies what it owns, and later what nobody needs is deleted.

Theory. Only the owner of a state can copy it, so a round asks the slots and waits for their answers; it keeps nothing itself, and a round
that is lost is made up for by the next. A job partition that moves or recovers while a round runs is no failure: its new owner copies it
next time. Calls are blocking, for programs without an event loop.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from fennel_core.connections import postgres, s3
from fennel_core.connections.frames import Channel
from fennel_core.settings.model import Settings
from fennel_core.snapshots.flow import Pruned, Tools, prune
from fennel_core.snapshots.postgres import PostgresPointers
from fennel_core.snapshots.s3 import S3Objects

ROUND_S: Final = 1800
"""A slot that does not answer within this is asked again in a later round. Less than the grace period of objects, or a slow upload would
lose its first files to pruning before its manifest is written."""
OWNING = """
    SELECT DISTINCT s.address FROM slot s JOIN job_partition p ON p.slot_id = s.id
    WHERE s.lease_until > now() AND NOT s.stopping ORDER BY s.address
"""
OWNED = """
    SELECT p.job_id, p.part FROM slot s JOIN job_partition p ON p.slot_id = s.id
    WHERE s.lease_until > now() AND p.status = 'running' AND s.address = %s ORDER BY p.job_id, p.part
"""


class RoundFailed(Exception):
    """Some states could not be copied; the text says which and why."""


@dataclass(frozen=True, slots=True)
class Answer:
    """`code`: taken, unchanged, failed, or why the slot refused (moved, parked). `text`: the manifest's key, or the reason."""

    job: str
    part: int
    code: str
    text: str


def owning_slots(settings: Settings) -> list[str]:
    """Addresses of the live slots that own something."""
    with postgres.connect(settings.postgres_dsn.get_secret_value(), name="snapshots") as connection:
        return [str(address) for (address,) in connection.execute(OWNING).fetchall()]


def snapshot_slot(settings: Settings, address: str) -> list[Answer]:
    """Ask one slot to copy every state it owns. RoundFailed when any could not be; OSError or RemoteError without an answer."""
    with postgres.connect(settings.postgres_dsn.get_secret_value(), name="snapshots") as connection:
        items = [list(row) for row in connection.execute(OWNED, (address,)).fetchall()]
    answers = asyncio.run(_asked(address, items)) if items else []
    if failed := [f"{each.job}[{each.part}]: {each.text}" for each in answers if each.code == "failed"]:
        raise RoundFailed(f"{len(failed)} of {len(answers)} states were not copied: {'; '.join(failed)}")
    return answers


def prune_snapshots(settings: Settings) -> Pruned:
    """Delete what nobody needs any more; StoreError when bucket or database are away."""
    return asyncio.run(_pruned(settings))


async def _asked(address: str, items: list[list[object]]) -> list[Answer]:
    async with asyncio.timeout(ROUND_S):
        channel = await Channel.open(address)
        try:
            return [Answer(*answer) for answer in await channel.call("snapshot", {"items": items})]
        finally:
            await channel.close()


async def _pruned(settings: Settings) -> Pruned:
    async with postgres.pool(settings.postgres_dsn.get_secret_value(), name="snapshots", size=1) as pool:
        tools = Tools(S3Objects(s3.client(settings), settings.s3_bucket), PostgresPointers(pool))
        return await prune(tools, settings.snapshots_kept, timedelta(milliseconds=settings.snapshot_grace_ms))
