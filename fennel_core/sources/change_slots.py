"""The replication slots that the platform has in users' databases, and when they are dropped.

A slot that is forgotten fills the disk of a user's server. So a row names each before it is made,
with what is needed to reach it, and goes when the slot was dropped. A slot is dropped when the raw
topic of its source is destroyed: until then a commit may revive the source, with its position.

A reader that began just before may make the slot once more. So a dropped slot is remembered for
longer than a reader takes to begin, and dropped again before it is forgotten.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, LiteralString, Protocol, cast

import structlog

from fennel_core.blueprints import stored_names
from fennel_core.connections.errors import ConnectionsError
from fennel_core.connections.postgres import Pool, connection_of
from fennel_core.sources.feeds import Feed
from fennel_core.telemetry.endless_tasks import in_daemon_thread
from fennel_core.vocab.ids import TopicName, WorkspaceId
from fennel_core.wire.connectors import PostgresChanges

HOLD: Final[LiteralString] = """
    INSERT INTO change_slot AS s (raw_topic, workspace, slot, definition)
    SELECT a.id, a.workspace, %(slot)s, %(definition)s FROM asset a
    WHERE a.id = %(topic)s AND a.state <> 'deleted'
    ON CONFLICT (raw_topic) DO UPDATE SET definition = excluded.definition, error = NULL
    RETURNING s.slot
"""
ABANDONED: Final[LiteralString] = """
    SELECT s.raw_topic, s.workspace, s.slot, s.definition, s.error FROM change_slot s
    WHERE NOT EXISTS (SELECT FROM asset a WHERE a.id = s.raw_topic AND a.state <> 'deleted')
        AND (s.dropped_at IS NULL OR s.dropped_at < now() - %(kept)s)
    ORDER BY s.made_at, s.raw_topic
"""
DROPS: Final = 8
"""Slots that are dropped at once."""
DROP_S: Final = 60.0
"""How long that may take; the connection is cut before, see `external_changes`."""
KEPT: Final = timedelta(hours=1)
"""How long a dropped slot is remembered: more than a reader takes to make one."""
DROPPED: Final[LiteralString] = """
    WITH forgotten AS (
        DELETE FROM change_slot WHERE raw_topic = %(topic)s AND dropped_at < now() - %(kept)s
    )
    UPDATE change_slot SET dropped_at = now(), error = NULL
    WHERE raw_topic = %(topic)s AND dropped_at IS NULL
"""
FAILED: Final[LiteralString] = (
    "UPDATE change_slot SET error = %(error)s WHERE raw_topic = %(topic)s"
)


log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AbandonedSlot:
    """A slot whose source is destroyed. `error`: why it could not be dropped the last time."""

    raw_topic: TopicName
    workspace: WorkspaceId
    slot: str
    table: PostgresChanges
    error: str | None

    @property
    def title(self) -> str:
        """For people, who drop it themselves if the platform cannot."""
        return f"slot `{self.slot}` of connector `{self.table.db.name}`"


class ChangeSlots(Protocol):
    """Remembers slots. Raises `SystemUnavailable`."""

    async def hold(self, feed: Feed, table: PostgresChanges) -> str | None:
        """Return the name of a source's slot, which is remembered from now on.

        None if the source was destroyed in between: it needs no slot.
        """
        ...

    async def abandoned(self) -> Sequence[AbandonedSlot]:
        """Return the slots to drop."""
        ...

    async def dropped(self, raw_topic: TopicName) -> None:
        """Note that a slot was dropped; forget one that was before, too."""
        ...

    async def failed(self, raw_topic: TopicName, error: str) -> None:
        """Note why a slot could not be dropped."""
        ...


class PostgresChangeSlots:
    """See `ChangeSlots`; migration 0033."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def hold(self, feed: Feed, table: PostgresChanges) -> str | None:
        given = {
            "topic": feed.raw_topic,
            "slot": f"fennel_{uuid.uuid4().hex}",
            "definition": stored_names.dumps(table),
        }
        async with connection_of(self._pool) as connection:
            row = await (await connection.execute(HOLD, given)).fetchone()
        return None if row is None else str(row[0])

    async def abandoned(self) -> Sequence[AbandonedSlot]:
        async with connection_of(self._pool) as connection:
            cursor = await connection.execute(ABANDONED, {"kept": KEPT})
            rows = cast(list[tuple[str, str, str, bytes, str | None]], await cursor.fetchall())
        return [
            AbandonedSlot(
                TopicName(topic),
                WorkspaceId(workspace),
                slot,
                stored_names.loads(definition, PostgresChanges),
                error,
            )
            for topic, workspace, slot, definition, error in rows
        ]

    async def dropped(self, raw_topic: TopicName) -> None:
        async with connection_of(self._pool) as connection:
            await connection.execute(DROPPED, {"topic": raw_topic, "kept": KEPT})

    async def failed(self, raw_topic: TopicName, error: str) -> None:
        async with connection_of(self._pool) as connection:
            await connection.execute(FAILED, {"topic": raw_topic, "error": error})


async def drop_abandoned(
    slots: ChangeSlots, drop: Callable[[AbandonedSlot], None]
) -> Sequence[AbandonedSlot]:
    """Drop the slots of destroyed sources; return those that could not be, with the reason.

    `drop` blocks, and raises `ConnectionsError`. One that fails, or whose server does not respond,
    stops no other, and is tried again.
    """
    found, free = await slots.abandoned(), asyncio.Semaphore(DROPS)

    async def reason(each: AbandonedSlot) -> str | None:
        async with free:
            return await _reason_kept(each, drop)

    left = []
    for each, error in zip(found, await asyncio.gather(*map(reason, found)), strict=True):
        if error is not None:
            await slots.failed(each.raw_topic, error)
            left.append(replace(each, error=error))
            if each.error is None:
                log.error("a slot could not be dropped", slot=each.title, reason=error)
        else:
            await slots.dropped(each.raw_topic)
            log.info("a slot was dropped", slot=each.title, workspace=each.workspace)
    return left


async def _reason_kept(slot: AbandonedSlot, drop: Callable[[AbandonedSlot], None]) -> str | None:
    """Drop a slot; return why it could not be."""
    dropping = in_daemon_thread(partial(drop, slot), "drop-slot")
    try:
        await asyncio.wait_for(dropping, DROP_S)
    except TimeoutError:
        return f"the server did not respond in {DROP_S:.0f} s"
    except ConnectionsError as failed:
        return str(failed)
    except Exception as unexpected:  # last line of defence: others are dropped
        log.exception("unexpected error of a slot", slot=slot.title)
        return f"{type(unexpected).__name__}: {unexpected}"
    return None


@dataclass(slots=True)
class MemoryChangeSlots:
    """In-memory `ChangeSlots`. `alive`: the sources that are not destroyed; `clock`: the time."""

    alive: set[TopicName] = field(default_factory=set)
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    _held: dict[TopicName, AbandonedSlot] = field(default_factory=dict)
    _dropped: dict[TopicName, datetime] = field(default_factory=dict)

    async def hold(self, feed: Feed, table: PostgresChanges) -> str | None:
        topic = feed.raw_topic
        if topic not in self.alive:
            return None
        known = self._held.get(topic)
        slot = f"fennel_{uuid.uuid4().hex}" if known is None else known.slot
        self._held[topic] = AbandonedSlot(topic, feed.workspace, slot, table, None)
        return slot

    async def abandoned(self) -> Sequence[AbandonedSlot]:
        return [
            each
            for topic, each in self._held.items()
            if topic not in self.alive and self._is_due(topic)
        ]

    async def dropped(self, raw_topic: TopicName) -> None:
        if raw_topic not in self._dropped:
            self._dropped[raw_topic] = self.clock()
            self._held[raw_topic] = replace(self._held[raw_topic], error=None)
        elif self._is_due(raw_topic):
            del self._held[raw_topic], self._dropped[raw_topic]

    async def failed(self, raw_topic: TopicName, error: str) -> None:
        self._held[raw_topic] = replace(self._held[raw_topic], error=error)

    def _is_due(self, topic: TopicName) -> bool:
        at = self._dropped.get(topic)
        return at is None or at < self.clock() - KEPT
