"""What a database holds up that does not respond, and what is left of a reader that was stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pyarrow as pa
import pytest

from fennel_core.settings.model import Settings
from fennel_core.sources import change_rounds, rounds
from fennel_core.sources.change_cursor import ChangeCursor, ChangePlace
from fennel_core.sources.change_reader import ChangeRoundEnd
from fennel_core.sources.change_rounds import ROUND, ChangeRounds, LogMark, position_of
from fennel_core.sources.errors import StreamReplaced
from fennel_core.sources.feeds import feeds_of
from fennel_core.sources.positions import SourcePosition
from fennel_core.sources.read_rows import StreamPlace
from tests.support.ingest_world import catalog
from tests.support.polling import eventually
from tests.support.source_world import stream_source

(FEED,) = feeds_of([catalog(stream_source())]).values()


def end(*, first: bool) -> ChangeRoundEnd[ChangePlace]:
    place = ChangePlace.at(ChangeCursor("slot", "publication", 5, first=first))
    return ChangeRoundEnd(StreamPlace(0, ""), place)


@dataclass
class Database:
    """A database, and the tasks of an engine that read it; each call hangs that is named."""

    hangs: str = ""
    freed: threading.Event = field(default_factory=threading.Event)
    called: list[str] = field(default_factory=list)
    running: set[str] = field(default_factory=set)
    base = "base"
    reading: Any = None
    task_type: Any = None
    mark_late_s = 10.0

    def call(self, name: str) -> None:
        self.called.append(name)
        if name == self.hangs:
            assert self.freed.wait(30)

    def begin(self, position: SourcePosition) -> ChangeRoundEnd[ChangePlace]:
        self.call("begin")
        return end(first=True)

    def started(self, engine: Any, name: str, place: ChangePlace) -> Any:
        self.call("first" if place.is_first else "changes")
        self.running.add(name)
        return SimpleNamespace(name=name, look=lambda: False)

    def stop(self, task: Any) -> None:
        self.running.discard(task.name)

    def follow(self, at: ChangeRoundEnd[ChangePlace]) -> ChangeRoundEnd[ChangePlace]:
        self.call("follow")
        return at

    def claim(self, place: ChangePlace) -> None:
        self.call("claim")

    def mark(self, place: ChangePlace) -> LogMark:
        self.call("mark")
        return LogMark("token")

    def shows(self, token: str, mark: str) -> bool:
        return token == mark

    def watch(self, task: Any, silent_s: float) -> None: ...

    def decode_end(self, text: bytes) -> ChangeRoundEnd[ChangePlace]:
        return msgspec.json.decode(text, type=ChangeRoundEnd[ChangePlace])


@dataclass
class Turns:
    taken: bool = False

    @contextmanager
    def turn(self, stopped: Callable[[], bool]) -> Iterator[bool]:
        self.taken = True
        yield True
        self.taken = False


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Turns:
    found = Turns()
    # Spark's threads want a context where another test of the process has had one.
    monkeypatch.setattr(rounds, "InheritableThread", threading.Thread)
    monkeypatch.setattr(rounds, "_turns", lambda _: found)
    monkeypatch.setattr(rounds, "STOP_S", 0.1)
    return found


def started(database: Database) -> ChangeRounds[ChangePlace]:
    """Start rounds of which the first reads all rows that are there."""
    rows = [{"end": msgspec.json.encode(end(first=False))}]
    job = SimpleNamespace(toArrow=lambda: pa.Table.from_pylist(rows, schema=ROUND))
    names = ("setJobGroup", "setLocalProperty", "cancelJobGroup")
    spark = SimpleNamespace(
        sparkContext=SimpleNamespace(**{name: lambda *_, **__: None for name in names}),
        range=lambda *_, **__: SimpleNamespace(mapInArrow=lambda *_: job),
    )
    by = SimpleNamespace(
        spark=spark, settings=Settings(source_trigger_ms=100), feed=FEED, count_rows=lambda _: None
    )
    engine = SimpleNamespace(address=None, stop=database.stop)
    given: Any = (by, engine, database, SourcePosition(0, "origin"))
    return ChangeRounds(*given)


@pytest.mark.parametrize("name", ["begin", "first", "claim", "follow", "changes", "mark"])
async def test_a_database_that_does_not_respond_has_no_turn(turns: Turns, name: str) -> None:
    database = Database(hangs=name)
    source = started(database)
    try:
        await eventually(lambda: name in database.called)
        assert not turns.taken
        progress = source.progress()
        assert progress is None or not progress.is_caught_up or name == "mark"
    finally:
        database.freed.set()
        source.stop()


@pytest.mark.parametrize("name", ["begin", "follow"])
async def test_a_task_that_starts_behind_the_end_of_its_reader_ends(
    turns: Turns, name: str
) -> None:
    database = Database(hangs=name)
    source = started(database)
    await eventually(lambda: name in database.called)
    source.stop()
    database.freed.set()
    await eventually(lambda: not cast(Any, source)._thread.is_alive())
    assert database.called[-1] in ("first", "changes")
    assert database.running == set()
    assert source.failure() is None


def test_the_changes_of_another_table_are_not_read_on(monkeypatch: pytest.MonkeyPatch) -> None:
    by: Any = SimpleNamespace(settings=Settings(), feed=FEED)
    stored = dict[int, SourcePosition]()
    monkeypatch.setattr(change_rounds, "positions_of_feeds", lambda *_: {FEED.raw_topic: stored})
    assert position_of(by, "table 1") == SourcePosition(0, "table 1")
    stored[0] = SourcePosition(7, "table 1", rewinds=2)
    assert position_of(by, "table 1") == stored[0]
    with pytest.raises(StreamReplaced, match="table 2"):
        position_of(by, "table 2")
