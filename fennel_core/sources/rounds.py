"""A feed that is read in rounds: Spark jobs of one task, one after the other, in turns.

Each round reads for some seconds in a worker of the application that hosts all streams. There is no
streaming query: what Spark would plan and remember of one is in the position.

A round that fails has read rows, too. Of a source with a limit they count: the round reports them
with the reason, and Spark does not repeat it.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import ClassVar, Final, TypeVar

import structlog
from py4j.protocol import Py4JError
from pyspark import InheritableThread
from pyspark.errors import PySparkException

from fennel_core.connections.errors import ConnectionsError
from fennel_core.sources.errors import SourceError
from fennel_core.sources.feeds import FeedProgress
from fennel_core.sources.kinds import StartedBy
from fennel_core.sources.pace import rest_s, step_rows
from fennel_core.sources.round_turns import Turns, worker_turns
from fennel_core.sources.spark import reason_of

T = TypeVar("T")
STOP_S: Final = 60.0
"""How long the end of a feed waits for its round."""
ROUND_ROWS: Final = 1 << 40
"""What a round may read without a limit: time ends it."""
log = structlog.get_logger(__name__)


class RoundFailed(SourceError):
    """A round of a limited source failed, after it had read `rows` rows; the text says why."""

    code: ClassVar[str] = "source-round-failed"

    def __init__(self, reason: str, rows: int) -> None:
        super().__init__(reason)
        self.rows = rows


def or_reason(read: Callable[[], T], rows_per_s: float | None) -> T | str:
    """Return what a round returns; where it has a limit and fails, why."""
    try:
        return read()
    except (ConnectionsError, SourceError) as failed:
        if rows_per_s is None:
            raise
        return str(failed)


class Rounds(ABC):
    """Runs the rounds of a feed in a thread of its own; see `kinds.RunningFeed`.

    The thread begins with the constructor, so a subclass calls it last.
    """

    def __init__(self, by: StartedBy, group: str) -> None:
        self.by, self._group = by, group
        self.stopped = threading.Event()
        self._turns = _turns(by.settings.source_workers)
        self._progress: FeedProgress | None = None
        self._rests, self._read_s = False, 0.0
        self._reason: str | None = None
        self._owed_s = 0.0
        self._thread = InheritableThread(target=self._run, name=f"rounds-{group}", daemon=True)
        self._thread.start()

    def begin(self) -> None:  # noqa: B027  # most kinds have nothing to do
        """Do what comes before the first round and may take long; raise as `read`."""

    @abstractmethod
    def read(self) -> FeedProgress:
        """Run a round; raise for whatever breaks the source."""

    @abstractmethod
    def rest(self, took_s: float) -> None:
        """Wait for the next round, or until `stopped` is set; the last one took so long."""

    def found_nothing_after(self, look_s: float) -> None:
        """Note a look that began then and found nothing new, if the last round left nothing."""
        last = self._progress
        if last is not None and last.is_caught_up:
            self._progress = replace(last, looked_s=look_s)

    def progress(self) -> FeedProgress | None:
        """Return that of the last round, which is as old as that round while the next is due."""
        last = self._progress
        if last is None:
            return None
        return replace(last, fresh_s=time.monotonic() if self._rests else self._read_s)

    def failure(self) -> str | None:
        return self._reason

    def owed_s(self) -> float:
        return self._owed_s

    def stop(self) -> None:
        """Cancel the round; one that ends after `STOP_S` is fenced by the next reader."""
        self.stopped.set()
        try:
            self.by.spark.sparkContext.cancelJobGroup(self._group)
        except (PySparkException, Py4JError) as failed:
            log.warning("a round could not be cancelled", reason=reason_of(str(failed)))
        self._thread.join(STOP_S)

    def _run(self) -> None:
        """Run rounds until one fails, or the feed is stopped."""
        look_s = time.monotonic()

        def due_s(rows: int) -> float:
            return rest_s(self.by.feed.rows_per_s, rows, time.monotonic() - look_s)

        context = self.by.spark.sparkContext
        try:
            context.setJobGroup(self._group, self.by.feed.title, interruptOnCancel=True)
            context.setLocalProperty("spark.scheduler.pool", self._group)
            self.begin()
            while not self.stopped.is_set():
                begun_s = time.monotonic()
                with self._turns.turn(self.stopped.is_set) as given:
                    if not given:
                        return
                    look_s = time.monotonic()
                    self._progress = self.read()
                    self._read_s = look_s
                    self.found_nothing_after(look_s)
                # What comes while the limit holds the feed up is not looked for: it is not at rest.
                # The wait for a turn is not part of the round: it has read nothing.
                self.stopped.wait(due_s(self._progress.rows))
                self._rests = True
                self.rest(time.monotonic() - begun_s)
                self._rests = False
        except RoundFailed as failed:
            self._owed_s, self._reason = due_s(failed.rows), str(failed)
        except (PySparkException, Py4JError) as failed:
            # As of a worker that was killed: it is not known what it has read.
            self._owed_s = due_s(step_rows(self.by.feed.rows_per_s, ROUND_ROWS))
            self._reason = reason_of(str(failed)) or type(failed).__name__
        except (ConnectionsError, SourceError) as failed:
            self._reason = str(failed)
        except Exception as unexpected:  # last line of defence: the host parks the feed
            log.exception("unexpected error of a source", source=self.by.feed.title)
            self._reason = f"{type(unexpected).__name__}: {unexpected}"


@lru_cache(maxsize=1)
def _turns(workers: int) -> Turns:
    """Return the turns of all sources of this process."""
    return worker_turns(workers)
