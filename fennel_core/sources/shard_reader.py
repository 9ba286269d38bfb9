"""Read the shards of a Kinesis stream from their positions on, several at once.

A reader is given the place of each shard and keeps what it reaches. It asks for no position and
opens no session before there is something to write: where a place is not that of the position any
more, another reader was there, and the write is refused (`writer.py`).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec
import numpy as np

from fennel_core.connections.external_kinesis import (
    IteratorExpired,
    Shard,
    ShardRecord,
    ShardRecords,
    ShardStore,
    StreamFacts,
    StreamThrottled,
    shard_id,
)
from fennel_core.sources.aggregated import user_records
from fennel_core.sources.errors import StreamReplaced
from fennel_core.sources.messages import TRANSACTION_BYTES, TRANSACTION_ROWS, MessageBatch, shown
from fennel_core.sources.read_rows import (
    MessageRows,
    ReadPart,
    RowBatch,
    StreamPlace,
    UnreadableRows,
)
from fennel_core.sources.shards import (
    ShardCursor,
    StreamStart,
    decode_cursor,
    encode_cursor,
    first_cursor,
    gone,
    lost_text,
    may_be_lost,
    readable,
    start_of,
)
from fennel_core.sources.writer import PartitionWriter

RECORDS: Final = 10_000
"""Records of one request; Kinesis' own limit, as are 10 MB."""
AT_ONCE: Final = 4
"""Shards that are read at once: each has the records of a request in memory."""
PAUSE_S: Final = 0.2
"""Between requests to a shard: Kinesis serves five in a second, to all who read it."""
THROTTLED_S: Final = 1.0
"""The first pause after a request that was refused as one too many; it doubles."""
SAFE_US: Final = 3_600 * 1_000_000
"""An idle shard's position is written as often, so that its last record may be deleted."""


@dataclass(frozen=True, slots=True)
class ShardEnd:
    """How far a round came with a shard.

    `iterator`: what follows, to see that something is new; None if the shard ended, or there was no
    time for it. `behind_ms`: how far behind its newest record; `throttled`: AWS refused more.
    """

    shard: int
    place: StreamPlace
    iterator: str | None = None
    behind_ms: int = 0
    throttled: bool = False
    lost: bool = False
    """Records may have been deleted before they were read; the dead letter says which."""


@dataclass(frozen=True, slots=True)
class StreamReads:
    """What a stream is to its reader. `writer`: of a shard, at its rewinds."""

    title: str
    origin: str
    start: StreamStart
    writer: Callable[[int], PartitionWriter]
    origin_of: Callable[[StreamFacts], str]


@dataclass(slots=True)
class _Shard:
    """A shard while it is read."""

    shard: Shard
    place: StreamPlace
    cursor: ShardCursor
    writer: PartitionWriter
    title: str
    iterator: str | None = None
    behind_ms: int = 0
    throttled: bool = False
    lost: bool = False
    expected: bool = False
    """The next record should be the last one that was read."""
    seen: bool = False
    """The last one that was read was there, and nothing behind it was read since."""

    @property
    def end(self) -> ShardEnd:
        return ShardEnd(
            self.shard.number,
            self.place,
            self.iterator,
            self.behind_ms,
            self.throttled,
            self.lost,
        )


@dataclass(frozen=True, slots=True)
class _Row:
    """A record that a record of the stream holds. `passed`: of that one up to this; -1 for all."""

    value: bytes | None
    reason: str
    record: ShardRecord
    passed: int


class StreamReader:
    """Reads the shards of a stream. Use from one event loop. `clock`: of seconds.

    `rows`: that were read in the last round. `first`: the shards for which the last round had no
    time: idle ones are the furthest behind, and would take the time of each round.
    """

    def __init__(
        self,
        store: ShardStore,
        reads: StreamReads,
        places: dict[int, StreamPlace],
        *,
        first: Collection[int] = (),
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._store, self._reads, self._first = store, reads, first
        self._clock, self._sleep = clock, sleep
        self.places = dict(places)
        self._free, self._begun = asyncio.Semaphore(AT_ONCE), 0
        self.rows, self._most = 0, math.inf

    async def round(self, seconds: float, rows: float = math.inf) -> list[ShardEnd]:
        """Read for about so long, about so many rows, or until nothing is new; return how far each
        shard came.

        Raises `StreamReplaced`, `ExternalStreamUnusable`, and what `PartitionWriter.write_rows`
        raises. What was written by then stays.
        """
        facts = await asyncio.to_thread(self._store.describe)
        now = self._reads.origin_of(facts)
        if now != self._reads.origin:
            raise StreamReplaced(self._reads.title, self._reads.origin, now)
        deadline_s, self._begun = self._clock() + seconds, 0
        self.rows, self._most = 0, rows
        ends: dict[int, ShardEnd] = {}
        while True:
            shards = await asyncio.to_thread(self._store.shards)
            for number in gone(shards, self._cursors()):
                ends[number] = await self._gone(number, facts)
            left = [
                shard for shard in readable(shards, self._cursors()) if shard.number not in ends
            ]
            left.sort(key=lambda shard: shard.number not in self._first)
            if not left or (ends and self._is_over(deadline_s)):
                # Also those for which there was no time: as children of what has just ended.
                ends |= {each.number: self._unread(each.number) for each in left}
                return [ends[number] for number in sorted(ends)]
            # All of them, also if one fails: a transaction that was begun is ended.
            found = await asyncio.gather(
                *(self._shard(each, facts, deadline_s) for each in left), return_exceptions=True
            )
            for end in found:
                if isinstance(end, BaseException):
                    raise end
                ends[end.shard] = end

    def _is_over(self, deadline_s: float) -> bool:
        return self.rows >= self._most or self._clock() >= deadline_s

    def _unread(self, number: int) -> ShardEnd:
        return ShardEnd(number, self.places.get(number, StreamPlace()))

    def _cursors(self) -> dict[int, ShardCursor]:
        found = {number: decode_cursor(place.cursor) for number, place in self.places.items()}
        return {number: cursor for number, cursor in found.items() if cursor is not None}

    async def _shard(self, shard: Shard, facts: StreamFacts, deadline_s: float) -> ShardEnd:
        async with self._free:
            place = self.places.get(shard.number, StreamPlace())
            if self._begun >= AT_ONCE and self._is_over(deadline_s):
                return self._unread(shard.number)
            self._begun += 1
            cursor = decode_cursor(place.cursor)
            one = _Shard(
                shard,
                place,
                cursor or first_cursor(shard, self._cursors(), self._reads.start, facts),
                self._reads.writer(shard.number),
                self._title(shard.number),
            )
            if cursor is None:
                await self._write(one, (), place.next, one.cursor)
            await self._read(one, facts, deadline_s)
            return one.end

    async def _read(self, one: _Shard, facts: StreamFacts, deadline_s: float) -> None:
        """Read a shard until nothing is new, it has ended, or time is over."""
        pause_s = THROTTLED_S
        while True:
            try:
                got = await asyncio.to_thread(self._ask, one, facts)
            except IteratorExpired:
                one.iterator = None
                continue
            except StreamThrottled:
                if self._clock() + pause_s >= deadline_s:
                    one.throttled = True
                    return
                await self._sleep(pause_s)
                pause_s *= 2
                continue
            pause_s = THROTTLED_S
            facts = replace(facts, now_us=max(facts.now_us, got.now_us))
            one.iterator, one.behind_ms = got.following, got.behind_ms
            records = await self._checked(one, got, facts)
            await self._take(one, records, got)
            caught_up = not got.behind_ms and not one.expected
            if one.cursor.done or caught_up or self._is_over(deadline_s):
                return
            await self._sleep(PAUSE_S)

    def _ask(self, one: _Shard, facts: StreamFacts) -> ShardRecords:
        """Ask for records; where some may be deleted, for the last one that was read, too."""
        again = bool(one.cursor.sequence) and may_be_lost(one.cursor, facts)
        if one.iterator is None or (again and not one.expected and not one.seen):
            one.expected = bool(one.cursor.sequence) and (again or one.cursor.passed >= 0)
            start = start_of(one.cursor, again=again)
            one.iterator = self._store.iterator(one.shard.number, start)
        return self._store.records(one.iterator, int(max(1, min(RECORDS, self._most - self.rows))))

    async def _checked(
        self, one: _Shard, got: ShardRecords, facts: StreamFacts
    ) -> Sequence[ShardRecord]:
        """Return the records that are new; report those that may be gone."""
        records, cursor = got.records, one.cursor
        if not records and got.behind_ms and got.following is not None:
            return records  # what is there comes later
        lost = not one.expected and not cursor.sequence and may_be_lost(cursor, facts)
        if one.expected:
            one.expected = False
            if not records or records[0].sequence != cursor.sequence:
                lost = True
            elif cursor.passed < 0:
                records = records[1:]
                one.seen = True
        if lost:
            oldest_us = facts.now_us - facts.retention_us
            until_us = max(records[0].arrived_us if records else oldest_us, cursor.until_us)
            one.lost = True
            await self._report(one, lost_text(cursor, until_us), until_us, facts)
        return records

    async def _report(self, one: _Shard, text: str, until_us: int, facts: StreamFacts) -> None:
        """Write a dead letter about what is lost. The rest of a record is given up, too."""
        until_us = max(until_us, facts.now_us - facts.retention_us)
        cursor = msgspec.structs.replace(one.cursor, until_us=until_us, passed=-1)
        await self._write(one, (self._lost(one, text),), one.place.next, cursor)

    async def _gone(self, number: int, facts: StreamFacts) -> ShardEnd:
        """Report a shard that ended, and was deleted, before it was read to its end."""
        place = self.places[number]
        cursor = decode_cursor(place.cursor)
        assert cursor is not None, "what is gone was begun"
        one = _Shard(Shard(number), place, cursor, self._reads.writer(number), self._title(number))
        text = lost_text(cursor, facts.now_us - facts.retention_us, shard_gone=True)
        done = msgspec.structs.replace(cursor, passed=-1, done=True)
        await self._write(one, (self._lost(one, text),), place.next, done)
        one.lost = True
        return one.end

    def _lost(self, one: _Shard, text: str) -> UnreadableRows:
        places = np.array([one.place.next], dtype=np.int64)
        return UnreadableRows(one.title, text, [""], places, [one.cursor.sequence or "its start"])

    async def _take(self, one: _Shard, records: Sequence[ShardRecord], got: ShardRecords) -> None:
        """Write records in transactions of some size; the last one has the end of the shard."""
        one.seen = one.seen and not records
        rows = await asyncio.to_thread(_rows, one.shard, one.cursor, records)
        self.rows += len(rows)
        parts = list(_parts(rows))
        for number, part in enumerate(parts):
            last = part[-1]
            cursor = _moved(one.cursor, last.record, last.passed)
            if number == len(parts) - 1:
                cursor = _ended(cursor, records, got)
            end = one.place.next + len(part)
            await self._write(one, _read_parts(one.title, part, one.place.next), end, cursor)
        if not parts:
            cursor = _ended(one.cursor, records, got)
            safe = cursor.until_us - one.cursor.until_us < SAFE_US
            if not records and not cursor.done and safe:
                return
            await self._write(one, (), one.place.next, cursor)

    async def _write(
        self, one: _Shard, parts: tuple[ReadPart, ...], end: int, cursor: ShardCursor
    ) -> None:
        place = StreamPlace(end, encode_cursor(cursor))
        if place == one.place:
            return
        await one.writer.write_rows(RowBatch(one.place, place, parts))
        one.place, one.cursor = place, cursor
        self.places[one.shard.number] = place

    def _title(self, number: int) -> str:
        return f"{self._reads.title}, {shard_id(number)}"


def _moved(cursor: ShardCursor, record: ShardRecord, passed: int) -> ShardCursor:
    until_us = max(cursor.until_us, record.arrived_us)
    return msgspec.structs.replace(
        cursor, sequence=record.sequence, passed=passed, until_us=until_us
    )


def _ended(cursor: ShardCursor, records: Sequence[ShardRecord], got: ShardRecords) -> ShardCursor:
    """Return the cursor behind all records of a response."""
    if records:  # the last ones may hold nothing for this shard
        cursor = _moved(cursor, records[-1], -1)
    until_us = cursor.until_us if got.behind_ms else max(cursor.until_us, got.now_us)
    return msgspec.structs.replace(cursor, until_us=until_us, done=got.following is None)


def _rows(shard: Shard, cursor: ShardCursor, records: Sequence[ShardRecord]) -> list[_Row]:
    """Return what the records hold, without what the cursor has passed of the first one."""
    found: list[_Row] = []
    for record in records:
        held = user_records(record.data, shard)
        if isinstance(held, str):
            found.append(_Row(None, held, record, -1))
            continue
        first = cursor.passed if record.sequence == cursor.sequence else 0
        count = len(held)
        found += [
            _Row(value, "", record, -1 if at == count else at)
            for at, value in enumerate(held[first:], start=first + 1)
        ]
    return found


def _parts(rows: list[_Row]) -> Iterator[list[_Row]]:
    """Yield the rows of one transaction after the other."""
    start = size = 0
    for place, row in enumerate(rows):
        bytes_ = len(row.value or row.record.data)
        size += bytes_
        if place > start and (place - start >= TRANSACTION_ROWS or size > TRANSACTION_BYTES):
            yield rows[start:place]
            start, size = place, bytes_
    if rows:
        yield rows[start:]


def _read_parts(title: str, rows: list[_Row], first: int) -> tuple[ReadPart, ...]:
    """Return rows as what is written; their ordinals begin at `first`."""
    numbers = np.arange(first, first + len(rows), dtype=np.int64)
    good = [number for number, row in enumerate(rows) if row.value is not None]
    found: list[ReadPart] = []
    if good:
        messages = MessageBatch(numbers[good], [rows[number].value for number in good])
        found.append(MessageRows(title, messages, [_name(rows[number]) for number in good]))
    for number, row in enumerate(rows):
        if row.value is None:
            places, text = numbers[number : number + 1], shown(b"\0" + row.record.data)
            found.append(UnreadableRows(title, row.reason, [text], places, [_name(row)]))
    return tuple(found)


def _name(row: _Row) -> str:
    return row.record.sequence
