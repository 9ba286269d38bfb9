"""User code that looks datasets up: which calls are made, what is asked for, and what fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import count

import polars as pl
import pyarrow as pa
import pytest

from fennel_core.executors.calls import ExtractCall
from fennel_core.offline import code_lookups, extractors
from fennel_core.offline.code_lookups import Answers, CallLookups
from fennel_core.offline.errors import CallInterrupted
from fennel_core.offline.extractors import CALL_ROWS, MOST_ROUNDS, ROUNDS_TOGETHER, extract
from fennel_core.offline.lookup_rounds import DONE, batch_rows, done_rows
from fennel_core.offline.rows import AT, REASON, ROW, register
from fennel_core.query import datasets
from fennel_core.query.lookups import row_bytes
from fennel_core.query.program import BoundExtractor
from fennel_core.vocab.dtypes import Field, Int
from fennel_core.vocab.keys import key_bytes
from tests.laws.offline.looking_code import Ask, Rows, failure
from tests.laws.offline.worlds import USERS, tables
from tests.support.each_row import EachRow
from tests.support.featuresets import CODE

CALL = ExtractCall(CODE, "F", "e", (Field("F.k", Int()),), (Field("F.v", Int()),), ("Users",))
STEP = BoundExtractor(CALL, (0,), ((0, 1),), {USERS.name: tables()[USERS.name]})
Code = Callable[[Rows, Ask], Awaitable[list[int]]]


class Calling(EachRow):
    """Runs a function as user code, and counts the rows of its calls."""

    def __init__(self, code: Code) -> None:
        self._code, self.calls = code, list[int]()

    def run(self, call: ExtractCall, rows: pa.Table, lookups: CallLookups | None) -> pl.DataFrame:
        assert lookups is not None
        self.calls.append(len(rows))
        times = pl.Series(rows.column(0)).to_physical().to_list()
        given = list(zip(times, rows.column(1).to_pylist(), strict=True))
        values = asyncio.run(self._code(given, Ask(lookups)))  # type: ignore[arg-type]  # a coroutine
        return pl.DataFrame({call.outputs[0].name: pl.Series(values, dtype=pl.Int64)})


def batch(*rows: tuple[int, int]) -> pl.DataFrame:
    """Return rows of a time and a key each."""
    return pl.DataFrame(
        {
            ROW: pl.Series(range(len(rows)), dtype=pl.Int64),
            AT: pl.Series([t for t, _ in rows], dtype=pl.Int64).cast(pl.Datetime("us", "UTC")),
            register(0): [k for _, k in rows],
        }
    )


def key(k: int) -> bytes:
    return key_bytes(pl.DataFrame({"k": [k]}, schema={"k": pl.Int64}), ["k"])[0]


def known(*rows: tuple[int, int, int]) -> Answers:
    """Return answers: the value of a user as of a time."""
    return Answers({USERS.name: {(key(k), t): row_bytes([v, []]) for k, t, v in rows}})


def asked(answers: Answers) -> list[tuple[bytes, int]]:
    return list(answers.missing.get(USERS.name, {}))


async def value(rows: Rows, ask: Ask) -> list[int]:
    found = await ask("Users", [t for t, _ in rows], {"k": [k for _, k in rows]}, ("v",))
    return [each["v"] for each in found]


def shifted(by: int, *, labelled: bool, part: Sequence[int] | None = None) -> Code:
    """Return code that looks `part` of the rows up at another time, and others not at all."""

    async def code(rows: Rows, ask: Ask) -> list[int]:
        some = [n for n in (range(len(rows)) if part is None else part) if n < len(rows)]
        at = [rows[n][0] + by for n in some]
        keys = {"k": pa.array([rows[n][1] for n in some], pa.int64())}
        await ask("Users", at, keys, (), some if labelled else None)
        return [0] * len(rows)

    return code


def test_rows_whose_answers_are_known_are_done_and_others_ask() -> None:
    calling = Calling(value)
    answers = known((1, 10, 7))
    rows, failures = extract(batch((10, 1)), STEP, calling, answers)
    assert (rows[register(1)].to_list(), failures.height, asked(answers)) == ([7], 0, [])
    rows, failures = extract(batch((10, 1), (20, 1), (20, 1)), STEP, calling, answers)
    assert (rows.height, failures.height) == (0, 0), "all rows of the call wait"
    assert asked(answers) == [(key(1), 20)], "once, and not what is known"


def test_rows_that_fail_before_they_ask_do_not_hold_the_others_up() -> None:
    async def code(rows: Rows, ask: Ask) -> list[int]:
        if any(k == 3 for _, k in rows):
            raise failure("k is 3")
        return await value(rows, ask)

    answers = known((1, 10, 7))
    rows, failures = extract(batch((10, 1), (10, 3), (10, 2)), STEP, Calling(code), answers)
    assert (rows[ROW].to_list(), failures[ROW].to_list()) == ([0], [1])
    assert asked(answers) == [(key(2), 10)]


def test_what_code_does_after_a_lookup_that_was_not_answered_counts_for_nothing() -> None:
    async def code(rows: Rows, ask: Ask) -> list[int]:
        try:
            await value(rows, ask)
        except CallInterrupted:
            raise failure("caught") from None
        return [0] * len(rows)

    answers = known()
    rows, failures = extract(batch((10, 1)), STEP, Calling(code), answers)
    assert (rows.height, failures.height, len(asked(answers))) == (0, 0, 1)


@pytest.mark.parametrize(
    ("code", "calls"),
    [
        (value, [3]),
        (shifted(-5, labelled=True), [3]),
        (shifted(0, labelled=True, part=[1, 2]), [3, 2, 1]),
        (shifted(-20, labelled=False, part=[1, 2]), [3, 2, 1]),
        (shifted(0, labelled=False, part=[1, 2]), [3, 2, 1]),  # whose rows they are is not known
        (shifted(5, labelled=True), [3, 2, 1]),
        (shifted(10, labelled=True, part=[0]), [3, 2, 1]),  # the time of another row
    ],
)
def test_rows_are_called_by_time_only_where_a_row_might_see_later_ones(
    code: Code, calls: list[int]
) -> None:
    calling = Calling(code)
    rows = batch((10, 1), (20, 2), (10, 3))
    answers = known()
    extract(rows, STEP, calling, answers)
    assert calling.calls == calls
    assert max(time for _, time in asked(answers)) <= 20
    assert (key(1), 20) not in answers.missing[USERS.name], "its row is of time 10"


def test_new_labels_do_not_make_a_key_one_of_a_later_row() -> None:
    calling = Calling(shifted(10, labelled=False, part=[1]))
    answers = known()
    extract(batch((20, 1), (10, 2), (10, 3)), STEP, calling, answers)
    assert calling.calls == [3, 1, 2], "label 0 is not the first row"
    assert asked(answers) == [(key(3), 10)], "not as of the time of the first row"


def test_code_that_never_asks_for_the_same_rows_fails_after_the_last_round() -> None:
    numbers = count(100)

    async def code(rows: Rows, ask: Ask) -> list[int]:
        keys = [next(numbers) if k == 9 else k for _, k in rows]
        return await value([(t, key) for (t, _), key in zip(rows, keys, strict=True)], ask)

    answers = known((1, 10, 7), (2, 10, 8))
    given = batch((10, 1), (10, 9), (10, 2))
    rows, failures = extract(given, STEP, Calling(code), answers, number=MOST_ROUNDS)
    assert rows[register(1)].to_list() == [7, 8], "those that have their rows are done"
    [reason] = failures[REASON]
    assert "Extractor `F.e`: it asks for other rows of `Users` after 64 rounds" in reason
    assert asked(answers) == [], "nothing is read any more"


def test_a_batch_that_asks_for_too_much_fails_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_lookups, "MOST_ANSWERS", 3)
    monkeypatch.setattr(extractors, "MOST_ANSWERS", 3)
    answers = known((1, 10, 7))
    given = batch(*((10, k) for k in range(2, 6)))
    rows, failures = extract(given, STEP, Calling(value), answers)
    assert rows.height == 0
    assert [len(asked(answers)), failures.height] == [2, 2], "as many as fit wait"
    assert "more than 3. Ask for fewer rows" in failures[REASON][0]


def test_a_dataset_that_cannot_be_read_as_of_times_is_refused_as_online() -> None:
    step = BoundExtractor(CALL, (0,), ((0, 1),), {})
    _, failures = extract(batch((10, 1)), step, Calling(value), known())
    assert "Dataset `Users` not found, please ensure it is synced" in failures[REASON][0]


async def looping(rows: Rows, ask: Ask) -> list[int]:
    return [(await ask("Users", [t], {"k": [k]}, ("v",)))[0]["v"] for t, k in rows]


def test_a_loop_over_rows_asks_for_all_of_them_when_they_are_called_alone() -> None:
    given = batch(*((10, k) for k in range(30)))
    answers = known()
    extract(given, STEP, Calling(looping), answers)
    assert len(asked(answers)) == 1, "a call ends with its first lookup that misses"
    extract(given, STEP, Calling(looping), answers, number=ROUNDS_TOGETHER)
    assert len(asked(answers)) == 30


def test_code_that_catches_the_end_of_its_call_asks_for_nothing_more() -> None:
    async def code(rows: Rows, ask: Ask) -> list[int]:
        for other in range(50):
            with suppress(CallInterrupted):
                await ask("Users", [rows[0][0]], {"k": [other]})
        return [0] * len(rows)

    answers = known()
    extract(batch((10, 1)), STEP, Calling(code), answers)
    assert asked(answers) == [(key(0), 10)]


def test_keys_that_no_conversion_expects_fail_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def overflow(*_: object) -> None:
        raise OverflowError("too big to convert")

    monkeypatch.setattr(datasets, "_key_columns", overflow)
    _, failures = extract(batch((10, 1)), STEP, Calling(value), known())
    assert failures[REASON][0] == "the keys cannot be looked up: too big to convert"


def test_rows_that_wait_after_the_last_round_are_no_result() -> None:
    frame = pl.DataFrame({DONE: [True, None], REASON: [None, None]})
    with pytest.raises(AssertionError, match="outputs or a reason"):
        list(done_rows(iter([frame])))


def test_small_queries_have_smaller_batches() -> None:
    assert batch_rows(8_000, 4) == 2_000
    assert batch_rows(0, 4) == batch_rows(10, 4) == 1_000
    assert batch_rows(10**6, 4) == CALL_ROWS
