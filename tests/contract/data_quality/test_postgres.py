"""Expectations from committed definitions to counts, metrics and forgotten rows in Postgres."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator, Mapping

import polars as pl
import pytest
from structlog.testing import capture_logs

from fennel_core.blueprints import stored_names
from fennel_core.blueprints.spec import Catalog, DatasetView
from fennel_core.connections.postgres import Pool, pool
from fennel_core.data_quality import evaluator as evaluator_module
from fennel_core.data_quality.counting import EvaluatedRange, RowCounts
from fennel_core.data_quality.evaluator import ROWS, UNMET, ExpectationEvaluator
from fennel_core.data_quality.postgres import PostgresQualityCounts
from fennel_core.data_quality.suites import CommittedSuites, Suites
from fennel_core.definition import validation
from fennel_core.history.file_slices import TopicRecord
from fennel_core.history.kafka import LogBounds
from fennel_core.operators.rows import frame_columns
from fennel_core.vocab.ids import (
    Offset,
    PartitionIndex,
    TopicName,
    TopicPartition,
    WorkspaceId,
)
from fennel_core.vocab.versions import IS_TOMBSTONE, POS, SIGN, encode_frame
from tests.support.definition_world import recorded

TOPIC = TopicName("w.topic.events.1")
PARTITION = (TOPIC, PartitionIndex(0))


def view() -> DatasetView:
    """Return the dataset of the recorded commit that has expectations: `plain` from 0 to 10."""
    request = validation.decode_commit(recorded("connectors")).request
    (dataset,) = [each for each in request.datasets if each.name == "Events"]
    return DatasetView(
        *(dataset.name, 1, dataset.schema, TOPIC, None, False, False, (), True),
    )


@pytest.fixture
async def committed(database: str) -> AsyncIterator[Pool]:
    catalog = Catalog(WorkspaceId("w"), (view(),), (), (), 1)
    async with pool(database, name="test", size=4) as connections:
        async with connections.connection() as connection:
            await connection.execute("INSERT INTO workspace (name, partitions) VALUES ('w', 1)")
            await connection.execute(
                "INSERT INTO commit (id, workspace, branch, state, digest, request, options, "
                "problems, catalog) VALUES ('c1', 'w', 'main', 'finished', '', %s, '{}', '[]', %s)",
                (recorded("connectors"), stored_names.dumps(catalog)),
            )
            await connection.execute(
                "INSERT INTO branch (workspace, name, target, serving) "
                "VALUES ('w', 'main', 'c1', 'c1'), ('w', 'copy', 'c1', 'c1')"
            )
        yield connections


class Written:
    """A topic whose rows have these values of `plain`, one message each."""

    def __init__(self) -> None:
        self.values: list[int | None] = []

    def permitted_bounds(self, topics: Collection[TopicName]) -> Mapping[TopicPartition, LogBounds]:
        assert list(topics) == [TOPIC]
        return {PARTITION: LogBounds(Offset(0), Offset(len(self.values)))}

    def tail(self, partition: TopicPartition, first: Offset, end: Offset) -> Iterator[TopicRecord]:
        columns = frame_columns(view().schema)
        for offset in range(first, end):
            row = {name: [None] for name in columns} | {"plain": [self.values[offset]]}
            frame = pl.DataFrame(row, schema=columns).with_columns(
                pl.lit(b"p").alias(POS),
                pl.lit(1, dtype=pl.Int8).alias(SIGN),
                pl.lit(value=False).alias(IS_TOMBSTONE),
            )
            yield TopicRecord(partition, Offset(offset), encode_frame(frame))


async def test_expectations_of_a_commit_are_evaluated_and_reported(committed: Pool) -> None:
    written, stored = Written(), PostgresQualityCounts(committed)
    evaluator = ExpectationEvaluator(committed, written)
    written.values = [1, 2, 3, 4, 5, 6, 7, 8, None, 11]
    await evaluator.evaluate_once()
    (count,) = await stored.read(10)
    assert (count.workspace, count.dataset, count.topic) == ("w", "Events", TOPIC)
    assert (count.mostly, count.evaluated, count.failed) == (0.9, 9, 1)
    assert count.share == pytest.approx(8 / 9)
    assert not count.is_met
    assert count.failed_at is not None
    assert UNMET._value.get() == 1
    labels = ("w", "Events", f"{count.kind}:{count.digest}")
    assert ROWS.labels(*labels, "failed")._value.get() == 1

    written.values += [5, 5]
    await evaluator.evaluate_once()
    await ExpectationEvaluator(committed, written).evaluate_once()  # another process
    (count,) = await stored.read(10, ["w"])
    assert (count.evaluated, count.failed, count.is_met) == (11, 1, True)
    assert UNMET._value.get() == 0
    assert await stored.read(10, ["other"]) == []


async def test_unmet_expectations_behind_the_limit_are_reported(
    committed: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluator_module, "MAX_SERIES", 1)
    written = Written()
    evaluator = ExpectationEvaluator(committed, written)
    written.values = [1, 2, 3, 11]
    await evaluator.evaluate_once()
    digests = [each.digest for each in await PostgresQualityCounts(committed).read_unmet(10)]
    assert len(digests) == 1
    add = (
        "INSERT INTO expectation_count (topic, digest, workspace, dataset, kind, arguments, "
        "mostly, evaluated, failed) VALUES (%s, %s, 'w', 'A', 'first', '{}', 0.9, %s, %s)"
    )
    async with committed.connection() as connection:
        for digest, evaluated, failed in [("met", 10, 1), ("unmet", 10, 2), ("none", 0, 0)]:
            await connection.execute(add, (TOPIC, digest, evaluated, failed))
    with monkeypatch.context() as kept:
        kept.setattr(PostgresQualityCounts, "keep_only", _keep_all)
        with capture_logs() as logged:
            await evaluator.evaluate_once()
    assert UNMET._value.get() == 2
    assert [each["expectation"] for each in logged] == ["first"], "the other one was logged before"
    stored = PostgresQualityCounts(committed)
    unmet = await stored.read_unmet(10)
    assert [each.digest for each in unmet] == ["unmet", *digests]
    assert unmet == [each for each in await stored.read(10) if not each.is_met]


async def _keep_all(self: PostgresQualityCounts, suites: Suites) -> None:
    """Forget nothing."""


async def test_two_processes_do_not_count_a_range_twice(committed: Pool) -> None:
    stored = PostgresQualityCounts(committed)
    suites = await CommittedSuites(committed).read()
    (digest,) = suites[TOPIC].expected
    found = EvaluatedRange(PARTITION, Offset(0), Offset(5), {digest: RowCounts(5, 2)})
    assert await stored.add(found, suites[TOPIC])
    assert not await stored.add(found, suites[TOPIC])
    assert await stored.positions() == {PARTITION: 5}
    (count,) = await stored.read(10)
    assert (count.evaluated, count.failed) == (5, 2)


async def test_counts_of_expectations_that_no_branch_has_are_forgotten(committed: Pool) -> None:
    stored, suites = PostgresQualityCounts(committed), CommittedSuites(committed)
    known = await suites.read()
    (digest,) = known[TOPIC].expected
    found = EvaluatedRange(PARTITION, Offset(0), Offset(5), {digest: RowCounts(5, 2)})
    assert await stored.add(found, known[TOPIC])
    await stored.keep_only(await suites.read())
    assert len(await stored.read(10)) == 1
    async with committed.connection() as connection:
        await connection.execute("UPDATE branch SET target = NULL, serving = NULL")
    assert await suites.read() == {}
    await stored.keep_only({})
    assert (await stored.read(10), await stored.positions()) == ([], {})
