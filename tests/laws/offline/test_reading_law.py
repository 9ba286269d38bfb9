"""Laws of what tasks read: versions from pieces of history, and the rows of a request from its
parts, however they are cut into files and row groups.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from botocore.exceptions import ClientError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fennel_core.connections import s3
from fennel_core.history import parquet, topic_slices
from fennel_core.history.store import HistoryFile
from fennel_core.history.topic_slices import TopicSlice
from fennel_core.offline import request_input
from fennel_core.offline.block_sort import BlockSort
from fennel_core.offline.blocks import ByHash
from fennel_core.offline.query_steps import ShuffleByKey, live_registers, steps_of
from fennel_core.offline.register_types import register_types
from fennel_core.offline.request_input import InputPart, InputRows, row_groups
from fennel_core.offline.rows import AT, ROW
from fennel_core.offline.shuffle_layouts import shuffle_layout
from fennel_core.offline.timeline import KEY, TIME
from fennel_core.offline.version_pieces import HistoryPiece
from fennel_core.offline.version_work import ReadWork
from fennel_core.query.columns import LOGICAL_TIME
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import Micros, Offset, PartitionIndex, TopicName
from fennel_core.vocab.keys import key_bytes
from fennel_core.vocab.versions import POS
from tests.laws.offline.worlds import SPECS, job_of, program
from tests.support.histories import Change, as_frame

GROUP_ROWS = 3
TOPIC, PART = TopicName("users"), PartitionIndex(0)
TIMES = st.integers(0, 9)


class _Errors:
    ClientError = ClientError


@dataclass
class Objects:
    """A client of S3 that reads objects in memory."""

    bodies: dict[str, bytes] = field(default_factory=dict)
    exceptions: type[_Errors] = _Errors

    def head_object(self, Bucket: str, Key: str) -> dict[str, Any]:  # as boto3 has it
        return {"ContentLength": len(self.bodies[Key])}

    def get_object(self, Bucket: str, Key: str, Range: str) -> dict[str, Any]:  # as boto3 has it
        first, last = map(int, Range.removeprefix("bytes=").split("-"))
        return {"Body": io.BytesIO(self.bodies[Key][first : last + 1])}


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> Objects:
    found = Objects()
    monkeypatch.setattr(topic_slices, "_client", lambda _settings: found)
    monkeypatch.setattr(s3, "client", lambda _settings: found)
    monkeypatch.setattr(request_input, "INPUT_ROWS", GROUP_ROWS)
    return found


def cuts(count: int) -> st.SearchStrategy[list[int]]:
    """Draw where `count` things are cut, with both ends."""
    return st.sets(st.integers(1, max(count, 1))).map(
        lambda some: sorted({0, count, *(n for n in some if n < count)})
    )


lenient = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@lenient
@given(data=st.data(), times=st.lists(TIMES, min_size=1, max_size=30), latest=st.integers(-1, 10))
def test_pieces_of_history_have_every_version_up_to_a_time_once(
    objects: Objects, data: st.DataObject, times: list[int], latest: int
) -> None:
    bound = program(["F.v"])
    specs = {job_of(name): spec for name, spec in SPECS.items()}
    steps = steps_of(bound, specs)
    place, step = next((n, s) for n, s in enumerate(steps) if isinstance(s, ShuffleByKey))
    [(_, source)] = step.group.sources
    changes = [
        Change(
            *(0, 1),
            {
                "k": number % 2,
                "v": number,
                "tags": [],
                "ts": time,
                "__tombstone": False,
                "__pos": number.to_bytes(14, "big"),
            },
        )
        for number, time in enumerate(times)
    ]
    whole = as_frame(source.schema, changes).with_columns(
        pl.int_range(pl.len(), dtype=pl.Int64).alias(parquet.OFFSET),
        pl.lit(0, dtype=pl.Int32).alias(parquet.GROUP),
    )
    end = data.draw(st.integers(1, len(times)))
    edges = data.draw(cuts(len(times)))
    files = []
    for first, stop in pairwise(edges):
        if first >= end:
            break  # history was written further after the read was planned
        body, part = io.BytesIO(), whole[first:stop]
        part.write_parquet(body, row_group_size=GROUP_ROWS, statistics=data.draw(st.booleans()))
        objects.bodies[f"f{first}-{stop}"] = body.getvalue()
        span = [Micros(min(times[first:stop])), Micros(max(times[first:stop]))]
        files.append(
            HistoryFile(
                *(TOPIC, PART, Offset(first), Offset(stop), f"f{first}-{stop}"),
                *(part.height, len(body.getvalue()), *span),
            )
        )
    whole_slice = TopicSlice((TOPIC, PART), tuple(files), Offset(end), Offset(end), "")
    useful = whole_slice.until(Micros(latest)).pieces()
    pieces = tuple(HistoryPiece(Settings(), piece) for piece in useful)
    layout = shuffle_layout(step, live_registers(bound, steps)[place - 1], register_types(bound))
    placement = ByHash(KEY, 1)
    work = ReadWork(pieces, source, 0, Micros(latest), layout, placement)
    numbers = pa.RecordBatch.from_pydict({"id": list(range(len(pieces)))})

    frames = list(BlockSort(layout, placement).rows(work.run(iter([numbers]))))

    found = pl.concat(frames).select(KEY, TIME, POS, "0.v").rows() if frames else []
    wanted = whole[:end].filter(pl.col("ts").to_physical() <= latest)
    keys = key_bytes(wanted, ["k"])
    expected = zip(
        keys, wanted["ts"].to_physical().to_list(), wanted[POS], wanted["v"], strict=True
    )
    assert sorted(found) == sorted(expected)


@lenient
@given(data=st.data(), count=st.integers(1, 40))
def test_rows_of_parts_are_numbered_by_their_place(
    objects: Objects, data: st.DataObject, count: int
) -> None:
    whole = pl.DataFrame(
        {AT: pl.int_range(count, eager=True).cast(LOGICAL_TIME), "F.k": range(count)}
    )
    edges = data.draw(cuts(count))
    parts = []
    for first, stop in pairwise(edges):
        body = io.BytesIO()
        pq.write_table(whole[first:stop].to_arrow(), body, row_group_size=GROUP_ROWS)
        objects.bodies[f"p{first}-{stop}"] = body.getvalue()
        parts.append(InputPart(f"p{first}-{stop}", first, stop - first))
    given_rows = InputRows(Settings(), row_groups(parts))
    order = data.draw(st.permutations(range(len(given_rows))))

    frames = given_rows.rows(iter([pa.RecordBatch.from_pydict({"id": order})]))

    found = pl.concat(frames).sort(ROW)
    assert found[ROW].to_list() == found["F.k"].to_list() == list(range(count))
    assert found[AT].to_physical().to_list() == list(range(count))
