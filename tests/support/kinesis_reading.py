"""A Kinesis stream in memory and the processes that read it, without Kafka or Spark."""

from __future__ import annotations

import itertools
from collections.abc import Collection

from fennel_core.sources.kinesis import stream_start
from fennel_core.sources.read_rows import StreamPlace
from fennel_core.sources.shard_reader import StreamReader, StreamReads
from fennel_core.wire.connectors import FromTrimHorizon, InitPosition
from tests.support.ingest_world import catalog
from tests.support.kinesis_streams import MemoryKinesis
from tests.support.source_world import ORIGIN, SourceWorld, message, stream_source
from tests.support.stream_positions import positions_of

HOUR_US = 3_600_000_000


class Reading:
    """A stream and those who read it, one process after the other."""

    def __init__(self, first: InitPosition = FromTrimHorizon()) -> None:  # noqa: B008  # frozen
        self.stream, self.sources, self._first = MemoryKinesis(), SourceWorld(), first
        self.sources.world.commit(main=catalog(stream_source()))
        self.slept: list[float] = []
        self.seconds = itertools.count()
        self.rows = 0

    def put(self, count: int = 1) -> None:
        for _ in range(count):
            self.stream.put(self.row())

    def row(self) -> bytes:
        self.rows += 1
        return message(user=f"u{self.rows}", age=self.rows, at=1_700_000_000)

    def pass_hours(self, hours: float) -> None:
        """Let time pass; what is older than the retention is deleted."""
        self.stream.now_us += int(hours * HOUR_US)
        self.stream.trim()

    def process(self, first: Collection[int] = ()) -> StreamReader:
        """Return a reader that begins where the positions say."""
        positions = positions_of(self.sources)

        async def sleep(seconds: float) -> None:
            self.slept.append(seconds)

        reads = StreamReads(
            "Kinesis stream `orders`",
            ORIGIN,
            stream_start(positions, self._first, self.stream.describe()),
            self.sources.writer,
            lambda _: ORIGIN,
        )
        places = {n: StreamPlace(each.next, each.cursor) for n, each in positions.items()}
        clock = self.seconds.__next__
        return StreamReader(self.stream, reads, places, first=first, clock=clock, sleep=sleep)

    def ages(self) -> list[int]:
        return sorted(row["age"] for row in self.sources.world.rows("w.topic.users.1"))

    def letters(self) -> list[str]:
        """Return the dead letters: where, and why."""
        return [
            f"{dict(letter.headers)['source'].decode()}: {dict(letter.headers)['reason'].decode()}"
            for _, letter in self.sources.world.messages("w.dead.1")
        ]
