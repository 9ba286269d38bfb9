"""User code of a job over batches of which some rows fail."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fennel_core.engine.usercode import run_user_code
from fennel_core.executors import protocol
from fennel_core.executors.calls import MOST_EACH_ROWS, EachRowCall, ExecutorCall
from fennel_core.executors.errors import (
    CallFailed,
    ExecutorCrashed,
    ExecutorOutOfMemory,
    ExecutorTimeout,
    ExecutorUnavailable,
    UserCodeFailed,
)
from fennel_core.executors.results import FAILURES
from fennel_core.operators.spec import UserCodeSpec
from fennel_core.vocab.dtypes import Field, Int, Str
from fennel_core.vocab.schema import Schema
from fennel_core.vocab.versions import IS_TOMBSTONE, POS, SIGN
from fennel_core.wire.pycode import PyCode

ROWS = Schema((), (Field("key", Str()), Field("value", Int())), "at")
CODE = PyCode("f", "", "", "", "def f(df): ...", (), ())
DOUBLED = UserCodeSpec("assign", CODE, Field("value", Int()), ROWS, ROWS)


def batch(rows: int) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "key": [f"k{n}" for n in range(rows)],
            "value": range(rows),
            "at": pl.Series([0] * rows, dtype=pl.Int64).cast(pl.Datetime("us", "UTC")),
            POS: [n.to_bytes(14, "big") for n in range(rows)],
            SIGN: pl.Series([1] * rows, dtype=pl.Int8),
            IS_TOMBSTONE: pl.Series([False] * rows, dtype=pl.Boolean),
        }
    )


@dataclass
class Doubling:
    """Doubles values; fails on `bad` ones, and has no time for more than `in_time` rows alone."""

    bad: AbstractSet[int]
    in_time: int = MOST_EACH_ROWS
    exchanges: list[int] = field(default_factory=list)

    async def __call__(self, call: ExecutorCall, rows: pl.DataFrame) -> pa.Table:
        self.exchanges.append(len(rows))
        values = rows["value"].to_list()
        failing = [n for n, value in enumerate(values) if value in self.bad]
        if isinstance(call, EachRowCall):
            assert len(rows) <= MOST_EACH_ROWS
            if len(rows) > self.in_time:
                raise ExecutorTimeout("stopped", "D.p")
            found = [(n, protocol.RAISED, f"{values[n]} is bad", "") for n in failing]
            columns = list(zip(*found, strict=True)) or [()] * len(FAILURES)
            return pa.table(
                [pa.array(c, f.type) for c, f in zip(columns, FAILURES, strict=True)],
                schema=FAILURES,
            )
        if failing:
            raise UserCodeFailed(f"{values[failing[0]]} is bad", "D.p", "", "")
        return pa.table({"value": [2 * value for value in values]})


@settings(deadline=None)
@given(st.integers(0, 200), st.sets(st.integers(0, 200)), st.sampled_from([1, 7, 64]))
async def test_the_rows_that_fail_are_dead_and_the_others_go_on(
    rows: int, bad: set[int], in_time: int
) -> None:
    run = Doubling(bad, in_time)
    outcome = await run_user_code(run, DOUBLED, "D.p", batch(rows))

    (emitted,) = outcome.emits or (None,)
    values = [] if emitted is None else emitted.frame["value"].to_list()
    assert values == [2 * n for n in range(rows) if n not in bad]
    dead = [(each.reason, each.frame["value"].to_list()) for each in outcome.dead]
    assert [numbers for _, numbers in dead] == [[n] for n in range(rows) if n in bad]
    assert all(f"{n} is bad" in reason for reason, (n,) in dead)


async def test_code_that_fails_on_every_row_needs_few_exchanges() -> None:
    rows = 10_000
    run = Doubling(frozenset(range(rows)))
    outcome = await run_user_code(run, DOUBLED, "D.p", batch(rows))
    assert len(outcome.dead) == rows
    assert len(run.exchanges) <= 6 * rows / (MOST_EACH_ROWS // 2)


class Failing(Doubling):
    """Calls of each row fail as a whole."""

    failure: CallFailed

    async def __call__(self, call: ExecutorCall, rows: pl.DataFrame) -> pa.Table:
        if isinstance(call, EachRowCall):
            raise self.failure
        return await super().__call__(call, rows)


@pytest.mark.parametrize(
    "failure",
    [
        ExecutorCrashed("died", "D.p"),
        ExecutorOutOfMemory("much", "D.p"),
        UserCodeFailed("its result cannot be read", "D.p", "", ""),
    ],
)
async def test_rows_whose_calls_fail_as_a_whole_are_halved(failure: CallFailed) -> None:
    run = Failing({1, 5})
    run.failure = failure
    outcome = await run_user_code(run, DOUBLED, "D.p", batch(8))
    assert [each.frame["value"].to_list() for each in outcome.dead] == [[1], [5]]
    assert outcome.emits[0].frame["value"].to_list() == [0, 4, 6, 8, 12, 14]


async def test_executors_that_cannot_be_reached_are_no_failure_of_rows() -> None:
    run = Failing({1})
    run.failure = ExecutorUnavailable("gone", "D.p")
    with pytest.raises(ExecutorUnavailable):
        await run_user_code(run, DOUBLED, "D.p", batch(8))


class NeverAlone(Doubling):
    """Fails on a single row, too."""

    async def __call__(self, call: ExecutorCall, rows: pl.DataFrame) -> pa.Table:
        if isinstance(call, EachRowCall):
            self.bad = set(rows["value"])
            try:
                return await super().__call__(call, rows)
            finally:
                self.bad = {5}
        if len(rows) == 1:
            raise UserCodeFailed("it needs two rows", "D.p", "", "")
        return await super().__call__(call, rows)


async def test_code_that_cannot_be_called_with_one_row_loses_the_rows_beside_a_bad_one_only() -> (
    None
):
    outcome = await run_user_code(NeverAlone({5}), DOUBLED, "D.p", batch(64))
    assert sorted(n for each in outcome.dead for n in each.frame["value"]) == [4, 5]
