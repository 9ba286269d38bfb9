"""The steps of a program, and the columns that rows need between them."""

from __future__ import annotations

import polars as pl

from fennel_core.hangar.memory import MemoryHangar
from fennel_core.offline.batch_work import StepTools, given_rows, run_steps
from fennel_core.offline.query_steps import ComputeLevel, live_registers, steps_of
from fennel_core.offline.register_types import register_types
from fennel_core.offline.rows import ROW
from fennel_core.offline.scratch import ScratchStore
from tests.laws.offline.queries import given_frame
from tests.laws.offline.worlds import SPECS, Code, job_of, program

JOBS = {job_of(name): spec for name, spec in SPECS.items()}


def names(*outputs: str) -> list[str]:
    return [type(step).__name__ for step in steps_of(program(outputs), JOBS)]


LOOKUP = ["MakeRequests", "ShuffleByKey"]


def test_lookups_with_the_same_keys_share_a_shuffle() -> None:
    assert names("F.v", "F.c", "F.sum") == LOOKUP


def test_an_expression_follows_the_lookup_that_it_reads() -> None:
    assert names("F.plus") == [*LOOKUP, "ComputeLevel"]


def test_answers_of_list_lookups_are_packed_by_row() -> None:
    assert names("F.vs") == [*LOOKUP, "ShuffleByRow", "PackLists"]


def test_a_lookup_of_what_was_looked_up_is_a_second_shuffle() -> None:
    assert names("F.next") == [*LOOKUP, *LOOKUP]


def test_rows_carry_only_registers_that_are_read_later() -> None:
    bound = program(["F.deep"])
    steps = steps_of(bound, JOBS)
    assert [type(step).__name__ for step in steps] == [*LOOKUP, "ComputeLevel", *LOOKUP]
    place = {name: number for name, _, number in (*bound.inputs, *bound.outputs)}
    live = live_registers(bound, steps)
    assert live[-1] == {place["F.deep"]}
    assert live[3] == frozenset(), "the key travels as bytes, not as a register"
    [score] = live[2]
    assert place["F.k"] in live[0], "user code reads the key again"
    assert place["F.k"] not in live[2]
    assert score not in live[1]
    assert all(len(registers) <= 2 for registers in live)


def test_every_register_is_filled_before_it_is_read() -> None:
    bound = program(["F.v", "F.vs", "F.plus", "F.score", "F.pairs", "F.sums", "F.next"])
    steps = steps_of(bound, JOBS)
    given = frozenset(place for _, _, place in bound.inputs)
    assert live_registers(bound, steps)[0] <= given, "the first step makes requests"


def test_rows_may_have_numbers_of_any_type_of_integers() -> None:
    bound = program(["F.now"])
    rows = given_frame([({"F.k": 1, "F.n": 1, "F.ks": [1], "F.ns": [1]}, 5)])
    [made] = run_steps(
        [step for step in steps_of(bound, JOBS) if isinstance(step, ComputeLevel)],
        iter([given_rows(rows.with_columns(pl.col(ROW).cast(pl.UInt32)), bound)]),
        register_types(bound),
        StepTools({}, Code(), lambda: ScratchStore(MemoryHangar)),
    )
    assert made[ROW].dtype == pl.Int64
