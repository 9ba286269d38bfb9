"""A request over files of history, and what its result must be; without a platform.

The job is the real one, but for the plan, which is that of `tests/laws/offline`: a keyed dataset
and a terminal aggregation with windows.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fennel_core.connections import s3
from fennel_core.hangar.memory import MemoryHangar
from fennel_core.history import parquet
from fennel_core.history.store import HistoryFile
from fennel_core.history.topic_slices import TopicSlice
from fennel_core.offline.memory import MemoryRun, OfflineInputs
from fennel_core.offline.planned_query import OfflineQuery
from fennel_core.offline.planning import OfflineRead
from fennel_core.offline.rows import AT, ROW
from fennel_core.offline.scratch import ScratchStore
from fennel_core.query.columns import LOGICAL_TIME
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import Micros, Offset, PartitionIndex, TopicName
from fennel_core.vocab.versions import IS_TOMBSTONE, POS, SIGN
from tests.laws.offline.worlds import SECOND, SPECS, Code, job_of, planned, program

OUTPUTS = ["F.v", "F.c", "F.sum", "F.mean"]
KEYS, ROWS, VERSIONS, FILES = 500, 30_000, 60_000, 6
SPAN_S = 1_000
USED = ("Users", "Totals")


def rows() -> pl.DataFrame:
    """Return the rows of the request: key and time."""
    draw = np.random.default_rng(1)
    times = draw.integers(0, SPAN_S, ROWS) * SECOND
    return pl.DataFrame(
        {"k": draw.integers(0, KEYS, ROWS), "at": pl.Series(times).cast(LOGICAL_TIME)}
    )


def versions(name: str) -> pl.DataFrame:
    """Return the versions of a dataset, in the order of the topic."""
    draw = np.random.default_rng(len(name))
    times = pl.Series(draw.integers(0, SPAN_S, VERSIONS) * SECOND).cast(LOGICAL_TIME)
    own: dict[str, Any] = (
        {"v": draw.integers(0, 9, VERSIONS), "tags": [[1]] * VERSIONS, "ts": times}
        if name == "Users"
        else {"x": draw.integers(0, 9, VERSIONS), "paid": times, "t": times}
    )
    return pl.DataFrame({"k": draw.integers(0, KEYS, VERSIONS), **own}).with_columns(
        pl.Series(POS, [n.to_bytes(14, "big") for n in range(VERSIONS)]),
        pl.lit(1, dtype=pl.Int8).alias(SIGN),
        pl.lit(value=False).alias(IS_TOMBSTONE),
    )


def expected() -> list[tuple[Any, ...]]:
    """Return the outputs of each row, computed in memory."""
    steps = {job_of(name): spec for name, spec in SPECS.items()}
    inputs = OfflineInputs(steps, {job_of(name): versions(name) for name in USED}, {})
    run = MemoryRun(program(OUTPUTS), inputs, Code(), lambda: ScratchStore(MemoryHangar))
    asked = rows()
    given = asked.select(
        pl.int_range(pl.len()).alias(ROW), pl.col("at").alias(AT), pl.col("k").alias("F.k")
    )
    made, failures = run.run(given)
    assert failures.is_empty(), "every row has features"
    return made.select(OUTPUTS).rows()


def write(settings: Settings, user_bucket: str) -> list[dict[str, Any]]:
    """Write history to the bucket of the platform and the rows to that of a user; return what the
    job must know about the files of history.
    """
    client, noted = s3.client(settings), []
    for bucket in (settings.s3_bucket, user_bucket):
        s3.ensure_bucket(client, bucket)
    for name in USED:
        whole = versions(name)
        for number, part in enumerate(whole.iter_slices(VERSIONS // FILES)):
            first = number * part.height
            body = parquet.encode_file(
                part.with_columns(
                    (pl.int_range(pl.len()) + first).alias(parquet.OFFSET),
                    pl.lit(0, dtype=pl.Int32).alias(parquet.GROUP),
                )
            )
            key = f"history/{name}/{number}"
            assert s3.put_new(client, settings.s3_bucket, key, body)
            noted.append({"name": name, "key": key, "first": first, "size": len(body)})
    for number, part in enumerate(rows().iter_slices(ROWS // FILES)):
        sink = io.BytesIO()
        part.write_parquet(sink)
        assert s3.put_new(client, user_bucket, f"in/{number}", sink.getvalue())
    return noted


@dataclass(frozen=True)
class FixedPlan:
    """Plans every request as one over the files that were written."""

    noted: Path

    async def plan(self, *_asked: object) -> OfflineRead:
        found = json.loads(self.noted.read_text())
        query = OfflineQuery(
            planned(OUTPUTS), {job_of(name): spec for name, spec in SPECS.items()}, {}
        )
        slices = {job_of(name): (self._slice(name, found),) for name in USED}
        return OfflineRead(query, None, slices, frozenset())

    def _slice(self, name: str, found: list[dict[str, Any]]) -> TopicSlice:
        topic, part, count = TopicName(f"topic.{name}"), PartitionIndex(0), VERSIONS // FILES
        files = tuple(
            HistoryFile(
                *(topic, part, Offset(each["first"]), Offset(each["first"] + count), each["key"]),
                *(count, each["size"], Micros(0), Micros(SPAN_S * SECOND)),
            )
            for each in found
            if each["name"] == name
        )
        return TopicSlice((topic, part), files, Offset(VERSIONS), Offset(VERSIONS), "")
