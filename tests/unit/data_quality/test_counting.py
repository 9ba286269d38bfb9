"""Each written row is counted once, whatever dies, and nothing else is counted."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal

import polars as pl
import pytest
from structlog.testing import capture_logs

from fennel_core.connections.errors import SystemUnavailable
from fennel_core.data_quality import counting
from fennel_core.data_quality.counting import EvaluatedRange, evaluate_new_rows
from fennel_core.data_quality.failures import Failures
from fennel_core.data_quality.suites import Suites, TopicExpectations, digest_of, together
from fennel_core.expectations.expected import Expected, read_expectation
from fennel_core.history.file_slices import TopicRecord
from fennel_core.history.kafka import LogBounds
from fennel_core.vocab.dtypes import Int
from fennel_core.vocab.ids import (
    DatasetName,
    Offset,
    PartitionIndex,
    TopicName,
    TopicPartition,
    WorkspaceId,
)
from fennel_core.vocab.versions import IS_TOMBSTONE, POS, SIGN, encode_frame
from fennel_core.wire.entities import Expectation

TOPIC = TopicName("w.topic.a.1")
KIND = "expect_column_values_to_be_between"


def suite(*limits: int) -> TopicExpectations:
    """Return one expectation per limit: `v` is at most that."""
    made = [
        read_expectation(
            Expectation(KIND, json.dumps({"column": "v", "max_value": limit})), {"v": Int()}
        )
        for limit in limits
    ]
    return TopicExpectations(
        WorkspaceId("w"), DatasetName("Users"), {digest_of(each): each for each in made}
    )


def message(rows: list[tuple[int, int, bool]]) -> bytes:
    """Return a message of versions: value, sign, tombstone."""
    return encode_frame(
        pl.DataFrame(
            {
                "v": [None if gone else v for v, _, gone in rows],
                POS: [b"p"] * len(rows),
                SIGN: pl.Series([sign for _, sign, _ in rows], dtype=pl.Int8),
                IS_TOMBSTONE: [gone for *_, gone in rows],
            },
            schema_overrides={"v": pl.Int64},
        )
    )


@dataclass
class Topics:
    """Messages by partition; offset n of each has message n."""

    messages: dict[int, list[bytes]]
    first: int = 0
    names: tuple[TopicName, ...] = (TOPIC,)

    def permitted_bounds(self, topics: Collection[TopicName]) -> Mapping[TopicPartition, LogBounds]:
        return {
            (topic, PartitionIndex(part)): LogBounds(Offset(self.first), Offset(len(found)))
            for part, found in self.messages.items()
            for topic in self.names
            if topic in topics
        }

    def tail(self, partition: TopicPartition, first: Offset, end: Offset) -> Iterator[TopicRecord]:
        for offset in range(first, end):
            yield TopicRecord(partition, Offset(offset), self.messages[partition[1]][offset])


@dataclass
class Counts:
    """The stored counts, whose process may die before or after it adds a range."""

    random: random.Random = field(default_factory=lambda: random.Random(0))  # noqa: S311  # repeatable, and no secret
    faults: float = 0.0
    stored: dict[TopicPartition, Offset] = field(default_factory=dict)
    counted: Counter[tuple[str, str]] = field(default_factory=Counter)

    async def positions(self) -> Mapping[TopicPartition, Offset]:
        return dict(self.stored)

    async def add(self, evaluated: EvaluatedRange, suite: TopicExpectations) -> bool:
        if self.random.random() < self.faults:
            raise SystemUnavailable("Postgres: the process is cut off")
        if self.stored.get(evaluated.source, Offset(0)) != evaluated.first:
            return False
        self.stored[evaluated.source] = evaluated.next_offset
        for digest, counts in evaluated.counts.items():
            self.counted[digest, "evaluated"] += counts.evaluated
            self.counted[digest, "failed"] += counts.failed
        if self.random.random() < self.faults:
            raise SystemUnavailable("Postgres: the response is lost")
        return True

    async def keep_only(self, suites: Suites) -> None:
        """Forget nothing."""


async def test_written_rows_are_counted_and_no_retractions_and_deleted_keys() -> None:
    rows = [(1, 1, False), (9, 1, False), (1, -1, False), (0, 1, True)]
    counts, expected = Counts(), suite(5, 0)
    await evaluate_new_rows(counts, {TOPIC: expected}, Topics({0: [message(rows)]}), Failures())
    five, zero = expected.expected
    assert counts.counted == {
        (five, "evaluated"): 2,
        (five, "failed"): 1,
        (zero, "evaluated"): 2,
        (zero, "failed"): 2,
    }


@pytest.mark.parametrize("seed", range(8))
async def test_each_row_is_counted_once_whatever_dies(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "MESSAGES_PER_PASS", 3)
    monkeypatch.setattr(counting, "ROWS_AT_ONCE", 4)
    chance = random.Random(seed)  # noqa: S311  # repeatable, and no secret
    counts, expected, topics = Counts(chance, 0.3), suite(5), Topics({0: [], 1: []})
    written: list[int] = []
    for _ in range(30):
        values = [chance.randint(0, 9) for _ in range(chance.randint(1, 3))]
        topics.messages[chance.randint(0, 1)].append(message([(v, 1, False) for v in values]))
        written += values
        try:
            await evaluate_new_rows(counts, {TOPIC: expected}, topics, Failures())
        except SystemUnavailable:
            continue
    counts.faults = 0.0
    while await evaluate_new_rows(counts, {TOPIC: expected}, topics, Failures()):
        pass
    (digest,) = expected.expected
    assert counts.counted[digest, "evaluated"] == len(written)
    assert counts.counted[digest, "failed"] == sum(value > 5 for value in written)


async def test_counting_goes_on_behind_records_that_were_deleted() -> None:
    row = message([(1, 1, False)])
    counts, expected = Counts(), suite(5)
    await evaluate_new_rows(counts, {TOPIC: expected}, Topics({0: [row] * 2}), Failures())
    await evaluate_new_rows(counts, {TOPIC: expected}, Topics({0: [row] * 9}, first=6), Failures())
    (digest,) = expected.expected
    assert counts.counted[digest, "evaluated"] == 2 + 3
    await evaluate_new_rows(
        counts, {TOPIC: expected}, Topics({0: [row] * 12}, first=12), Failures()
    )
    assert counts.stored[TOPIC, PartitionIndex(0)] == 12


def test_equal_expectations_of_versions_are_one_and_others_are_together() -> None:
    united = together([{TOPIC: suite(1, 2)}, {TOPIC: suite(2, 3)}])
    assert len(united[TOPIC].expected) == 3
    assert together([{TOPIC: suite()}]) == {}


def panicking() -> Expected:
    """Return an expectation that makes Polars panic, which is not an `Exception`."""

    def rule(rows: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
        literal = pl.lit(Decimal("1e-40"))
        return rows["v"], rows.select(pl.col("v").cast(pl.Decimal(38, 2)) > literal).to_series()

    (expected,) = suite(7).expected.values()
    return replace(expected, kind="panics", rule=rule)


async def test_an_expectation_that_panics_stops_no_other_and_is_logged_once() -> None:
    good, bad = suite(5), panicking()
    both = replace(good, expected={"bad": bad, **good.expected})
    counts, topics, failures = Counts(), Topics({0: [message([(9, 1, False)])]}), Failures()
    assert await evaluate_new_rows(counts, {TOPIC: both}, topics, failures) == 1
    topics.messages[0].append(message([(1, 1, False)]))
    with capture_logs() as logged:
        assert await evaluate_new_rows(counts, {TOPIC: both}, topics, failures) == 1
    assert logged == []
    (digest,) = good.expected
    assert counts.counted[digest, "evaluated"] == 2
    assert counts.counted["bad", "evaluated"] == 0
    assert failures.expectations == {(TOPIC, "bad")}
    await evaluate_new_rows(counts, {TOPIC: good}, topics, failures)
    assert failures.expectations == set()


async def test_a_topic_that_cannot_be_read_stops_no_other() -> None:
    other, expected = TopicName("w.topic.b.1"), suite(5)

    class Damaged(Topics):
        is_damaged = True

        def tail(
            self, partition: TopicPartition, first: Offset, end: Offset
        ) -> Iterator[TopicRecord]:
            for record in super().tail(partition, first, end):
                hurt = self.is_damaged and partition[0] == TOPIC
                yield replace(record, value=b"no batch") if hurt else record

    counts, failures = Counts(), Failures()
    topics = Damaged({0: [message([(1, 1, False)])]}, names=(TOPIC, other))
    suites = {TOPIC: expected, other: expected}
    with capture_logs() as logged:
        for _ in range(2):
            await evaluate_new_rows(counts, suites, topics, failures)
    assert [(each["topic"], each["log_level"]) for each in logged] == [(TOPIC, "error")]
    assert counts.stored == {(other, PartitionIndex(0)): 1}
    assert failures.partitions == {(TOPIC, PartitionIndex(0))}
    topics.is_damaged = False
    assert await evaluate_new_rows(counts, suites, topics, failures) == 1
    assert failures.partitions == set()


async def test_few_bytes_are_held_and_only_columns_that_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[int, list[str]]] = []
    (expected,) = suite(5).expected.values()

    def rule(rows: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
        seen.append((rows.height, rows.columns))
        return expected.rule(rows)

    watched = replace(suite(5), expected={"it": replace(expected, rule=rule)})
    body = message([(1, 1, False)])
    monkeypatch.setattr(counting, "BYTES_AT_ONCE", 2 * len(body))
    counts = Counts()
    await evaluate_new_rows(counts, {TOPIC: watched}, Topics({0: [body] * 5}), Failures())
    assert seen == [(2, ["v"]), (2, ["v"]), (1, ["v"])]
    assert counts.counted["it", "evaluated"] == 5
