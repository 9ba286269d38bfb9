"""The changes of users' Postgres tables as a kind of stream: rounds of one task over an engine.

The engine (`connections.change_engine`) runs beside Spark's driver and waits for changes; while
there are none, the driver asks it now and then and runs no job. A round is a Spark job of one task,
which takes changes from the engine itself and writes them (`change_reader.py`): they do not pass
the driver.

Every minute the driver writes a mark into the user's log. It comes behind all changes that were
made before, so it shows that none is left, and lets the server forget its log although the table
does not change.
"""

from __future__ import annotations

import itertools
import math
import re
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import msgspec
import pyarrow as pa
import structlog

from fennel_core.connections import external_postgres
from fennel_core.connections.change_engine import (
    ChangeEngineFailed,
    ChangeTask,
    EngineAddress,
    engine_of,
)
from fennel_core.connections.external_changes import (
    KeyColumn,
    LoggedTable,
    PostgresLog,
    first_read,
    newest_rows,
)
from fennel_core.connections.external_kafka import OpenSecret
from fennel_core.connections.external_postgres import ExternalPostgres
from fennel_core.settings.model import Settings
from fennel_core.sources.change_cursor import ChangeCursor, ChangePlace, decode_cursor
from fennel_core.sources.change_reader import ChangeRoundEnd, LoggedChangeReader
from fennel_core.sources.errors import StreamReplaced
from fennel_core.sources.feeds import Feed, FeedProgress
from fennel_core.sources.kafka import positions_of_feeds
from fennel_core.sources.kinds import StartedBy
from fennel_core.sources.pace import step_rows
from fennel_core.sources.positions import SourcePosition
from fennel_core.sources.read_rows import StreamPlace
from fennel_core.sources.rounds import ROUND_ROWS, Rounds
from fennel_core.sources.task import COUNTS, COUNTS_DDL, task_process
from fennel_core.wire.connectors import JsonFormat, Postgres, PostgresChanges

CONNECTOR: Final = "io.debezium.connector.postgresql.PostgresConnector"
TASK: Final = f"{CONNECTOR}Task"
ROUND_S: Final = 5.0
"""How long a round reads before it gives way to other sources."""
MARK_S: Final = 60.0
"""How often a mark is written into the user's log."""
MARK_LATE_S: Final = 10.0
"""A mark that is not delivered for so long shows that changes are left."""
MARKS: Final = 100
"""Marks under way that are remembered."""
END: Final = "end"
ROUND_DDL: Final = f"{COUNTS_DDL}, {END} binary"
ROUND: Final = pa.schema([*COUNTS, (END, pa.binary())])
"""What became of rows, and in a row of its own the end of the round."""
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(ChangeRoundEnd).decode
_numbers = itertools.count(1)
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LoggedSource:
    """A table whose changes are read; `base`: how its slots begin, and the prefix of its marks."""

    database: ExternalPostgres
    log: PostgresLog
    table: LoggedTable
    base: str

    def begin(self, position: SourcePosition) -> ChangeRoundEnd:
        """Take the log over at a position, or from a new slot on; blocks.

        Raises `ExternalPostgresUnusable` and `ChangesLost`.
        """
        cursor = decode_cursor(position.cursor)
        if cursor is None:
            begun = self.log.begin(self.table)
            cursor = ChangeCursor(begun.slot, begun.publication, begun.lsn, first=True)
        else:
            self.log.resume(cursor.slot, cursor.lsn, streams=not cursor.first)
        return ChangeRoundEnd(StreamPlace(position.next, position.cursor), ChangePlace.at(cursor))

    def follow(self, end: ChangeRoundEnd) -> ChangeRoundEnd:
        """Let the changes follow the end of the first read; blocks. Raises as `begin`."""
        cursor = end.at.cursor
        self.log.resume(cursor.slot, cursor.lsn, streams=True)
        return replace(end, at=ChangePlace.at(cursor), more=True)

    def properties(self, cursor: ChangeCursor) -> dict[str, str]:
        """Return what the engine needs to begin at a cursor."""
        database, name = self.database, self.table.name
        given = {
            "connector.class": CONNECTOR,
            "database.hostname": database.host,
            "database.port": str(database.port),
            "database.user": database.user,
            "database.password": database.password,
            "database.dbname": database.database,
            "database.sslmode": database.parameters.get("sslmode", "prefer"),
            "plugin.name": "pgoutput",
            "slot.name": cursor.slot,
            "slot.drop.on.stop": "false",
            "slot.max.retries": "1",
            "slot.retry.delay.ms": "1000",
            "publication.name": cursor.publication,
            "publication.autocreate.mode": "disabled",
            "table.include.list": re.escape(name),
            "message.prefix.include.list": self.base,
            # The server forgets what `confirm` says, and nothing else.
            "lsn.flush.mode": "connector",
        }
        if cursor.first:
            return {**given, **self._rows(first_read(self.table, cursor.key))}
        return {**given, "snapshot.mode": "no_data"}

    def newest(self, count: int) -> dict[str, str]:
        """Return what the engine needs to deliver the rows with the highest keys, and no more."""
        query = newest_rows(self.table, count)
        cursor = ChangeCursor(self.base, self.base, 0, first=True)
        return {**self.properties(cursor), **self._rows(query)}

    def _rows(self, query: str) -> dict[str, str]:
        name = self.table.name
        return {
            "snapshot.mode": "initial_only",
            # They say when all rows were delivered, of an empty table, too.
            "notification.enabled.channels": "sink",
            "notification.sink.topic.name": "notifications",
            "snapshot.select.statement.overrides": name,
            f"snapshot.select.statement.overrides.{name}": query,
        }


@dataclass(frozen=True, slots=True)
class ChangeRound:
    """What a task needs to read; pickled. `task`: the name of the engine's."""

    settings: Settings
    feed: Feed
    origin: str
    rewinds: int
    engine: EngineAddress
    task: str
    marks: str
    key: tuple[KeyColumn, ...]


def opened_log(
    table: PostgresChanges, base: str, open_secret: OpenSecret
) -> tuple[ExternalPostgres, PostgresLog]:
    """Return the database of a table, and its log."""
    assert isinstance(table.db, Postgres), "names are resolved before"
    database = external_postgres.opened(table.db, open_secret)
    return database, PostgresLog(database, table.table, base)


def start(by: StartedBy, table: PostgresChanges) -> ChangeRounds:
    """Start to read the changes of a table at their position; blocks.

    Raises `ConnectionsError` and `SourceError`.
    """
    feed = by.feed
    database, changes = opened_log(
        table, by.slot, lambda secret: by.open_secret(feed.workspace, secret)
    )
    described = changes.describe()
    origin = described.table.origin
    position = positions_of_feeds(by.settings, [feed]).get(feed.raw_topic, {}).get(0)
    position = position or SourcePosition(0, origin)
    if position.origin != origin:
        raise StreamReplaced(feed.partition(0).title, position.origin, origin)
    source = LoggedSource(database, changes, described, by.slot)
    return ChangeRounds(by, source, origin, position.rewinds, source.begin(position))


class ChangeRounds(Rounds):
    """Runs the rounds of a table's changes, and their engine. `end`: where to begin."""

    def __init__(
        self, by: StartedBy, source: LoggedSource, origin: str, rewinds: int, end: ChangeRoundEnd
    ) -> None:
        self._source, self._end = source, end
        self._origin, self._rewinds = origin, rewinds
        self._begun_s, self._marked_s = time.monotonic(), -math.inf
        self._looked_s: float | None = None
        self._marks: OrderedDict[str, float] = OrderedDict()
        self._retained_bytes: int | None = None
        self._claimed = False
        """The position names the slot, so that others do not count."""
        self._engine = engine_of(by.settings)
        self._task = self._started(end.at.cursor)
        super().__init__(by, str(by.feed.raw_topic))

    def read(self) -> FeedProgress:
        """Run a round; behind the last row of the first read, let the changes follow."""
        self._mark()
        was_first = self._end.at.cursor.first
        work = ChangeRound(
            self.by.settings,
            self.by.feed,
            self._origin,
            self._rewinds,
            self._engine.address,
            self._task.name,
            self._source.base,
            self._source.table.key,
        )
        task = round_task(work, self._end)
        found = self.by.spark.range(1, numPartitions=1).mapInArrow(task, ROUND_DDL).toArrow()
        ends = found.column(END)
        self.by.count_rows(found.filter(ends.is_null()).select(COUNTS.names))
        [text] = ends.drop_null().to_pylist()
        self._end = _decode(text)
        self._saw(self._end.token)
        if not self._claimed:
            self._source.log.keep_only(self._end.at.cursor.slot)
            self._claimed = True
        if was_first and not self._end.at.cursor.first:
            self._follow()
        return FeedProgress(None, self._behind_ms(), self._looked_s, rows=self._end.rows)

    def rest(self, took_s: float) -> None:
        """Wait until there are changes."""
        pause_s = self.by.settings.source_trigger_ms / 1000
        if self._end.more or self._end.at.cursor.first:
            return
        self.stopped.wait(max(0.0, pause_s - took_s))
        while not self.stopped.is_set():
            self._mark()
            if self._task.look():
                return
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
        try:
            self._task.stop()
        except ChangeEngineFailed as failed:
            log.warning("an engine of changes could not be stopped", reason=str(failed))

    def _started(self, cursor: ChangeCursor) -> ChangeTask:
        name = f"{self._source.base}-{next(_numbers)}"
        return self._engine.start(name, TASK, self._source.properties(cursor))

    def _follow(self) -> None:
        """End the first read; begin to read the changes since before it."""
        self._task.stop()
        self._end = self._source.follow(self._end)
        self._task = self._started(self._end.at.cursor)

    def _mark(self) -> None:
        """Write a mark if one is due."""
        now_s = time.monotonic()
        if self._end.at.cursor.first or now_s - self._marked_s < MARK_S:
            return
        token = uuid.uuid4().hex
        self._marks[token] = self._marked_s = now_s
        while len(self._marks) > MARKS:
            self._marks.popitem(last=False)
        source = self._source
        cursor = self._end.at.cursor
        state = source.log.look(source.table, cursor.slot, cursor.publication, token)
        self._retained_bytes = state.retained_bytes

    def _saw(self, token: str | None) -> None:
        """Note that all changes before a mark were read."""
        if token is None or token not in self._marks:
            return
        looked_s = self._looked_s = self._marks[token]
        self._marks = OrderedDict((t, at_s) for t, at_s in self._marks.items() if at_s > looked_s)

    def _behind_ms(self) -> int:
        """Return how old the last change was when it was read, if others are left."""
        end = self._end
        if end.at.cursor.first:
            return max(1, int(1000 * (time.monotonic() - self._begun_s)))
        if end.more:
            return max(1, int(1000 * time.time()) - (end.newest_ms or 0)) if end.newest_ms else 1
        return 0

    def _late_ms(self) -> int:
        oldest_s = next(iter(self._marks.values()), None)
        late_s = 0.0 if oldest_s is None else time.monotonic() - oldest_s
        return int(1000 * late_s) if late_s > MARK_LATE_S else 0


def round_task(
    work: ChangeRound, end: ChangeRoundEnd
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that a worker runs for a round that begins at `end`."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield _read(work, end)

    return run


def _read(work: ChangeRound, end: ChangeRoundEnd) -> pa.RecordBatch:
    process, feed = task_process(work.settings), work.feed
    partition = feed.partition(0)
    writer, counts = process.writer(partition, work.origin, work.rewinds, JsonFormat())
    counts.found.clear()
    # A session that was kept has the position of its beginning, and a round in another process may
    # have moved it since.
    writer.close()
    task = ChangeTask(work.engine, work.task)
    reader = LoggedChangeReader(partition.title, writer, task, work.marks, work.key)
    rows = step_rows(feed.rows_per_s, ROUND_ROWS)
    found = process.run(reader.round(end, ROUND_S, rows))
    columns = [*counts.batch().to_pylist(), {END: _encode(found)}]
    return pa.RecordBatch.from_pylist(columns, schema=ROUND)
