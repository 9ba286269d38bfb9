"""User code that looks datasets up: which calls are made, what is asked for, and what fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import count

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fennel_core.executors.calls import ExtractCall
from fennel_core.hangar.memory import MemoryHangar
from fennel_core.offline import code_lookups, extractors
from fennel_core.offline.batch_work import StepTools
from fennel_core.offline.code_lookups import (
    MOST_ANSWER_BYTES,
    Answers,
    CallLookups,
    code_datasets,
)
from fennel_core.offline.errors import CallInterrupted
from fennel_core.offline.extractors import CALL_ROWS, MOST_ROUNDS, ROUNDS_TOGETHER, extract
from fennel_core.offline.lookup_rounds import (
    ANSWER_TYPES,
    DONE,
    Cut,
    SmallerParts,
    batch_rows,
    call_batches,
    done_rows,
)
from fennel_core.offline.query_steps import CallInRounds
from fennel_core.offline.rows import AT, REASON, ROW, register
from fennel_core.offline.scratch import ScratchStore
from fennel_core.query import datasets
from fennel_core.query.lookups import row_bytes
from fennel_core.query.program import BoundExtractor
from fennel_core.vocab.dtypes import Field, Int
from fennel_core.vocab.keys import key_bytes
from tests.laws.offline.looking_code import Ask, Rows, failure
from tests.laws.offline.worlds import SPECS, USERS, job_of, tables
from tests.support.each_row import EachRow
from tests.support.featuresets import CODE

CALL = ExtractCall(CODE, "F", "e", (Field("F.k", Int()),), (Field("F.v", Int()),), ("Users",))
STEP = BoundExtractor(CALL, (0,), ((0, 1),), {USERS.name: tables()[USERS.name]})
ROUNDS = CallInRounds(
    (STEP,), code_datasets((STEP,), {job_of(name): spec for name, spec in SPECS.items()})
)
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


def known(*rows: tuple[int, int, int], most_bytes: int = MOST_ANSWER_BYTES) -> Answers:
    """Return answers: the value of a user as of a time. Each has four bytes."""
    found = {(key(k), t): row_bytes([v, []]) for k, t, v in rows}
    return Answers({USERS.name: found}, most_bytes)


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


def test_rows_whose_answers_are_too_large_for_a_call_are_called_apart() -> None:
    calling = Calling(value)
    answers = known(*((k, 10, k) for k in range(8)), most_bytes=9)
    rows, failures = extract(batch(*((10, k) for k in range(8))), STEP, calling, answers)
    assert rows[register(1)].to_list() == list(range(8))
    assert (failures.height, asked(answers)) == (0, [])
    assert calling.calls == [8, 4, 2, 2, 4, 2, 2]


def test_a_row_that_code_asks_for_too_often_counts_each_time() -> None:
    answers = known((1, 10, 7), most_bytes=9)
    rows, _ = extract(batch(*[(10, 1)] * 5), STEP, calling := Calling(value), answers)
    assert (rows.height, calling.calls) == (5, [5, 2, 3, 1, 2])


def test_a_row_whose_answers_are_too_large_fails_by_name() -> None:
    async def code(rows: Rows, ask: Ask) -> list[int]:
        for _ in range(3 if (10, 2) in rows else 1):
            with suppress(CallInterrupted):
                await value(rows, ask)
        return await value(rows, ask)

    answers = known((1, 10, 7), (2, 10, 8), most_bytes=11)
    rows, failures = extract(batch((10, 1), (10, 2)), STEP, Calling(code), answers)
    assert (rows[ROW].to_list(), failures[ROW].to_list()) == ([0], [1]), "it was caught in vain"
    assert "`F.e`: what its lookups find for one row has more than 11 bytes" in failures[REASON][0]


def frame_of(rows: Sequence[int], answers: Sequence[tuple[int, bytes | None]]) -> pl.DataFrame:
    """Return rows with these numbers, and answers with the numbers of their parts."""
    own = batch(*[(10, 0)] * len(rows)).with_columns(pl.Series(ROW, rows, dtype=pl.Int64))
    found = pl.DataFrame(
        [(row, 0, b"key", 10, answer) for row, answer in answers],
        schema=dict(ANSWER_TYPES),
        orient="row",
    )
    nothing = {REASON: pl.String(), DONE: pl.Boolean()}
    return pl.concat([own, found, pl.DataFrame(schema=nothing)], how="diagonal").sort(ROW)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 4), st.integers(1, 40))
def test_a_batch_with_too_large_answers_is_cut(failed: int, frame_rows: int) -> None:
    """However its frames are cut; and the next batch is called."""
    whole = frame_of(range(10, 30), [(10, b"7" * 10)] * 9 + [(20, b"7" * 10)])
    reasons = pl.when(pl.col(ROW) < 10 + failed).then(pl.lit("failed")).alias(REASON)
    tools = StepTools({}, Calling(value), lambda: ScratchStore(MemoryHangar), answer_bytes=50)
    frames = whole.with_columns(reasons).iter_slices(frame_rows)
    first, second = call_batches(frames, ROUNDS, Cut(10), tools, number=1)
    assert first.smaller == SmallerParts(1, 2), "half of what would fit on average"
    assert (first.rows[ROW].to_list(), first.answers.height) == (list(range(10, 20)), 0)
    assert first.requests == {}
    assert (second.smaller, second.rows.height) == (None, 10)
    assert second.requests, "it has asked for more"


def test_a_batch_that_can_be_cut_no_more_before_the_last_round_fails_by_name() -> None:
    tools = StepTools({}, Calling(value), lambda: ScratchStore(MemoryHangar), answer_bytes=50)
    frames = frame_of([2, 3], [(2, b"7" * 60)]).iter_slices()
    (called,) = call_batches(frames, ROUNDS, Cut(2), tools, number=MOST_ROUNDS)
    assert called.smaller is None
    assert called.rows[REASON].null_count() == 0


def test_a_row_alone_whose_answers_are_too_large_fails_by_name() -> None:
    tools = StepTools({}, Calling(value), lambda: ScratchStore(MemoryHangar), answer_bytes=50)
    frames = frame_of([3, 4], [(3, b"7" * 60), (4, b"7")]).iter_slices()
    failed, other = call_batches(frames, ROUNDS, Cut(2, {1: 1, 2: 1}), tools, number=3)
    assert (failed.smaller, failed.requests) == (None, {})
    assert failed.rows[REASON][0] == (
        "what code looks up for this row has more than 50 bytes. Ask for fewer or smaller rows"
    )
    assert other.rows[REASON].to_list() == [None]


@settings(deadline=None)
@given(st.integers(1, 9), st.dictionaries(st.integers(0, 5), st.integers(1, 9)))
def test_parts_are_inside_of_batches(rows: int, parts: dict[int, int]) -> None:
    cut = Cut(rows).smaller(SmallerParts(batch, part) for batch, part in parts.items())
    numbers = pl.Series(range(50), dtype=pl.Int64)
    first = cut.first(numbers)
    assert (first // rows == numbers // rows).all(), "each part is of one batch"
    assert (first <= numbers).all()
    assert cut.first(first).equals(first), "a part begins with its first row"
    sizes = {n // rows: first.filter(first == n).len() for n in first}
    assert all(size <= parts.get(batch, rows) for batch, size in sizes.items())
    assert cut.smaller([SmallerParts(0, 99)]).parts.get(0, rows) <= rows, "never larger again"


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
