"""A read as of a time is refused where rows that it needs were removed because of their age."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fennel_core.blueprints.spec import DatasetView, Job
from fennel_core.dataframes.api_messages import decode_source, encode_source
from fennel_core.dataframes.parts import TopicInput
from fennel_core.dataframes.planning import DatasetSource
from fennel_core.dataframes.read_request import Mode, ReadRequest
from fennel_core.history.errors import ReadFailed
from fennel_core.history.roll import TopicLayout
from fennel_core.history.store import HistoryFile
from fennel_core.history.topic_slices import TopicSlice
from fennel_core.operators.spec import AggregateSpec
from fennel_core.vocab.ids import (
    MAIN_BRANCH,
    DatasetName,
    JobId,
    Micros,
    Offset,
    PartitionIndex,
    TopicName,
    WorkspaceId,
)
from fennel_core.wire import operators as wire
from tests.support.ingest_world import KEYED, KEYLESS

SECOND = 1_000_000
CLICKS = TopicName("w.topic.clicks.1")
WINDOW = wire.Sliding(9 * SECOND)
TOTALS = AggregateSpec(
    KEYLESS, ("user",), (wire.Count("age", WINDOW, None, False, False, False),), None, True, KEYED
)


def source(aggregate: AggregateSpec | None, *expired: tuple[int, int]) -> DatasetSource:
    """Return a dataset whose files have lost so many rows, searched to a time."""
    files = tuple(
        HistoryFile(
            *(CLICKS, PartitionIndex(0), Offset(n), Offset(n + 1), f"{n}", 1, 1),
            *(Micros(100 * SECOND), Micros(101 * SECOND)),
            expired_rows=rows,
            expired_to=Micros(to),
        )
        for n, (rows, to) in enumerate(expired)
    )
    end = Offset(len(expired))
    part = TopicSlice((CLICKS, PartitionIndex(0)), files, end, end, "")
    topic = TopicInput((part,), TopicLayout((), "at"))
    name, job = DatasetName("Clicks"), None
    view = DatasetView(name, 1, KEYLESS, CLICKS, None, True, True, (), True, 7)
    if aggregate is not None:
        unused, owner = TopicName("unused"), WorkspaceId("w")
        job = Job(JobId("a"), owner, (CLICKS,), (), aggregate, unused, unused, 1, "Clicks")
    return decode_source(encode_source(DatasetSource(view, job, topic, (), {})))


def read(of: DatasetSource, as_of: int, mode: Mode = Mode.AS_OF) -> None:
    asked = ReadRequest(of.view.name, MAIN_BRANCH, None, None, mode, Micros(as_of), (), 1)
    of.plan(asked)


def test_a_time_before_the_rows_that_are_left_is_refused() -> None:
    lost = source(None, (0, 90 * SECOND), (3, 20 * SECOND), (4, 30 * SECOND), (0, 0))
    with pytest.raises(ReadFailed, match=r"1970-01-01T00:00:30\+00:00 or later: 7 rows") as refused:
        read(lost, 30 * SECOND - 1)
    assert "[read-expired]" in str(refused.value)
    read(lost, 30 * SECOND)
    read(lost, 0, Mode.CHANGELOG)
    read(source(None, (0, 90 * SECOND)), 0)


def test_an_aggregate_needs_twice_its_window_before() -> None:
    lost = source(TOTALS, (3, 20 * SECOND))
    with pytest.raises(ReadFailed, match="00:00:40"):
        read(lost, 40 * SECOND - 1)
    read(lost, 40 * SECOND)


def test_an_aggregate_without_a_finite_window_is_never_complete() -> None:
    count = wire.Count("age", wire.Forever(), None, False, False, False)
    forever = replace(TOTALS, specs=(count,))
    with pytest.raises(ReadFailed, match=r"not complete as of any time.* 3 that") as refused:
        read(source(forever, (3, 20 * SECOND)), 10**15)
    assert "[read-expired]" in str(refused.value)
    read(source(forever, (0, 20 * SECOND)), 0)
