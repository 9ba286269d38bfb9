"""What a check does with slots that do not answer, rows that are gone, and wrong answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import polars as pl
import pytest

from fennel_core.connections.errors import SystemUnavailable
from fennel_core.connections.frames import RemoteError
from fennel_core.connections.slot_protocol import RefusalCode
from fennel_core.history.store import HistoryFile
from fennel_core.history.topic_slices import TopicSlice
from fennel_core.integrity.checks import (
    CheckedDataset,
    DatasetCheck,
    DatasetFinding,
    IntegrityVerdict,
)
from fennel_core.integrity.errors import IntegrityDiffers, IntegrityNotChecked, RowsUnreadable
from fennel_core.integrity.run import raise_on_differences, run_one
from fennel_core.integrity.topic_history import cut
from fennel_core.operators.spec import TableSpec
from fennel_core.vocab.dtypes import Field, Int, Str
from fennel_core.vocab.ids import (
    DatasetName,
    JobId,
    Micros,
    Offset,
    PartitionIndex,
    TopicName,
    TopicPartition,
    WorkspaceId,
)
from fennel_core.vocab.schema import Schema
from fennel_core.vocab.versions import IS_TOMBSTONE, POS, SIGN

SCHEMA = Schema((Field("k", Int()),), (Field("v", Str()),), "t")
TOPIC, JOB = TopicName("w.topic.a.1"), JobId("w.job.a.1")
DATASET = CheckedDataset(
    WorkspaceId("w"), DatasetName("Users"), JOB, TOPIC, TableSpec(SCHEMA), partitions=1
)
NOW = Micros(10_000)


def versions(rows: Sequence[tuple[int, str, int]]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "k": [k for k, _, _ in rows],
            "v": [v for _, v, _ in rows],
            "t": pl.Series([t for _, _, t in rows], dtype=pl.Datetime("us", "UTC")),
            POS: [t.to_bytes(4, "big") for _, _, t in rows],
            SIGN: pl.Series([1] * len(rows), dtype=pl.Int8),
            IS_TOMBSTONE: [False] * len(rows),
        }
    )


@dataclass
class Topic:
    """One row per offset."""

    rows: list[tuple[int, str, int]]
    broken: Exception | None = None
    expired: Micros | None = None

    def expired_to(self, partition: TopicPartition) -> Micros | None:
        return self.expired

    def below(
        self,
        partition: TopicPartition,
        end: Offset,
        columns: Sequence[str],
        groups: Sequence[str] = (),
    ) -> Iterator[pl.DataFrame]:
        assert tuple(groups) == ("k",), "the keys of lookups are compared"
        if self.broken is not None:
            raise self.broken
        yield from self.between(partition, Offset(0), end, columns)

    def between(
        self, partition: TopicPartition, first: Offset, end: Offset, columns: Sequence[str]
    ) -> Iterator[pl.DataFrame]:
        assert partition == (TOPIC, 0)
        if first < end:
            yield versions(self.rows[first:end]).select(columns)


@dataclass
class Slot:
    """A slot whose state has applied the next of `offsets` of the topic at each call."""

    topic: Topic
    offsets: list[int]
    wrong: Mapping[int, str] = field(default_factory=dict)
    error: Exception | None = None
    owner: str | None = "a.sock"

    async def owners(self, jobs: Sequence[str]) -> Mapping[tuple[str, int], str]:
        return {} if self.owner is None else {(JOB, 0): self.owner}

    async def call(self, address: str, op: str, argument: Any) -> Any:
        assert (address, op) == ("a.sock", "lookup_at_offsets")
        if self.error is not None:
            raise self.error
        offset = self.offsets.pop(0)
        rows = []
        for key, as_of in zip(argument["keys"], argument["as_of"], strict=True):
            (k,) = msgspec.msgpack.decode(key)
            past = [row for row in self.topic.rows[:offset] if row[0] == k and row[2] <= as_of]
            last = max(past, key=lambda row: row[2], default=None)
            value = last and self.wrong.get(k, last[1])
            rows.append(last and msgspec.msgpack.encode([last[2], value]))
        return {"rows": rows, "offsets": {TOPIC: offset}}


ROWS = [(k, f"v{t}", t) for t, k in enumerate([1, 2, 3, 1, 2, 1])]


async def check(slot: Slot, topic: Topic | None = None) -> DatasetFinding:
    made = DatasetCheck(slot, topic or slot.topic, keys=5, seed=1, now=NOW)
    unused: Any = None
    return await run_one(made, unused, DATASET)


@pytest.mark.parametrize("offsets", [[6, 6], [3, 6], [5, 6], [0, 6]])
async def test_rows_that_are_applied_meanwhile_make_no_difference(offsets: list[int]) -> None:
    finding = await check(Slot(Topic(ROWS), [*offsets]))
    expected = IntegrityVerdict.AGREES if offsets[0] else IntegrityVerdict.SKIPPED
    assert (finding.verdict, finding.differing) == (expected, 0)


async def test_a_wrong_answer_is_named_with_its_key_and_column() -> None:
    finding = await check(Slot(Topic(ROWS), [6, 6], wrong={2: "wrong"}))
    assert finding.verdict is IntegrityVerdict.DIFFERS
    assert {each.shown_key for each in finding.differences} == {"[2]"}
    assert finding.differing_keys == {b"\x91\x02"}
    assert finding.compared == {b"\x91\x01", b"\x91\x02", b"\x91\x03"}
    assert "key [2] as of 10000: `v`" in str(finding)
    assert "recomputed [4, 'v4'], live [4, 'wrong']" in finding.differences[0].with_rows
    assert "wrong" not in str(finding), "alarms name keys and no rows"


async def test_a_row_that_a_state_lost_is_a_difference() -> None:
    state, whole = Topic(ROWS[:4]), Topic(ROWS)
    finding = await check(Slot(state, [6, 6]), whole)
    assert {each.shown_key for each in finding.differences} == {"[1]", "[2]"}


@pytest.mark.parametrize(
    ("slot", "verdict", "why"),
    [
        (Slot(Topic(ROWS), [], owner=None), IntegrityVerdict.UNKNOWN, "no slot owns it"),
        (
            Slot(Topic(ROWS), [], error=RemoteError(RefusalCode.NOT_OWNER, "it is replaying")),
            IntegrityVerdict.SKIPPED,
            "it is replaying",
        ),
        (
            Slot(Topic(ROWS), [], error=RemoteError(RefusalCode.UNKNOWN_OPERATION, "old release")),
            IntegrityVerdict.UNKNOWN,
            "old release",
        ),
        (Slot(Topic(ROWS), [], error=TimeoutError()), IntegrityVerdict.UNKNOWN, "did not respond"),
        (Slot(Topic(ROWS), [6, 2]), IntegrityVerdict.SKIPPED, "was restored"),
        (
            Slot(Topic(ROWS, RowsUnreadable("records are deleted")), [6]),
            IntegrityVerdict.SKIPPED,
            "records are deleted",
        ),
        (
            Slot(Topic(ROWS, SystemUnavailable("Kafka: away")), [6]),
            IntegrityVerdict.UNKNOWN,
            "Kafka: away",
        ),
    ],
)
async def test_what_cannot_be_compared_is_no_finding_about_lookups(
    slot: Slot, verdict: IntegrityVerdict, why: str
) -> None:
    finding = await check(slot)
    assert finding.verdict is verdict
    assert why in str(finding)
    assert finding.compared == set()


def test_differences_are_raised_before_checks_that_could_not_be_carried_out() -> None:
    differs = DatasetFinding(keys=2, rows=9, differing=1)
    unknown, fine = DatasetFinding(failed=True, details=["away"]), DatasetFinding(keys=1)
    with pytest.raises(IntegrityDiffers, match="1 of 3 jobs, seed 7: Users of w"):
        raise_on_differences([(DATASET, each) for each in (unknown, differs, fine)], 7)
    with pytest.raises(IntegrityNotChecked, match="away"):
        raise_on_differences([(DATASET, each) for each in (unknown, fine)], 7)
    raise_on_differences([(DATASET, fine)], 7)


def _file(first: int, after: int) -> HistoryFile:
    return HistoryFile(
        TOPIC,
        PartitionIndex(0),
        Offset(first),
        Offset(after),
        f"file-{first}",
        row_count=after - first,
        size_bytes=100,
        min_ts=Micros(0),
        max_ts=Micros(0),
    )


def _slice(files: Sequence[HistoryFile], tail: int, end: int) -> TopicSlice:
    return TopicSlice((TOPIC, PartitionIndex(0)), tuple(files), Offset(tail), Offset(end), "")


def test_a_slice_is_cut_at_the_offset_of_the_state() -> None:
    whole = _slice([_file(0, 40), _file(40, 75)], 75, 90)
    assert cut(whole, Offset(80), 1000) == _slice([_file(0, 40), _file(40, 75)], 75, 80)
    assert cut(whole, Offset(50), 1000) == _slice([_file(0, 40), _file(40, 75)], 50, 50)
    assert cut(whole, Offset(40), 1000) == _slice([_file(0, 40)], 40, 40)
    assert cut(_slice([], 0, 9), Offset(4), 1000) == _slice([], 0, 4)


def test_nothing_is_recomputed_without_all_rows_or_from_more_than_allowed() -> None:
    for gone in (_slice([_file(10, 40)], 40, 90), _slice([], 5, 9), _slice([_file(0, 4)], 6, 9)):
        with pytest.raises(RowsUnreadable, match="are deleted"):
            cut(gone, Offset(8), 1000)
    with pytest.raises(RowsUnreadable, match="200 bytes, more than a check may read"):
        cut(_slice([_file(0, 40), _file(40, 75)], 75, 90), Offset(90), 199)
