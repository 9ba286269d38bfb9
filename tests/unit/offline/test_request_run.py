"""What a run decides without Spark: partitions, the text of a failure, and its files."""

from __future__ import annotations

import asyncio
import io
import sys
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest

from fennel_core.history.store import HistoryFile
from fennel_core.history.topic_slices import TopicSlice
from fennel_core.offline.planning import OfflineRead
from fennel_core.offline.request_files import INPUT_ROWS, input_file, request_folder, request_of
from fennel_core.offline.request_row import run_name
from fennel_core.offline.request_run import _last_line, _shortened, _storable
from fennel_core.offline.request_runs import InlineRuns, RunNotStarted, job_file
from fennel_core.offline.request_store import MemoryRequests
from fennel_core.operators.spec import AggregateSpec
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import (
    JobId,
    Micros,
    Offset,
    PartitionIndex,
    TopicName,
    WorkspaceId,
)
from fennel_core.wire import operators as wire
from tests.support.ingest_world import KEYED, KEYLESS


def test_the_program_of_a_run_exists() -> None:
    assert job_file().is_file()
    assert run_name("q1", 2) == "offline-q1-2"


def test_an_input_has_row_groups_of_a_known_size() -> None:
    rows = pl.DataFrame({"a": range(2 * INPUT_ROWS + 1)})
    file = pq.ParquetFile(io.BytesIO(input_file(rows)))
    sizes = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
    assert sizes == [INPUT_ROWS, INPUT_ROWS, 1], "a task numbers rows by the group that it reads"


def test_an_object_names_its_request() -> None:
    assert request_of(f"{request_folder(WorkspaceId('shop'), 'q1')}result/1/a") == "q1"
    assert request_of("offline/shop") is None
    assert request_of("history/shop/q1/x") is None


def test_a_failure_is_the_line_that_names_its_cause() -> None:
    text = "Traceback\n  File x\nfennel_core.history.errors.ReadFailed: gone [read-object]\n\n"
    assert _last_line(RuntimeError(text)) == (
        "fennel_core.history.errors.ReadFailed: gone [read-object]"
    )
    assert _last_line(RuntimeError("")) == "RuntimeError"
    assert _storable("a\0b") == "a?b"


async def test_inline_runs_are_bounded_with_those_that_are_stopping(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Process:
        pid = 0
        returncode: int | None = None

        async def wait(self) -> None:
            await asyncio.Event().wait()

    made: list[Process] = []

    async def start(*_command: str, env: dict[str, str], **_options: Any) -> Process:
        assert env["PYSPARK_PYTHON"] == sys.executable, (
            "the PATH may lead to a Python without Spark"
        )
        made.append(Process())
        return made[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    store: Any = MemoryRequests(lambda: datetime(2026, 1, 1, tzinfo=UTC))
    runs = InlineRuns(Settings(offline_inline_at_once=2), store)
    await runs.start("q1", "offline-q1-1")
    await runs.start("q1", "offline-q1-1")
    await runs.start("q2", "offline-q2-1")
    assert len(made) == 2, "a run is started once"
    with pytest.raises(RunNotStarted, match="2 runs have not ended"):
        await runs.start("q3", "offline-q3-1")
    made[0].returncode = 0
    await runs.start("q3", "offline-q3-1")
    assert (await runs.alive("offline-q1-1"), await runs.alive("offline-q3-1")) == (False, True)


def test_a_run_says_from_when_on_features_are_complete() -> None:
    topic = TopicName("w.topic.clicks.1")
    partition = (topic, PartitionIndex(0))
    file = HistoryFile(
        *partition,
        *(Offset(0), Offset(1), "0", 1, 1, Micros(90_000_000), Micros(90_000_000)),
        expired_rows=7,
        expired_to=Micros(30_000_000),
    )
    part = TopicSlice(partition, (file,), Offset(1), Offset(1), "")
    count = wire.Count("age", wire.Sliding(4_000_000), None, False, False, False)
    step = AggregateSpec(KEYLESS, ("user",), (count,), None, True, KEYED)
    job = JobId("a")
    query: Any = SimpleNamespace(specs={job: step})
    read = OfflineRead(query, None, {job: (part,)}, frozenset())
    for earliest in (None, 39_999_999):
        (text,) = _shortened(read, earliest)
        assert f"7 rows of topic `{topic}` were removed" in text
        assert "before 1970-01-01T00:00:40+00:00 may lack them" in text, "thirty, and twice five"
    assert list(_shortened(read, 40_000_000)) == []
    whole = replace(read, slices={job: (replace(part, files=(replace(file, expired_rows=0),)),)})
    assert list(_shortened(whole, None)) == []
    forever = replace(step, specs=(replace(count, window=wire.Forever()),))
    endless = replace(read, query=SimpleNamespace(specs={job: forever}))
    (text,) = _shortened(endless, 10**15)
    assert text.endswith("`history` of its datasets: features may lack them")
