"""The newest rows of a table as its first read delivers them: for `source test`.

An engine of its own reads them, in a JVM that ends with the call. No slot is made and none is read.
"""

from __future__ import annotations

import time
from typing import Final

from fennel_core.connections.change_engine import ChangeEngine, ChangeEngineFailed
from fennel_core.connections.external_kafka import OpenSecret
from fennel_core.settings.model import Settings
from fennel_core.sources.change_cursor import ChangeCursor, ChangePlace, read_changes
from fennel_core.sources.changes import TASK, LoggedSource, opened_log
from fennel_core.wire.connectors import PostgresChanges

TRIAL_S: Final = 60.0
"""How long the rows may take."""
NAME: Final = "fennel_test"


def newest_changes(
    settings: Settings, table: PostgresChanges, open_secret: OpenSecret, count: int
) -> list[bytes]:
    """Return the rows with the highest keys, at most so many; blocks.

    Raises `ExternalPostgresUnusable` and `ChangeEngineFailed`.
    """
    database, log = opened_log(table, NAME, open_secret)
    described = log.describe()
    source = LoggedSource(database, log, described, NAME)
    place, found = ChangePlace.at(ChangeCursor(NAME, NAME, 0, first=True)), list[bytes]()
    engine = ChangeEngine(settings)
    try:
        task = engine.start(NAME, TASK, source.newest(count))
        until_s = time.monotonic() + TRIAL_S
        while time.monotonic() < until_s:
            place, read = read_changes(place, task.take(), NAME, described.key)
            found += read.lines
            if read.ended:
                return found
    finally:
        engine.close()
    raise ChangeEngineFailed(f"the rows did not come in {TRIAL_S:.0f} s; try again")
