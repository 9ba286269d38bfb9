"""A check compares what needs no row that has left history by its age, and says what does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl
import pytest

from fennel_core.integrity.checks import (
    CheckedDataset,
    DatasetCheck,
    DatasetFinding,
    IntegrityVerdict,
)
from fennel_core.integrity.run import run_one
from fennel_core.operators.build import as_lookup_step, build
from fennel_core.operators.spec import AggregateSpec
from fennel_core.vocab.dtypes import Field, Int, Str
from fennel_core.vocab.ids import (
    DatasetName,
    JobId,
    Micros,
    Offset,
    TopicName,
    TopicPartition,
    WorkspaceId,
)
from fennel_core.vocab.schema import Schema
from fennel_core.wire import operators as wire
from tests.support.histories import Change, History, as_frame, run

SECOND = 1_000_000
TOPIC, JOB = TopicName("w.topic.a.1"), JobId("w.job.a.1")
EVENTS = Schema((), (Field("k", Str()),), "t")
OUTPUT = Schema((Field("k", Str()),), (Field("n", Int()),), "t")
NOW = Micros(100 * SECOND)
SLIDING, FOREVER = wire.Sliding(4 * SECOND), wire.Forever()


def count(window: wire.Window) -> AggregateSpec:
    spec = wire.Count("n", window, None, False, False, False)
    return AggregateSpec(EVENTS, ("k",), (spec,), None, True, OUTPUT)


def rows(*times: int) -> list[Change]:
    """Return events of key `a` at these seconds."""
    return [
        Change(0, 1, {"k": "a", "t": at * SECOND, "__pos": b"%03d" % n, "__tombstone": False})
        for n, at in enumerate(times)
    ]


@dataclass
class Archive:
    """A topic of which the rows before `expired` are gone, and a slot that has seen all."""

    changes: Sequence[Change]
    window: wire.Window
    expired: Micros | None = None
    asked: list[int] = field(default_factory=list)

    def expired_to(self, partition: TopicPartition) -> Micros | None:
        return self.expired

    def below(self, partition: TopicPartition, end: Offset, *_: Any) -> Iterator[pl.DataFrame]:
        frame = as_frame(EVENTS, self.changes)
        yield frame.filter(pl.col("t").to_physical() >= (self.expired or 0))

    def between(self, *_: Any) -> Iterator[pl.DataFrame]:
        return iter(())

    async def owners(self, jobs: Sequence[str]) -> Mapping[tuple[str, int], str]:
        return {(JOB, 0): "a.sock"}

    async def call(self, address: str, op: str, argument: Any) -> Any:
        step = build(count(self.window))
        state, _ = run(step, History([list(self.changes)]), EVENTS, canonical=False)
        lookups = as_lookup_step(step)
        assert lookups is not None
        self.asked += argument["as_of"]
        answers = lookups.lookup(state, argument["keys"], argument["as_of"])
        return {"rows": list(answers), "offsets": {TOPIC: 1}}

    async def check(self, known: frozenset[bytes] = frozenset()) -> DatasetFinding:
        made = DatasetCheck(self, self, keys=5, seed=1, now=NOW)  # type: ignore[arg-type]  # both
        spec = count(self.window)
        name = DatasetName("Totals")
        checked = CheckedDataset(WorkspaceId("w"), name, JOB, TOPIC, spec, 1, known)
        unused: Any = None
        return await run_one(made, unused, checked)


@pytest.mark.parametrize("times", [(1, 3, 60, 97), (1, 3, 11, 12), (1, 12), (1, 11, 13, 98, 99)])
async def test_a_window_is_compared_from_the_time_on_that_needs_no_removed_row(
    times: tuple[int, ...],
) -> None:
    archive = Archive(rows(*times), SLIDING, Micros(10 * SECOND))
    finding = await archive.check()
    assert finding.verdict is IntegrityVerdict.AGREES, str(finding)
    assert min(archive.asked) >= 20 * SECOND, "ten, and twice five"


async def test_a_difference_is_found_all_the_same() -> None:
    archive = Archive(rows(1, 97, 98), SLIDING, Micros(10 * SECOND))
    archive.changes = rows(1, 97, 98)
    whole = archive.below

    def without_one(*at: Any) -> Iterator[pl.DataFrame]:
        return (frame.head(1) for frame in whole(*at))

    archive.below = without_one  # type: ignore[method-assign]  # a state that saw a row more
    assert (await archive.check()).verdict is IntegrityVerdict.DIFFERS


@pytest.mark.parametrize(("window", "expired"), [(FOREVER, 10), (SLIDING, 91)])
async def test_what_needs_removed_rows_is_not_compared(window: wire.Window, expired: int) -> None:
    finding = await Archive(rows(1, 97), window, Micros(expired * SECOND)).check()
    assert finding.verdict is IntegrityVerdict.SKIPPED
    assert "rows older than `history` were removed" in str(finding)


async def test_a_key_without_a_row_that_is_left_is_not_compared() -> None:
    key = b"\x91\xa1a"
    for times in ((1, 3), (1, 3, 150)):
        archive = Archive(rows(*times), SLIDING, Micros(10 * SECOND))
        finding = await archive.check(frozenset({key}))
        assert finding.differing == 0, str(finding)
        assert archive.asked == []
        assert (finding.keys, finding.compared) == (0, set()), "an alarm of it stays"
    whole = await Archive(rows(1, 3), SLIDING).check(frozenset({key}))
    assert whole.verdict is IntegrityVerdict.AGREES
