"""The newest rows of a table as its first read delivers them: for `source test`.

An engine of its own reads them, in a JVM that ends with the call. No slot is made and none is read.
There is one such JVM at a time in a process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, assert_never

from fennel_core.blueprints.streams import Changes
from fennel_core.connections.change_engine import (
    BINLOG_JARS,
    POSTGRES_JARS,
    ChangeEngine,
    ChangeEngineFailed,
    ChangeTask,
)
from fennel_core.connections.external_kafka import OpenSecret
from fennel_core.settings.model import Settings
from fennel_core.sources import binlog_changes, changes
from fennel_core.sources.binlog_changes import BinlogSource
from fennel_core.sources.binlog_cursor import BinlogPlace
from fennel_core.sources.change_cursor import ChangeCursor, ChangePlace
from fennel_core.sources.change_reader import P, Reading
from fennel_core.sources.changes import TASK, LoggedSource
from fennel_core.wire.connectors import MySQLChanges, PostgresChanges

TRIAL_S: Final = 60.0
"""How long the rows may take."""
WAIT_S: Final = 20.0
"""How long a call waits for those before it."""
NAME: Final = "fennel_test"
_free: Final = threading.BoundedSemaphore(1)


def newest_changes(
    settings: Settings, table: Changes, open_secret: OpenSecret, count: int
) -> list[bytes]:
    """Return the rows with the highest keys, at most so many; blocks.

    Raises `ExternalPostgresUnusable`, `ExternalMySQLUnusable` and `ChangeEngineFailed`.
    """
    match table:
        case PostgresChanges():
            database, slots = changes.opened_log(table, NAME, open_secret)
            source = LoggedSource(database, slots, slots.describe(), NAME)
            place = ChangePlace.at(ChangeCursor(NAME, NAME, 0, first=True))
            properties = source.newest(count)
            return _rows(
                partial(ChangeEngine, settings, POSTGRES_JARS),
                lambda engine: engine.start(NAME, TASK, properties),
                source.reading,
                place,
            )
        case MySQLChanges():
            owner, log = binlog_changes.opened_log(table, open_secret)
            of = BinlogSource(owner, log, log.describe(), NAME)
            cursor, task = of.first_cursor(), f"{of.table.connector}Task"
            given = of.newest(cursor, count)
            return _rows(
                partial(ChangeEngine, settings, BINLOG_JARS),
                lambda engine: engine.start_binlog(NAME, task, given, None),
                of.reading,
                BinlogPlace.of(cursor),
            )
        case unreachable:
            assert_never(unreachable)


def _rows(
    make: Callable[[], ChangeEngine],
    start: Callable[[ChangeEngine], ChangeTask],
    reading: Reading[P],
    place: P,
) -> list[bytes]:
    """Return the rows that a task delivers until it has read all, in a JVM of its own."""
    if not _free.acquire(timeout=WAIT_S):
        raise ChangeEngineFailed("changes of another table are tried at this moment; try again")
    try:
        engine = make()
        try:
            return list(_delivered(start(engine), reading, place))
        finally:
            engine.close()
    finally:
        _free.release()


def _delivered(task: ChangeTask, reading: Reading[P], place: P) -> Iterator[bytes]:
    until_s = time.monotonic() + TRIAL_S
    while time.monotonic() < until_s:
        place, read = reading.read(place, task.take())
        yield from read.lines
        if read.ended:
            return
    raise ChangeEngineFailed(f"the rows did not come in {TRIAL_S:.0f} s; try again")
