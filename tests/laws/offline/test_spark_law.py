"""The law through the real job: what Spark computes is what the naive oracle has, row by row."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from structlog.testing import capture_logs

from fennel_core.dataframes.datasource import COMMENT, PUSHDOWN
from fennel_core.hangar.memory import MemoryHangar
from fennel_core.history.parquet import TimeLimit
from fennel_core.offline import lookup_rounds
from fennel_core.offline.batch_work import StepTools
from fennel_core.offline.block_sort import BlockSort
from fennel_core.offline.blocks import ByRun
from fennel_core.offline.code_lookups import MOST_ANSWER_BYTES
from fennel_core.offline.lookup_groups import Erasures
from fennel_core.offline.planned_query import OfflineQuery
from fennel_core.offline.rows import REASON, ROW
from fennel_core.offline.scratch import ScratchStore
from fennel_core.offline.spark import SparkRun, session
from fennel_core.offline.task_tools import TaskTools
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import Micros
from tests.laws.dataframes import spark_source
from tests.laws.dataframes.page_source import PageDataSource
from tests.laws.dataframes.spark_source import MemoryDataSource
from tests.laws.offline.queries import QUERIES, Query, expected, given_frame, plain_rows
from tests.laws.offline.worlds import CALLING, SECOND, SPECS, Code, World, job_of, planned, worlds
from tests.support.histories import Change, History
from tests.support.tutorial import FENCE

ROOT = Path(__file__).parents[3]
PARTITIONS = 2
EMPTY = World({name: History([]) for name in SPECS}, frozenset())
EXAMPLES = int(os.environ.get("FENNEL_SPARK_EXAMPLES", "3"))
"""An example takes seconds, so CI has few: `FENNEL_SPARK_EXAMPLES=100` for a long proof."""


@dataclass(frozen=True)
class FramePiece:
    """Versions in memory."""

    frame: pl.DataFrame

    def batches(self, columns: Sequence[str], limit: TimeLimit) -> Iterator[pl.DataFrame]:
        yield self.frame.filter(limit.keeps()).select(columns)


@dataclass(frozen=True)
class FrameRows:
    """The rows of a query in memory, one in each part."""

    frame: pl.DataFrame

    def __len__(self) -> int:
        return self.frame.height

    def rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pl.DataFrame]:
        # Numbered as rows of a request are (`request_input`).
        frame = self.frame.drop(ROW).with_row_index(ROW)
        return (frame[n : n + 1] for batch in batches for n in batch.column(0).to_pylist())


@dataclass(frozen=True)
class MemoryTools:
    """User code in this process, and state that spills to memory."""

    answer_bytes: int = MOST_ANSWER_BYTES

    @contextmanager
    def open(self, erasures: Erasures) -> Iterator[StepTools]:
        scratch = partial(ScratchStore, MemoryHangar, limit_bytes=200)
        yield StepTools(erasures, Code(), scratch, self.answer_bytes)


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *sys.path]))
        patch.setenv("SPARK_MASTER", "local[1]")
        patch.setattr(lookup_rounds, "LEAST_ROWS", 1)
        found = session(Settings(data_dir=tmp_path_factory.mktemp("spark")), "offline-law")
        # Compiling the plan of an example takes longer than interpreting it for a few rows.
        found.conf.set("spark.sql.codegen.wholeStage", "false")
        found.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        found.conf.set("spark.sql.adaptive.enabled", "false")
        yield found
        found.stop()


def computed(
    spark: SparkSession,
    world: World,
    outputs: list[str],
    queries: Sequence[Query],
    tools: TaskTools = MemoryTools(),
) -> list[Any]:
    query = OfflineQuery(
        planned(outputs), {job_of(name): spec for name, spec in SPECS.items()}, world.erasures()
    )
    # Two pieces, cut anywhere: a retraction need not be in the piece of what it retracts.
    pieces = {
        job: [FramePiece(frame[::2]), FramePiece(frame[1::2])]
        for job, frame in world.versions().items()
    }
    latest = Micros(max(at for _, at in queries))
    failures = spark.sparkContext.accumulator(0)
    run = SparkRun(spark, query, pieces, tools, latest, PARTITIONS, failures)
    runs = ByRun(len(queries), 2)
    blocks = run.run(FrameRows(given_frame(queries)), runs).toArrow().to_batches()
    made = pl.concat(BlockSort(run.result, runs).rows(iter(blocks)))
    assert made[ROW].to_list() == list(range(len(queries))), "each row has a result"
    failed = made.filter(pl.col(REASON).is_not_null())
    assert failures.value == failed.height, "each failed row is counted by one task"
    return plain_rows(made, outputs, set(failed[ROW].to_list()))


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data(), made=worlds(), queries=QUERIES)
def test_spark_computes_what_the_oracle_has(
    spark: SparkSession, data: st.DataObject, made: tuple[World, list[str]], queries: list[Query]
) -> None:
    world, features = made
    assume(
        sum(bool(each.batches) for each in world.histories.values()) == 2
    )  # few examples: full ones
    fewest = min(5, len(features))
    outputs = data.draw(
        st.lists(st.sampled_from(features), min_size=fewest, max_size=8, unique=True)
    )
    found = computed(spark, world, outputs, queries)
    assert found == [expected(world, outputs, row, at) for row, at in queries]


@settings(
    max_examples=max(1, EXAMPLES // 3),
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(made=worlds("Users", "Pairs") | worlds("Users", "Totals"), queries=QUERIES)
def test_spark_looks_up_what_user_code_asks_for(
    spark: SparkSession, made: tuple[World, list[str]], queries: list[Query]
) -> None:
    world, features = made
    assume(sum(bool(each.batches) for each in world.histories.values()) == 2)
    outputs = [name for name in (*CALLING, "F.after", "F.plus", "F.sum") if name in features]
    assert len(outputs) > 5
    found = computed(spark, world, outputs, queries)
    assert found == [expected(world, outputs, row, at) for row, at in queries]


def large_user(k: int) -> Change:
    row = {"k": k, "v": (k + 1) % 8, "tags": [1] * 100, "ts": SECOND, "__tombstone": False}
    return Change(0, 1, row | {"__pos": b"\x01" + k.to_bytes(13, "big")})


@pytest.mark.long
def test_large_rows_that_code_looks_up_are_read_for_fewer_rows_at_a_time(
    spark: SparkSession,
) -> None:
    users = History([[large_user(k) for k in range(8)]])
    world, outputs = World({**EMPTY.histories, "Users": users}, frozenset()), ["F.code"]
    queries = [
        ({"F.k": n % 8, "F.n": 1, "F.ks": [], "F.ns": []}, (1 + n // 8) * SECOND) for n in range(24)
    ]
    with capture_logs() as logs:
        found = computed(spark, world, outputs, queries, MemoryTools(answer_bytes=500))
    assert found == [expected(world, outputs, row, at) for row, at in queries]
    cut = [each["cut_batches"] for each in logs if each["event"] == "what code looks up is large"]
    assert cut, "a batch needs more"
    assert all(each <= 2 for each in cut), "of the two tasks"


@pytest.mark.long
def test_the_plan_does_not_grow_with_the_rounds(spark: SparkSession) -> None:
    query = [({"F.k": 1, "F.n": 1, "F.ks": [], "F.ns": []}, 0)]
    lines = []
    for output in ("F.code", "F.many"):  # one lookup, and twelve
        asked = OfflineQuery(
            planned([output]), {job_of(name): spec for name, spec in SPECS.items()}, {}
        )
        pieces = {job: [FramePiece(frame)] for job, frame in EMPTY.versions().items()}
        run = SparkRun(spark, asked, pieces, MemoryTools(), Micros(0), PARTITIONS)
        made = run.run(FrameRows(given_frame(query)), ByRun(1, 1))
        lines.append(made._jdf.queryExecution().analyzed().toString().count("\n"))
    assert lines[0] == lines[1]


CONDITIONS = (
    "name IN ('bob', NULL) AND at BETWEEN timestamp'1970-01-01 00:00:34Z' AND "
    "timestamp'1970-01-01 00:00:38Z'",
    "name > 'b' AND (visits % 2 = 0 OR score IS NULL) AND price > 0.25 AND NOT member",
)
ONE_KEY = "name = 'ada' AND day = date'2026-01-01'"


def test_filters_that_spark_hands_over_select_what_spark_selects(spark: SparkSession) -> None:
    spark.conf.set(PUSHDOWN, "true")
    spark.dataSource.register(MemoryDataSource)
    memory = {"dataset": "Memory", "workspace": "w", "partition_rows": "10"}
    frame = spark.read.format("memory").options(**memory).load()
    assert {each.name: each.metadata.get(COMMENT) for each in frame.schema if each.metadata} == (
        spark_source.COMMENTS
    )
    every = spark.createDataFrame(spark_source.rows(), frame.schema)
    for condition in CONDITIONS:
        assert shown(frame.where(condition)) == shown(every.where(condition)), condition
    one = frame.where(ONE_KEY)
    assert one.rdd.getNumPartitions() == 1, "the other partition of the topic has other keys"
    assert shown(one) == shown(every.where(ONE_KEY))
    narrow = spark.read.format("memory").options(**memory).schema("visits long, name string")
    assert shown(narrow.load()) == shown(every.select("visits", "name"))
    with pytest.raises(PySparkException, match="column `visits` is bigint and not string"):
        narrow.schema("visits string").load().collect()


def shown(frame: DataFrame) -> list[str]:
    """Return rows as text in order: NaN is not equal to itself."""
    return sorted(str(tuple(row)) for row in frame.collect())


def test_the_examples_of_the_page_print_what_it_shows(spark: SparkSession) -> None:
    page = (ROOT / "docs" / "dataframes.md").read_text().split("## Export")[0]
    begin, *blocks = [
        (found[1], found[2])
        for found in FENCE.finditer(page)
        if not found[2].startswith("# shop.py")
    ]
    names: dict[str, Any] = {}
    exec(begin[1], names)  # noqa: S102  # an example of the documentation
    spark.dataSource.register(PageDataSource)
    printed = ""
    for language, text in blocks:
        if language != "python":
            assert printed.strip() == text.strip()
            continue
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(text, names)  # noqa: S102  # as above
        printed = out.getvalue()
