"""Move the positions of a stream, so that it is read again from there, or not at all up to there.

Theory. A move is a transaction with nothing but the new position, by a session that fences every
writer of the partition. What a move does to the rows is not the platform's choice: messages before
the old position are *read again*, and rows of datasets without keys are then there twice; rows of
keyed datasets are the same rows again. Messages between the old and a later position are *skipped*
for good. So an order that does either names it, and the refusal has the numbers.

A reader that began before the move delivers messages that do not follow the new position. The
position counts its moves, and a writer that began at another count writes nothing
(`SourceRewound`). Without new messages such a reader would not notice, so a stream is paused first,
and `resume` begins at the new position. A pause may be lifted before the process that reads has
seen it, so a rewind also begins a generation before and after its moves (`sources.controls`): a
reader that began before the last of them is started again.

Partitions are moved one by one. An order that ends early has moved some of them: repeat it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from fennel_core.connections.errors import (
    SystemUnavailable,
    TransactionAborted,
    TransactionOutcomeUnknown,
)
from fennel_core.connections.external_kafka import (
    ExternalKafka,
    ExternalKafkaUnusable,
    StreamBounds,
    opened,
)
from fennel_core.connections.external_kinesis import ExternalStreamUnusable, StreamThrottled
from fennel_core.connections.secrets import SecretUnreadable
from fennel_core.ingest.store import boot_s
from fennel_core.sources.api_errors import (
    RewindEndedEarly,
    RewindNeedsConsent,
    RewindPlaceInvalid,
    SourceNotPaused,
    SourceNotReadable,
)
from fennel_core.sources.controls import SourceControls
from fennel_core.sources.errors import StreamReplaced
from fennel_core.sources.feeds import Feed
from fennel_core.sources.kinesis_orders import ShardMove, StreamState, shard_moves
from fennel_core.sources.overview import SourceView
from fennel_core.sources.positions import SourcePosition, restarted, rewound
from fennel_core.sources.service import ReadTopic, SourceService, topic_of
from fennel_core.sources.store import SourceLog
from fennel_core.sources.table_reads import decode, encode, taken
from fennel_core.sources.trial import OpenSecret
from fennel_core.vocab.ids import WorkspaceId
from fennel_core.wire.connectors import KinesisStream, MySQLChanges, PostgresChanges, S3Table

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
CURRENT: Final = "current"
"""Of a table: where it is, with all rows up to the highest value that was read taken for read."""
RESTARTS: Final = 5
RESTART_PAUSE_S: Final = 1.0
"""Between attempts to move a source that is read in rounds, which end soon after a pause."""
ReadBounds = Callable[[ExternalKafka, str, int | None], StreamBounds]
"""See `stream_bounds`."""
ReadStream = Callable[[KinesisStream, WorkspaceId], StreamState]
"""See `kinesis_orders.stream_state`."""


@dataclass(frozen=True, slots=True)
class Move:
    """A partition of a stream and its position before and after a move."""

    partition: int
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Consent:
    """What a user accepts: that rows are there twice, and that messages are never read."""

    duplicates_rows: bool = False
    skips_messages: bool = False


def time_of(to: str) -> int | None:
    """Return the time (ms since 1970) that a place names; None for a place of another form."""
    try:
        at = datetime.fromisoformat(to)
    except ValueError:
        return None
    return int((at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() * 1000)


def targets_of(to: str, bounds: StreamBounds) -> dict[int, int]:
    """Return the new position of each partition that a place names. Raises RewindPlaceInvalid.

    A place is `earliest`, `latest`, a time, or offsets by partition, as `0:12,3:40`.
    """
    if to == EARLIEST:
        return dict(bounds.first)
    if to == LATEST:
        return dict(bounds.end)
    if time_of(to) is not None:
        return dict(bounds.at_time)
    found: dict[int, int] = {}
    for part in to.split(","):
        number, _, offset = part.strip().partition(":")
        if not (number.isdecimal() and offset.isdecimal()):
            raise RewindPlaceInvalid(
                f"`{to}` is no place in a stream; use earliest, latest, a time like "
                "2026-01-31T12:00:00Z, or offsets by partition like 0:12,3:40"
            )
        first, end = bounds.first.get(int(number)), bounds.end.get(int(number))
        if first is None or end is None or not first <= int(offset) <= end:
            raise RewindPlaceInvalid(
                f"partition {number} has no offset {offset}; the stream has "
                + ", ".join(f"{n}: {bounds.first[n]} to {bounds.end[n]}" for n in bounds.first)
            )
        found[int(number)] = int(offset)
    return found


def moves_of(
    targets: Mapping[int, int], positions: Mapping[int, SourcePosition], bounds: StreamBounds
) -> list[Move]:
    """Return the partitions that move; one that was never read is at its first message."""
    moves = [
        Move(number, positions[number].next if number in positions else bounds.first[number], to)
        for number, to in sorted(targets.items())
    ]
    return [move for move in moves if move.before != move.after]


def require_consent(view: SourceView, moves: list[Move], consent: Consent) -> None:
    """Raise RewindNeedsConsent, with numbers, unless the user accepts what the moves do."""
    again, skipped = messages_of(moves)
    keyless = sorted({b.dataset for b, _ in view.bindings.values() if not b.schema.keys})
    if again and keyless and not consent.duplicates_rows:
        raise RewindNeedsConsent(
            f"{again} messages of `{view.name}` would be read again, and "
            f"{', '.join(keyless)} {'has' if len(keyless) == 1 else 'have'} no keys, so the rows "
            "would be there twice; say `duplicates_rows` (--duplicates-rows) if they may be"
        )
    if skipped and not consent.skips_messages:
        raise RewindNeedsConsent(
            f"{skipped} messages of `{view.name}` would never be read; say `skips_messages` "
            "(--skips-messages) if they may be lost"
        )


def messages_of(moves: list[Move]) -> tuple[int, int]:
    """Return how many offsets are read again, and how many are skipped."""
    again = sum(max(0, move.before - move.after) for move in moves)
    return again, sum(max(0, move.after - move.before) for move in moves)


def taken_position(position: SourcePosition) -> SourcePosition:
    """Return the position of a table whose rows up to the highest value are taken for read."""
    cursor = encode(taken(decode(position.cursor))).decode()
    return rewound(position, position.next, cursor)


def _start_us(to: str, state: StreamState) -> int | None:
    """Return the time that a place in a Kinesis stream names; None for its oldest record."""
    time_ms = time_of(to)
    if to == EARLIEST:
        return None
    if to == LATEST:
        return state.facts.now_us
    if time_ms is None or time_ms * 1000 > state.facts.now_us:
        raise RewindPlaceInvalid(
            f"`{to}` is no place in a Kinesis stream; use earliest, latest, or a time that has "
            "come, like 2026-01-31T12:00:00Z"
        )
    return time_ms * 1000


class SourceRewinds:
    """Moves positions. Use from one event loop. `commit_within_s` as for `ingest.committer`."""

    def __init__(
        self,
        sources: SourceService,
        controls: SourceControls,
        log: SourceLog,
        open_secret: OpenSecret,
        read: ReadBounds,
        read_stream: ReadStream,
        commit_within_s: float,
    ) -> None:
        self._read_stream = read_stream
        self._sources, self._controls, self._log = sources, controls, log
        self._open, self._read, self._commit_within_s = open_secret, read, commit_within_s

    async def run(
        self, workspace: WorkspaceId, name: str, to: str, consent: Consent, *, dry_run: bool
    ) -> dict[str, Any]:
        """Move a stream to a place; return the moves with the numbers of messages.

        Raises SourceUnknown, SourceIsSent, OrderNotServed, SourceNotReadable, SourceNotPaused,
        RewindPlaceInvalid, RewindNeedsConsent and RewindEndedEarly.
        """
        view, feed = await self._sources.feed(workspace, name, "rewind")
        if isinstance(feed.table, KinesisStream):
            return await self._shards(view, feed, feed.table, to, consent, dry_run=dry_run)
        if feed.scheduled or isinstance(feed.table, S3Table | PostgresChanges | MySQLChanges):
            return await self._from_beginning(view, feed, to, consent, dry_run=dry_run)
        topic = topic_of(name, feed, "rewind")
        if not dry_run and feed.raw_topic not in await self._controls.pauses():
            raise SourceNotPaused(name)
        bounds = await self._bounds(workspace, name, topic, to)
        positions = await self._sources.positions(feed)
        for number, position in positions.items():
            if position.origin != bounds.origin:
                title = feed.partition(number).title
                replaced = StreamReplaced(title, position.origin, bounds.origin)
                raise SourceNotReadable(name, str(replaced))
        moves = moves_of(targets_of(to, bounds), positions, bounds)
        if not dry_run:
            require_consent(view, moves, consent)
            await self._begin_generation(name, feed)
            await self._move(feed, moves, bounds)
            await self._begin_generation(name, feed)
        again, skipped = messages_of(moves)
        return {
            "source": name,
            "moves": [{"partition": m.partition, "from": m.before, "to": m.after} for m in moves],
            "read_again": again,
            "skipped": skipped,
            "dry_run": dry_run,
        }

    async def _shards(
        self,
        view: SourceView,
        feed: Feed,
        table: KinesisStream,
        to: str,
        consent: Consent,
        *,
        dry_run: bool,
    ) -> dict[str, Any]:
        """Move the shards of a Kinesis stream, whose records have no numbers that count them."""
        if not dry_run and feed.raw_topic not in await self._controls.pauses():
            raise SourceNotPaused(view.name)
        try:
            state = await asyncio.to_thread(self._read_stream, table, feed.workspace)
        except (ExternalStreamUnusable, StreamThrottled) as unusable:
            raise SourceNotReadable(view.name, str(unusable)) from unusable
        positions = await self._sources.positions(feed)
        for number, position in positions.items():
            if position.origin != state.origin:
                title = feed.partition(number).title
                replaced = StreamReplaced(title, position.origin, state.origin)
                raise SourceNotReadable(view.name, str(replaced))
        moves = shard_moves(state, positions, _start_us(to, state))
        skips = any(move.skips for move in moves)
        if not dry_run:
            numbered = [Move(move.shard, move.again, 0) for move in moves]
            require_consent(view, numbered, consent)
            if skips and not consent.skips_messages:
                raise RewindNeedsConsent(
                    f"records of `{view.name}` that were not read yet would never be read, and "
                    "Kinesis does not say how many they are; say `skips_messages` "
                    "(--skips-messages) if they may be lost"
                )
            await self._begin_generation(view.name, feed)
            await self._move_shards(feed, moves)
            await self._begin_generation(view.name, feed)
        return {
            "source": view.name,
            "moves": [
                {"partition": m.shard, "from": m.before.next, "to": m.before.next - m.again}
                for m in moves
            ],
            "read_again": sum(move.again for move in moves),
            "skipped": None if skips else 0,
            "dry_run": dry_run,
        }

    async def _move_shards(self, feed: Feed, moves: list[ShardMove]) -> None:
        for done, move in enumerate(moves):
            try:
                session = await self._log.open(feed.partition(move.shard))
                try:
                    if (session.position or move.before) != move.before:
                        raise TransactionAborted(f"a reader has just moved shard {move.shard}")
                    deadline_s = boot_s() + self._commit_within_s
                    await session.commit((), move.after, deadline_s)
                finally:
                    session.close()
            except (TransactionAborted, TransactionOutcomeUnknown, SystemUnavailable) as failed:
                raise RewindEndedEarly(
                    f"{done} of {len(moves)} shards were moved, then: {failed}; repeat the order"
                ) from failed

    async def _from_beginning(
        self, view: SourceView, feed: Feed, to: str, consent: Consent, *, dry_run: bool
    ) -> dict[str, Any]:
        """Let a table, or all files, be read from the beginning: their rows have no numbers.

        A table may be read on from `CURRENT`, too.
        """
        places = (EARLIEST, CURRENT) if feed.scheduled else (EARLIEST,)
        if to not in places:
            what = "from `earliest`, or on from `current`," if feed.scheduled else "from `earliest`"
            raise RewindPlaceInvalid(
                f"`{view.name}` reads {feed.stream.title}, whose rows have no numbers; it can be "
                f"read again {what} only"
            )
        if not dry_run and feed.raw_topic not in await self._controls.pauses():
            raise SourceNotPaused(view.name)
        position = (await self._sources.positions(feed)).get(0)
        moves = []
        if position is not None and position.cursor:
            moves = [Move(0, position.next, position.next if to == CURRENT else 0)]
        if not dry_run:
            require_consent(view, moves, consent)
            if to == CURRENT and moves and not consent.skips_messages:
                raise RewindNeedsConsent(
                    f"rows of `{view.name}` up to the highest value that was read would never be "
                    "read if they were not yet, and it is not known how many these are; say "
                    "`skips_messages` (--skips-messages) if they may be lost"
                )
            # A table is read by runs, which begin at the position that there is.
            if not feed.scheduled:
                await self._begin_generation(view.name, feed)
            if moves:
                await self._restart(view, feed, taken_position if to == CURRENT else restarted)
            if not feed.scheduled:
                await self._begin_generation(view.name, feed)
        again, skipped = messages_of(moves)
        return {
            "source": view.name,
            "moves": [{"partition": m.partition, "from": m.before, "to": m.after} for m in moves],
            "read_again": again,
            "skipped": skipped,
            "dry_run": dry_run,
        }

    async def _restart(
        self, view: SourceView, feed: Feed, moved: Callable[[SourcePosition], SourcePosition]
    ) -> None:
        """Move as `moved` says. A reader that has not seen the pause yet may fence the move."""
        failure: Exception | None = None
        for _ in range(RESTARTS):
            try:
                session = await self._log.open(feed.partition(0))
                try:
                    assert session.position is not None, "positions are not deleted"
                    if not session.position.cursor:
                        return
                    deadline_s = boot_s() + self._commit_within_s
                    await session.commit((), moved(session.position), deadline_s)
                    return
                finally:
                    session.close()
            except (TransactionAborted, TransactionOutcomeUnknown, SystemUnavailable) as failed:
                failure = failed
            await asyncio.sleep(RESTART_PAUSE_S)
        raise RewindEndedEarly(
            f"`{view.name}` may not have been moved: {failure}; repeat the order"
        ) from failure

    async def _begin_generation(self, name: str, feed: Feed) -> None:
        try:
            if not await self._controls.begin_generation(feed.raw_topic):
                raise RewindEndedEarly(
                    f"`{name}` was resumed while it was rewound, so a reader may go on from where "
                    "it was; pause it and repeat the order"
                )
        except SystemUnavailable as lost:
            raise RewindEndedEarly(
                f"{lost}; `{name}` may have been moved already: repeat the order before you resume"
            ) from lost

    async def _bounds(
        self, workspace: WorkspaceId, name: str, topic: ReadTopic, to: str
    ) -> StreamBounds:
        def read() -> StreamBounds:
            kafka = opened(topic.db, lambda secret: self._open(workspace, secret))
            return self._read(kafka, topic.topic, time_of(to))

        try:
            return await asyncio.to_thread(read)
        except (ExternalKafkaUnusable, SecretUnreadable) as unusable:
            raise SourceNotReadable(name, str(unusable)) from unusable

    async def _move(self, feed: Feed, moves: list[Move], bounds: StreamBounds) -> None:
        for done, move in enumerate(moves):
            try:
                session = await self._log.open(feed.partition(move.partition))
                try:
                    position = session.position or SourcePosition(move.before, bounds.origin)
                    if position.next != move.before:
                        raise TransactionAborted(
                            f"a reader has just moved partition {move.partition} to {position.next}"
                        )
                    deadline_s = boot_s() + self._commit_within_s
                    await session.commit((), rewound(position, move.after), deadline_s)
                finally:
                    session.close()
            except (TransactionAborted, TransactionOutcomeUnknown, SystemUnavailable) as failed:
                raise RewindEndedEarly(
                    f"{done} of {len(moves)} partitions were moved, then: {failed}; repeat the "
                    "order"
                ) from failed
