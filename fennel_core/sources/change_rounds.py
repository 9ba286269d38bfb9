"""The changes of users' tables as a kind of stream: rounds of one task over an engine.

The engine (`connections.change_engine`) runs beside Spark's driver and waits for changes; while
there are none, the driver asks it now and then and runs no job. A round is a Spark job of one task,
which takes changes from the engine itself and writes them (`change_reader.py`): they do not pass
the driver.

What the driver asks a database itself may take long, and belongs to no round: a round has one of
the turns that all sources share.

Every minute the driver remembers where the log of the database ends: all changes before that place
are read when the engine shows that it has passed it. What such a *mark* is depends on the database.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, Protocol

import msgspec
import pyarrow as pa
import structlog

from fennel_core.connections.change_engine import (
    ChangeEngine,
    ChangeEngineFailed,
    ChangeTask,
    EngineAddress,
)
from fennel_core.settings.model import Settings
from fennel_core.sources.change_reader import ChangeRoundEnd, LoggedChangeReader, P, Reading
from fennel_core.sources.errors import StreamReplaced
from fennel_core.sources.feeds import Feed, FeedProgress
from fennel_core.sources.kafka import positions_of_feeds
from fennel_core.sources.kinds import StartedBy
from fennel_core.sources.pace import step_rows
from fennel_core.sources.positions import SourcePosition
from fennel_core.sources.rounds import ROUND_ROWS, Rounds
from fennel_core.sources.task import COUNTS, COUNTS_DDL, task_process
from fennel_core.wire.connectors import JsonFormat

ROUND_S: Final = 5.0
"""How long a round reads before it gives way to other sources."""
MARK_S: Final = 60.0
"""How often a mark is made."""
MARKS: Final = 100
"""Marks under way that are remembered."""
BATCH_ROWS: Final = 4096
"""Changes that are taken at once; a reader with a limit takes no more than a step has."""
QUEUE_BATCHES: Final = 4
"""Batches that the engine reads ahead."""
END: Final = "end"
ROUND_DDL: Final = f"{COUNTS_DDL}, {END} binary"
ROUND: Final = pa.schema([*COUNTS, (END, pa.binary())])
"""What became of rows, and in a row of its own the end of the round."""
_encode: Final = msgspec.json.Encoder().encode
_numbers = itertools.count(1)
log = structlog.get_logger(__name__)


def batches(rows_per_s: float | None) -> dict[str, str]:
    """Return how much an engine delivers at once, and reads ahead, for a reader with a limit."""
    rows = step_rows(rows_per_s, BATCH_ROWS)
    return {"max.batch.size": str(rows), "max.queue.size": str(QUEUE_BATCHES * rows)}


def rows_only(table: str, query: str) -> dict[str, str]:
    """Return what lets an engine deliver the rows of a query of a table, and no changes."""
    return {
        "snapshot.mode": "initial_only",
        # They say when all rows were delivered, of an empty table, too.
        "notification.enabled.channels": "sink",
        "notification.sink.topic.name": "notifications",
        "snapshot.select.statement.overrides": table,
        f"snapshot.select.statement.overrides.{table}": query,
    }


def position_of(by: StartedBy, origin: str) -> SourcePosition:
    """Return up to where the changes of a table were read; blocks.

    Raises `StreamReplaced` and `SystemUnavailable`.
    """
    feed = by.feed
    position = positions_of_feeds(by.settings, [feed]).get(feed.raw_topic, {}).get(0)
    if position is None:
        return SourcePosition(0, origin)
    if position.origin != origin:
        raise StreamReplaced(feed.partition(0).title, position.origin, origin)
    return position


@dataclass(frozen=True, slots=True)
class LogMark:
    """Where a log ends. `retained_bytes`: what the server keeps of it for this source, if any."""

    token: str
    retained_bytes: int | None = None


class ChangedTable(Protocol[P]):
    """A table whose changes are read. The calls block, and raise `ConnectionsError`."""

    @property
    def base(self) -> str:
        """How the names of its tasks begin."""

    @property
    def reading(self) -> Reading[P]:
        """How what its engine delivers is read."""

    @property
    def task_type(self) -> type[ChangeTask]:
        """The tasks of its engine."""

    @property
    def mark_late_s(self) -> float:
        """A mark that is not shown for so long shows that changes are left."""

    def begin(self, position: SourcePosition) -> ChangeRoundEnd[P]:
        """Find out where to begin at a position; it may take long."""

    def started(self, engine: ChangeEngine, name: str, place: P) -> ChangeTask:
        """Start a task of the engine at a place."""

    def follow(self, end: ChangeRoundEnd[P]) -> ChangeRoundEnd[P]:
        """Let the changes follow the end of the first read."""

    def mark(self, place: P) -> LogMark:
        """Return where the log ends; the table is as it was."""

    def shows(self, token: str, mark: str) -> bool:
        """Return whether what was delivered last shows that all before a mark was."""

    def claim(self, place: P) -> None:
        """The position is this reader's, so others do not count."""

    def watch(self, task: ChangeTask, silent_s: float) -> str | None:
        """Raise for a task that has delivered nothing for so long, and will not.

        Return what shows the marks that the task has received, if it says so.
        """

    def decode_end(self, text: bytes) -> ChangeRoundEnd[P]:
        """Return the end of a round."""


@dataclass(frozen=True, slots=True)
class ChangeRound(Generic[P]):
    """What a task needs to read; pickled. `task`: the name of the engine's."""

    settings: Settings
    feed: Feed
    origin: str
    rewinds: int
    engine: EngineAddress
    task: str
    task_type: type[ChangeTask]
    reading: Reading[P]


class ChangeRounds(Rounds, Generic[P]):
    """Runs the rounds of a table's changes from a position on, and their engine."""

    def __init__(
        self,
        by: StartedBy,
        engine: ChangeEngine,
        source: ChangedTable[P],
        position: SourcePosition,
    ) -> None:
        self._source, self._position = source, position
        self._end: ChangeRoundEnd[P]
        self._begun_s = self._heard_s = time.monotonic()
        self._marked_s = -math.inf
        self._looked_s: float | None = None
        self._marks: OrderedDict[str, float] = OrderedDict()
        self._retained_bytes: int | None = None
        self._claimed = False
        """The position is of this reader, so that others do not count."""
        self._engine = engine
        self._task: ChangeTask | None = None
        self._is_first = False
        """The task reads the rows that are there."""
        super().__init__(by, str(by.feed.raw_topic))

    def begin(self) -> None:
        """Find out where to begin, and start a task there."""
        self._end = self._source.begin(self._position)
        self._start()

    def read(self) -> FeedProgress:
        """Run a round."""
        assert self._task is not None, "a task is started before the first round"
        work = ChangeRound(
            self.by.settings,
            self.by.feed,
            self._position.origin,
            self._position.rewinds,
            self._engine.address,
            self._task.name,
            self._source.task_type,
            self._source.reading,
        )
        task = round_task(work, self._end)
        found = self.by.spark.range(1, numPartitions=1).mapInArrow(task, ROUND_DDL).toArrow()
        ends = found.column(END)
        self.by.count_rows(found.filter(ends.is_null()).select(COUNTS.names))
        [text] = ends.drop_null().to_pylist()
        self._end = self._source.decode_end(text)
        self._saw(self._end.token)
        if self._end.rows or self._end.more:
            self._heard_s = time.monotonic()
        return FeedProgress(None, self._behind_ms(), self._looked_s, rows=self._end.rows)

    def rest(self, took_s: float) -> None:
        """Wait until there are changes; behind the last row of the first read they follow at once.

        A database that does not respond holds up nothing but its own source here.
        """
        pause_s = self.by.settings.source_trigger_ms / 1000
        if not self._claimed:
            self._source.claim(self._end.at)
            self._claimed = True
        if self._is_first and not self._end.at.is_first:
            self._follow()
        if self._end.more or self._end.at.is_first:
            self._mark()
            return
        self.stopped.wait(max(0.0, pause_s - took_s))
        received: str | None = None
        while not self.stopped.is_set():
            self._mark()
            assert self._task is not None, "a task reads on until the end"
            if self._task.look():
                self._heard_s = time.monotonic()
                return
            # Nothing is left to take, so what was received before this look has been delivered.
            self._saw(received)
            received = self._source.watch(self._task, time.monotonic() - self._heard_s)
            self.stopped.wait(pause_s)

    def progress(self) -> FeedProgress | None:
        """Return that of the last round, and what marks have shown since."""
        last = super().progress()
        if last is None:
            return None
        behind_ms = max(last.behind_ms or 0, self._late_ms())
        return replace(
            last,
            behind_ms=behind_ms,
            looked_s=self._looked_s,
            retained_bytes=self._retained_bytes,
        )

    def found_nothing_after(self, look_s: float) -> None:
        """Note nothing: only a mark shows that nothing is left."""

    def stop(self) -> None:
        super().stop()
        self._stop_task()

    def _stop_task(self) -> None:
        if self._task is None:
            return
        try:
            self._engine.stop(self._task)
        except ChangeEngineFailed as failed:
            log.warning("an engine of changes could not be stopped", reason=str(failed))

    def _start(self) -> None:
        """Start a task at the end."""
        name = f"{self._source.base}-{next(_numbers)}"
        self._heard_s, self._is_first = time.monotonic(), self._end.at.is_first
        self._task = self._source.started(self._engine, name, self._end.at)
        if self.stopped.is_set():  # `stop` may have waited for it no longer
            self._stop_task()

    def _follow(self) -> None:
        """End the first read; begin to read the changes since before it."""
        assert self._task is not None, "it has read the last row"
        self._engine.stop(self._task)
        self._end = self._source.follow(self._end)
        self._start()

    def _mark(self) -> None:
        """Make a mark if one is due."""
        now_s = time.monotonic()
        if self._end.at.is_first or now_s - self._marked_s < MARK_S:
            return
        mark = self._source.mark(self._end.at)
        self._marked_s = now_s
        self._marks.setdefault(mark.token, now_s)
        while len(self._marks) > MARKS:
            self._marks.popitem(last=False)
        self._retained_bytes = mark.retained_bytes

    def _saw(self, token: str | None) -> None:
        """Note that all changes before a mark were read."""
        if token is None:
            return
        shown = [at_s for mark, at_s in self._marks.items() if self._source.shows(token, mark)]
        if shown:
            looked_s = self._looked_s = max(shown)
            left = [(mark, at_s) for mark, at_s in self._marks.items() if at_s > looked_s]
            self._marks = OrderedDict(left)

    def _behind_ms(self) -> int:
        """Return how old the last change was when it was read, if others are left."""
        end = self._end
        if self._is_first:
            return max(1, int(1000 * (time.monotonic() - self._begun_s)))
        if end.more:
            return max(1, int(1000 * time.time()) - (end.newest_ms or 0)) if end.newest_ms else 1
        return 0

    def _late_ms(self) -> int:
        oldest_s = next(iter(self._marks.values()), None)
        late_s = 0.0 if oldest_s is None else time.monotonic() - oldest_s
        return int(1000 * late_s) if late_s > self._source.mark_late_s else 0


def round_task(
    work: ChangeRound[P], end: ChangeRoundEnd[P]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that a worker runs for a round that begins at `end`."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield _read(work, end)

    return run


def _read(work: ChangeRound[Any], end: ChangeRoundEnd[Any]) -> pa.RecordBatch:
    process, feed = task_process(work.settings), work.feed
    partition = feed.partition(0)
    writer, counts = process.writer(partition, work.origin, work.rewinds, JsonFormat())
    counts.found.clear()
    # A session that was kept has the position of its beginning, and a round in another process may
    # have moved it since.
    writer.close()
    task = work.task_type(work.engine, work.task)
    reader = LoggedChangeReader(partition.title, writer, task, work.reading)
    rows = step_rows(feed.rows_per_s, ROUND_ROWS)
    found = process.run(reader.round(end, ROUND_S, rows))
    columns = [*counts.batch().to_pylist(), {END: _encode(found)}]
    return pa.RecordBatch.from_pylist(columns, schema=ROUND)
