"""How far the shards of a Kinesis stream were read: pure decisions over positions.

Theory. A shard is a partition of its own: its number is that in its name, its position counts the
rows that were read, and the cursor has the sequence number of the last record. Numbers of records
ascend, with gaps, so they say what is behind a record and not how much that is.

*Resharding* closes shards and makes others out of them. A child is read when every parent is: read
to its end, or gone from the stream. So the records of a key are read in the order in which they
were put.

*The start.* Where a source begins is decided once, when it has no position, and is part of every
cursor. A shard that is read for the first time begins there too, whenever it appears: a child of a
split begins after the start, so it is read as a whole.

*What was lost.* Kinesis deletes records when their retention is over, and says nothing about it.
`until_us` is a time of AWS's clock up to which everything was read. While it is within the
retention, nothing can be missing behind the last record. Where it is not, the reader asks for the
last record again: if that is still there, nothing behind it is gone. Else what arrived in between
may be, and that is reported.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import msgspec

from fennel_core.connections.external_kinesis import (
    FromOldest,
    FromSequence,
    FromTime,
    Shard,
    ShardStart,
    StreamFacts,
)
from fennel_core.vocab.ids import Micros

MICROS: Final = 1_000_000


class ShardCursor(msgspec.Struct, frozen=True):
    """The last record that was read, if any, and where the source began.

    `passed`: how many of the records that it holds were read; -1 for all of them. `until_us`: see
    the module. `start_us`: the time at which the source began, None for the oldest record.
    `begun_us`: when that was decided. `done`: the shard was read to its end.
    """

    start_us: int | None
    begun_us: int
    until_us: int
    sequence: str = ""
    passed: int = -1
    done: bool = False


_encode = msgspec.json.Encoder(order="sorted").encode
_decode = msgspec.json.Decoder(ShardCursor).decode


def encode_cursor(cursor: ShardCursor) -> str:
    """Return the text that is stored with a position."""
    return _encode(cursor).decode()


def decode_cursor(text: str) -> ShardCursor | None:
    """Return the cursor of a position; None before the first."""
    return _decode(text.encode()) if text else None


@dataclass(frozen=True, slots=True)
class StreamStart:
    """Where a source begins: a time, or None for the oldest record; and when it was decided."""

    start_us: int | None
    begun_us: int


def first_cursor(
    shard: Shard, cursors: Mapping[int, ShardCursor], start: StreamStart, facts: StreamFacts
) -> ShardCursor:
    """Return the cursor of a shard that is read for the first time. `cursors`: of the others.

    What its parents had was read up to some time, and it took over then or later.
    """
    known = [cursors[number].until_us for number in shard.parents if number in cursors]
    until_us = min(known, default=max((each.until_us for each in cursors.values()), default=None))
    if until_us is None or until_us < start.begun_us:
        until_us = start.begun_us
    return ShardCursor(start.start_us, start.begun_us, min(until_us, facts.now_us))


def start_of_all(cursors: Collection[ShardCursor]) -> StreamStart | None:
    """Return where a source began; None if it has not begun. The last rewind counts."""
    newest = max((each.begun_us for each in cursors), default=None)
    if newest is None:
        return None
    # Readers that began at the same moment may differ: the earlier start loses nothing.
    starts = [each.start_us for each in cursors if each.begun_us == newest]
    given = [us for us in starts if us is not None]
    return StreamStart(None if len(given) < len(starts) else min(given), newest)


def start_of(cursor: ShardCursor, *, again: bool) -> ShardStart:
    """Return where to read on; `again`: with the last record, to see that it is still there."""
    if cursor.sequence:
        return FromSequence(cursor.sequence, behind=cursor.passed < 0 and not again)
    return FromOldest() if cursor.start_us is None else FromTime(Micros(cursor.start_us))


def readable(shards: Collection[Shard], cursors: Mapping[int, ShardCursor]) -> list[Shard]:
    """Return the shards that may be read now; the one that is the furthest behind comes first."""
    open_ = {
        shard.number
        for shard in shards
        if shard.number not in cursors or not cursors[shard.number].done
    }
    found = [
        shard
        for shard in shards
        if shard.number in open_ and not any(parent in open_ for parent in shard.parents)
    ]

    def behind(shard: Shard) -> int:
        return cursors[shard.number].until_us if shard.number in cursors else 0

    return sorted(found, key=behind)


def gone(shards: Collection[Shard], cursors: Mapping[int, ShardCursor]) -> list[int]:
    """Return the shards that were not read to their end and are not part of the stream now."""
    listed = {shard.number for shard in shards}
    return sorted(n for n, each in cursors.items() if n not in listed and not each.done)


def may_be_lost(cursor: ShardCursor, facts: StreamFacts) -> bool:
    """Return whether records behind the last one may have been deleted by now."""
    return cursor.until_us < facts.now_us - facts.retention_us


def lost_text(cursor: ShardCursor, until_us: int, *, shard_gone: bool = False) -> str:
    """Return the report of what is not there any more, for people."""
    last = f"the last record that was read is {cursor.sequence}" if cursor.sequence else "none read"
    what = "the shard" if shard_gone else "its retention"
    rest = "" if cursor.passed < 0 else f", of which only {cursor.passed} were read"
    return (
        f"records that arrived from {_shown(cursor.until_us)} to {_shown(until_us)} are lost, if "
        f"there were any: {what} ended before they were read, and Kinesis does not say how many "
        f"they were ({last}{rest})"
    )


def _shown(us: int) -> str:
    return datetime.fromtimestamp(us // MICROS, UTC).isoformat().replace("+00:00", "Z")
