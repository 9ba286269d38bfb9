"""What the host learns from a query, and which batches a query refuses."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from pyspark.sql import DataFrame

from fennel_core.connections.external_kafka import ExternalTopic
from fennel_core.settings.model import Settings
from fennel_core.sources import spark
from fennel_core.sources.errors import StreamReplaced
from fennel_core.sources.feeds import FeedProgress, feeds_of
from fennel_core.sources.spark import WAITS, FeedQuery, PacedWriter, batch_writer
from tests.support.ingest_world import catalog
from tests.support.source_world import stream_source

(FEED,) = feeds_of([catalog(stream_source())]).values()


class Inspector:
    """A topic that is created again when a test says so."""

    def __init__(self) -> None:
        self.origin, self.closed = "cluster/a", False

    def describe(self) -> ExternalTopic:
        return ExternalTopic(self.origin, 2)

    def close(self) -> None:
        self.closed = True


def query(
    last: object,
    inspector: Inspector,
    message: str = "Processing new data",
    is_data_available: bool = False,
) -> FeedQuery:
    status = {"message": message, "isDataAvailable": is_data_available}
    made = SimpleNamespace(lastProgress=last, stop=lambda: None, status=status)
    return FeedQuery(
        cast(Any, made), Path("/nowhere"), cast(Any, inspector), 2.0, threading.Event()
    )


def offsets(**ends: int) -> str:
    return json.dumps({"orders": {name[1:]: end for name, end in ends.items()}})


def reported(
    end: str, latest: str | None, timestamp: str = "2026-01-01T00:00:00.000Z"
) -> dict[str, object]:
    return {"timestamp": timestamp, "sources": [{"endOffset": end, "latestOffset": latest}]}


@pytest.mark.parametrize(
    ("end", "latest", "behind"),
    [
        (offsets(p0=5, p1=7), offsets(p0=9, p1=7), 4),
        (offsets(p0=9, p1=7), offsets(p0=9, p1=7), 0),
        (offsets(p0=9), None, None),
        (offsets(p0=9), "null", None),
    ],
)
def test_progress_is_that_of_the_last_batch(
    end: str, latest: str | None, behind: int | None
) -> None:
    found = query(reported(end, latest), Inspector()).progress()
    assert found is not None
    assert found == FeedProgress(behind, fresh_s=found.fresh_s)
    assert query(None, Inspector()).progress() is None


def test_a_query_that_waits_has_looked_two_triggers_ago_and_another_has_not() -> None:
    before_s = time.monotonic()
    waits = query(None, Inspector(), WAITS[1]).progress()
    assert waits is not None
    assert (waits.behind, waits.is_caught_up) == (0, True)
    assert waits.looked_s is not None
    assert before_s - 4.0 <= waits.looked_s <= time.monotonic() - 4.0
    end = offsets(p0=9)
    read = reported(end, end)
    for has_read in (query(read, Inspector(), WAITS[1], True), query(read, Inspector())):
        found = has_read.progress()
        assert found is not None
        assert (found.behind, found.looked_s) == (0, None)


@pytest.mark.parametrize("latest", [None, "null"])
def test_a_query_that_waits_has_nothing_left_whatever_its_last_report_knew(
    latest: str | None,
) -> None:
    waits = query(reported(offsets(p0=9), latest), Inspector(), WAITS[0]).progress()
    assert waits is not None
    assert (waits.behind, waits.is_caught_up) == (0, True)
    reads = query(reported(offsets(p0=9), latest), Inspector()).progress()
    assert reads is not None
    assert (reads.behind, reads.is_caught_up) == (None, False)


def test_the_report_before_a_batch_that_does_not_end_is_as_old_as_it_is() -> None:
    def fresh_s(of: FeedQuery) -> float:
        found = of.progress()
        assert found is not None
        assert found.fresh_s is not None
        return found.fresh_s

    end = offsets(p0=9)
    hangs = query(reported(end, end), Inspector())
    first = fresh_s(hangs)
    time.sleep(0.01)  # the clock has to go on
    assert fresh_s(hangs) == first
    cast(Any, hangs)._query.lastProgress = reported(end, end, "2026-01-01T00:00:01.000Z")
    assert fresh_s(hangs) > first
    for waits in (
        query(reported(end, end), Inspector(), WAITS[0]),
        query(None, Inspector(), WAITS[0]),
    ):
        before = fresh_s(waits)
        time.sleep(0.01)  # the clock has to go on
        assert fresh_s(waits) > before


def test_a_query_that_is_stopped_leaves_no_connections() -> None:
    inspector = Inspector()
    query(None, inspector).stop()
    assert inspector.closed


def test_a_batch_of_a_topic_that_was_created_again_is_not_written() -> None:
    inspector, frames = Inspector(), []

    class Frame:
        def select(self, *_: str) -> DataFrame:
            frames.append(self)
            raise InterruptedError

    write = batch_writer(Settings(), FEED, "cluster/a", {}, cast(Any, inspector), lambda _: None)
    with pytest.raises(InterruptedError):
        write(cast(Any, Frame()), 0)
    inspector.origin = "cluster/b"
    with pytest.raises(
        StreamReplaced, match=r"kafka/orders was read from `cluster/a`.*another name"
    ):
        write(cast(Any, Frame()), 1)
    assert len(frames) == 1


class Frame:
    """A batch; what is observed of it is known once it was written."""

    def __init__(self, messages: int) -> None:
        self._messages = messages

    def observe(self, seen: Seen, _: object) -> Frame:
        seen.get = {"messages": self._messages}
        return self


class Seen:
    """As Spark's `Observation`."""

    get: dict[str, int]


def test_a_limited_batch_rests_for_its_messages_until_the_query_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopped, rests, written = threading.Event(), [], []
    monkeypatch.setattr(stopped, "wait", rests.append)
    for name, value in (("Observation", Seen), ("count_messages", Mock()), ("lit", Mock())):
        monkeypatch.setattr(spark, name, value)
    limited = PacedWriter(lambda _, number: written.append(number), 0.5, 100, stopped)
    for number, messages in enumerate((40, 0)):
        limited(cast(DataFrame, Frame(messages)), number)
    assert written == [0, 1]
    assert 0 < rests[0] <= 80
    assert rests[1] == 0
    assert limited.owed_s() == 0


def test_a_limited_query_owes_the_rest_of_a_batch_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_: DataFrame, number: int) -> None:
        raise ValueError(f"batch {number} failed")

    frame = cast(DataFrame, SimpleNamespace(observe=lambda *_: None))
    limited = PacedWriter(fail, 0.5, 100, threading.Event())
    for name in ("Observation", "count_messages", "lit"):
        monkeypatch.setattr(spark, name, Mock())
    with pytest.raises(ValueError, match="batch 7"):
        limited(frame, 7)
    assert 100 < limited.owed_s() <= 200
    assert query(None, Inspector()).owed_s() == 0


def test_the_end_of_a_query_ends_the_rest_of_its_batch() -> None:
    made = query(None, Inspector())
    assert not made._stopped.is_set()
    made.stop()
    assert made._stopped.is_set()
