"""Orders about Kinesis streams: the newest records, and the positions behind a rewind."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from fennel_core.connections.external_kinesis import (
    FromTime,
    Shard,
    ShardRecord,
    ShardStore,
    StreamFacts,
)
from fennel_core.settings.model import Settings
from fennel_core.sources.aggregated import user_records
from fennel_core.sources.kinesis import opened_stream, origin_of
from fennel_core.sources.positions import SourcePosition, rewound
from fennel_core.sources.shards import ShardCursor, decode_cursor, encode_cursor
from fennel_core.vocab.ids import Micros, WorkspaceId
from fennel_core.wire.connectors import KinesisStream

BACK_US: Final = (60_000_000, 3_600_000_000)
"""How far back the newest records are looked for, before the whole retention is."""
SHARDS: Final = 16
REQUESTS: Final = 4
"""Of one shard and one time."""
RECORDS: Final = 1_000


@dataclass(frozen=True, slots=True)
class StreamRow:
    """What a record holds, and where it is."""

    shard: int
    sequence: str
    value: bytes


@dataclass(frozen=True, slots=True)
class StreamState:
    """What a rewind needs to know of a stream."""

    origin: str
    facts: StreamFacts
    shards: tuple[Shard, ...]


def stream_state(settings: Settings, table: KinesisStream, workspace: WorkspaceId) -> StreamState:
    """Return the stream and its shards; blocks.

    Raises `ExternalStreamUnusable` and `StreamThrottled`.
    """
    stream = opened_stream(table, settings, workspace)
    store = stream.open()
    facts = store.describe()
    return StreamState(origin_of(stream, facts), facts, tuple(store.shards()))


def newest_stream_rows(
    settings: Settings, table: KinesisStream, workspace: WorkspaceId, count: int
) -> list[StreamRow]:
    """Return what the newest records hold, at most `count` rows; as `stream_state`."""
    return newest_of(opened_stream(table, settings, workspace).open(), count)


def newest_of(store: ShardStore, count: int) -> list[StreamRow]:
    """Return the newest rows of the newest shards, the oldest of them first."""
    facts = store.describe()
    shards = store.shards()[-SHARDS:]
    for back_us in (*BACK_US, facts.retention_us):
        since = FromTime(Micros(facts.now_us - back_us))
        found = [
            (record, shard) for shard in shards for record in _newest_in(store, shard, since, count)
        ]
        if found:
            found.sort(key=lambda each: each[0].arrived_us)
            rows = [row for record, shard in found[-count:] for row in _rows(record, shard)]
            return rows[-count:]
    return []


def _newest_in(store: ShardStore, shard: Shard, since: FromTime, count: int) -> list[ShardRecord]:
    newest: list[ShardRecord] = []
    iterator: str | None = store.iterator(shard.number, since)
    for _ in range(REQUESTS):
        if iterator is None:
            break
        got = store.records(iterator, RECORDS)
        newest = [*newest, *got.records][-count:]
        iterator = got.following if got.behind_ms else None
    return newest


def _rows(record: ShardRecord, shard: Shard) -> Iterator[StreamRow]:
    held = user_records(record.data, shard)
    # What is damaged is shown as what it is: no row.
    for value in [record.data] if isinstance(held, str) else held:
        yield StreamRow(shard.number, record.sequence, value)


@dataclass(frozen=True, slots=True)
class ShardMove:
    """A shard and its position before and behind a rewind.

    `again`: rows that may be read again, at most; `skips`: records may be left out.
    """

    shard: int
    before: SourcePosition
    after: SourcePosition
    again: int
    skips: bool


def shard_moves(
    state: StreamState, positions: Mapping[int, SourcePosition], at_us: int | None
) -> list[ShardMove]:
    """Return what becomes of each shard that there is; `at_us` None: from the oldest record.

    Shards that are not there any more keep their positions.
    """
    cursors = [decode_cursor(each.cursor) for each in positions.values()]
    begun_us = _later(state.facts.now_us, [each for each in cursors if each is not None])
    found = []
    for shard in state.shards:
        before = positions.get(shard.number, SourcePosition(0, state.origin))
        cursor = decode_cursor(before.cursor)
        until_us = None if cursor is None else cursor.until_us
        is_back = at_us is None or (until_us is not None and at_us < until_us)
        skips = at_us is not None and (
            until_us is None or (at_us > until_us and not (cursor is not None and cursor.done))
        )
        moved = encode_cursor(ShardCursor(at_us, begun_us, state.facts.now_us))
        # A move back ends the watermark, as what was read later was not read any more.
        first = msgspec.structs.replace(before, next=before.next + is_back)
        after = rewound(first, before.next, moved)
        again = before.next if is_back else 0
        found.append(ShardMove(shard.number, before, after, again, skips))
    return found


def _later(now_us: int, cursors: Collection[ShardCursor]) -> int:
    """Return the time of a decision that counts more than the earlier ones."""
    return max([now_us, *(each.begun_us + 1 for each in cursors)])
