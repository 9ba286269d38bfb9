"""The Kinesis streams of users as a kind of stream: rounds when a shard has something new.

A round is a Spark job of one task, which reads all shards from the places that it is given and
reports how far it came (`shard_reader.py`). Between rounds the driver asks each shard for one
record with the iterator of the last round, and runs no job while there is none: every second at
first, and less often while all shards are idle. So an idle stream costs a few small requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import pyarrow as pa
import structlog

from fennel_core.connections import external_kinesis
from fennel_core.connections.external_kinesis import (
    ExternalKinesis,
    ExternalStreamUnusable,
    IteratorExpired,
    KinesisStore,
    StreamFacts,
    StreamThrottled,
    role_refused,
    shard_id,
)
from fennel_core.settings.model import Settings
from fennel_core.sources.errors import StreamReplaced
from fennel_core.sources.feeds import Feed, FeedProgress
from fennel_core.sources.kafka import positions_of_feeds
from fennel_core.sources.kinds import StartedBy
from fennel_core.sources.pace import step_rows
from fennel_core.sources.positions import SourcePosition
from fennel_core.sources.read_rows import StreamPlace
from fennel_core.sources.rounds import ROUND_ROWS, RoundFailed, Rounds, or_reason
from fennel_core.sources.shard_reader import ShardEnd, StreamReader, StreamReads
from fennel_core.sources.shards import StreamStart, decode_cursor, start_of_all
from fennel_core.sources.task import COUNTS, COUNTS_DDL, Counts, task_process
from fennel_core.sources.writer import PartitionWriter
from fennel_core.vocab.ids import WorkspaceId
from fennel_core.wire.connectors import (
    FromLatest,
    FromTimestamp,
    FromTrimHorizon,
    InitPosition,
    JsonFormat,
    Kinesis,
    KinesisStream,
)

ROUND_S: Final = 5.0
"""How long a round reads before it gives way to other sources."""
IDLE_S: Final = 5.0
"""The longest pause between looks at an idle stream: how late its next record may be noticed."""
ROUND_EVERY_S: Final = 3_600.0
"""An idle stream is read as often, so that its positions are never older than its retention."""
STORES: Final = 64
"""Streams of which a process keeps the connections."""
SHARD: Final = (
    ("shard", pa.int64()),
    ("next", pa.int64()),
    ("cursor", pa.string()),
    ("iterator", pa.string()),
    ("behind_ms", pa.int64()),
    ("throttled", pa.bool_()),
    ("lost", pa.bool_()),
)
FAILURE: Final = (("failed", pa.string()), ("read", pa.int64()))
ROUND_DDL: Final = (
    f"{COUNTS_DDL}, shard bigint, next bigint, cursor string, iterator string, behind_ms bigint, "
    "throttled boolean, lost boolean, failed string, read bigint"
)
ROUND: Final = pa.schema([*COUNTS, *SHARD, *FAILURE])
"""What became of rows, and in rows of their own how far each shard was read, or, of a limited
source, why the round failed and how many rows it had read.
"""
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class StreamRound:
    """What a task needs to read; pickled."""

    settings: Settings
    feed: Feed
    origin: str
    stream: ExternalKinesis
    start: StreamStart
    rewinds: Mapping[int, int]
    places: Mapping[int, StreamPlace]
    first: frozenset[int] = frozenset()
    """See `StreamReader`."""


def opened_stream(
    table: KinesisStream, settings: Settings, workspace: WorkspaceId
) -> ExternalKinesis:
    """Return how a stream is reached. Raises `ExternalStreamUnusable`."""
    assert isinstance(table.db, Kinesis), "validation refuses connectors by name"
    # Settings and definitions may have changed since the commit that added the source.
    refused = role_refused(table.db, settings)
    if refused is not None:
        raise ExternalStreamUnusable(f"connector `{table.db.name}`: the stream {refused}")
    return external_kinesis.opened(table.db, table.stream_arn, settings, workspace)


def origin_of(stream: ExternalKinesis, facts: StreamFacts) -> str:
    """Return what differs for a stream that was created again."""
    return f"{stream.arn}/{facts.created_us}"


def start(by: StartedBy, table: KinesisStream) -> StreamRounds:
    """Start to read a stream at the positions of its shards; blocks.

    Raises `ConnectionsError` and `SourceError`.
    """
    feed = by.feed
    stream = opened_stream(table, by.settings, feed.workspace)
    store = stream.open()
    facts = store.describe()
    origin = origin_of(stream, facts)
    positions = positions_of_feeds(by.settings, [feed]).get(feed.raw_topic, {})
    for number, position in positions.items():
        if position.origin != origin:
            title = f"{feed.stream.title}, {shard_id(number)}"
            raise StreamReplaced(title, position.origin, origin)
    begun = stream_start(positions, table.init_position, facts)
    places = {n: StreamPlace(each.next, each.cursor) for n, each in positions.items()}
    rewinds = {n: each.rewinds for n, each in positions.items() if each.rewinds}
    work = StreamRound(by.settings, feed, origin, stream, begun, rewinds, places)
    return StreamRounds(by, work, store)


def stream_start(
    positions: Mapping[int, SourcePosition], given: InitPosition, facts: StreamFacts
) -> StreamStart:
    """Return where a source begins: as its positions say, and only without any as `given`."""
    cursors = [decode_cursor(each.cursor) for each in positions.values()]
    found = start_of_all([each for each in cursors if each is not None])
    if found is not None:
        return found
    match given:
        case FromLatest():
            # Not Kinesis' own `LATEST`: after a restart it would be another place.
            return StreamStart(facts.now_us, facts.now_us)
        case FromTrimHorizon():
            return StreamStart(None, facts.now_us)
        case FromTimestamp(at_us):
            return StreamStart(min(at_us, facts.now_us), facts.now_us)


class StreamRounds(Rounds):
    """Runs the rounds of a stream. `store`: of the driver, to look for what is new."""

    def __init__(self, by: StartedBy, work: StreamRound, store: KinesisStore) -> None:
        self._work, self._store = work, store
        self._places = dict(work.places)
        self._iterators: dict[int, str] = {}
        self._unread: frozenset[int] = frozenset()
        self._more = self._throttled = False
        super().__init__(by, str(by.feed.raw_topic))

    def read(self) -> FeedProgress:
        """Run a round, and remember how far it came."""
        task = round_task(replace(self._work, places=self._places, first=self._unread))
        frame = self.by.spark.range(1, numPartitions=1).mapInArrow(task, ROUND_DDL)
        found = frame.toArrow()
        is_shard = found.column("shard").is_valid()
        self.by.count_rows(found.filter(found.column("source").is_valid()).select(COUNTS.names))
        for row in found.filter(found.column("failed").is_valid()).to_pylist():
            raise RoundFailed(row["failed"], row["read"])
        ends = found.filter(is_shard).select([name for name, _ in SHARD]).to_pylist()
        rows = sum(e["next"] - self._places.get(e["shard"], StreamPlace()).next for e in ends)
        self._places |= {e["shard"]: StreamPlace(e["next"], e["cursor"]) for e in ends}
        self._iterators = {e["shard"]: e["iterator"] for e in ends if e["iterator"]}
        self._throttled = any(each["throttled"] for each in ends)
        left = {e["shard"] for e in ends if not _is_done(e["cursor"])}
        self._unread = frozenset(left - self._iterators.keys())
        behind_ms = max((each["behind_ms"] for each in ends), default=0)
        self._more = bool(behind_ms or self._unread) or self._throttled
        self._log_lost(ends)
        # Of a shard that did not answer it is not known whether anything is left in it.
        is_known = behind_ms or not self._more
        return FeedProgress(None, behind_ms if is_known else None, rows=rows)

    def rest(self, took_s: float) -> None:
        """Wait until a shard has something new."""
        first_s = pause_s = self.by.settings.source_trigger_ms / 1000
        if self._throttled:
            self.stopped.wait(IDLE_S)
        if self._more:
            return
        until_s = time.monotonic() + ROUND_EVERY_S
        self.stopped.wait(max(0.0, first_s - took_s))
        while not self.stopped.is_set() and time.monotonic() < until_s:
            look_s = time.monotonic()
            try:
                if self._is_new():
                    return
                self.found_nothing_after(look_s)
            except StreamThrottled:
                pause_s = max(pause_s, IDLE_S / 2)
            self.stopped.wait(pause_s)
            pause_s = min(IDLE_S, max(first_s, pause_s * 1.5))

    def _is_new(self) -> bool:
        """Return whether a shard has a record that was not read, or has ended.

        Raises `StreamThrottled` if one could not be asked, and the others have nothing new.
        """
        throttled = None
        for number, iterator in self._iterators.items():
            try:
                got = self._store.records(iterator, 1)
            except IteratorExpired:
                return True
            except StreamThrottled as refused:
                throttled = refused
                continue
            if got.records or got.following is None or got.behind_ms:
                return True
            self._iterators[number] = got.following
        if throttled is not None:
            raise throttled
        return False

    def _log_lost(self, ends: list[dict[str, object]]) -> None:
        """Log the shards of which records may be lost."""
        lost = [shard_id(int(str(each["shard"]))) for each in ends if each["lost"]]
        if lost:
            log.error(
                "records of a stream were deleted before they were read; dead letters say which",
                source=self.by.feed.title,
                workspace=self.by.feed.workspace,
                shards=lost,
            )


def _is_done(cursor: str) -> bool:
    found = decode_cursor(cursor)
    return found is not None and found.done


def round_task(work: StreamRound) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that a worker runs for a round."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield _read(work)

    return run


def _read(work: StreamRound) -> pa.RecordBatch:
    process = task_process(work.settings)
    used: dict[int, Counts] = {}

    def writer(number: int) -> PartitionWriter:
        partition, rewinds = work.feed.partition(number), work.rewinds.get(number, 0)
        found, counts = process.writer(partition, work.origin, rewinds, JsonFormat())
        if number not in used:
            counts.found.clear()
        used[number] = counts
        return found

    title, rows = work.feed.stream.title, step_rows(work.feed.rows_per_s, ROUND_ROWS)
    reads = StreamReads(
        title, work.origin, work.start, writer, lambda facts: origin_of(work.stream, facts)
    )
    reader = StreamReader(_store(work.stream), reads, dict(work.places), first=work.first)
    ends = or_reason(lambda: process.run(reader.round(ROUND_S, rows)), work.feed.rows_per_s)
    return round_end(list(used.values()), ends, reader.rows)


@lru_cache(maxsize=STORES)
def _store(stream: ExternalKinesis) -> KinesisStore:
    """Return the stream with the credentials of its role, which are renewed before they end."""
    return stream.open()


def round_end(counts: list[Counts], ends: list[ShardEnd] | str, read: int) -> pa.RecordBatch:
    """Return the rows of `ROUND`. `ends`: or why the round failed, after it had `read` rows."""
    rows = [row for each in counts for row in each.batch().to_pylist()]
    if isinstance(ends, str):
        rows.append({"failed": ends, "read": read})
        ends = []
    rows += [
        {
            "shard": end.shard,
            "next": end.place.next,
            "cursor": end.place.cursor,
            "iterator": end.iterator,
            "behind_ms": end.behind_ms,
            "throttled": end.throttled,
            "lost": end.lost,
        }
        for end in ends
    ]
    return pa.RecordBatch.from_pylist(rows, schema=ROUND)
