"""Laws: offline equals online as of the time of each row, and the naive oracle, for all histories,
programs, times and chunks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fennel_core.executors.client import Callbacks
from fennel_core.hangar.memory import MemoryHangar
from fennel_core.offline import lookup_rounds
from fennel_core.offline.code_lookups import MOST_ANSWER_BYTES
from fennel_core.offline.memory import MemoryRun, OfflineInputs
from fennel_core.offline.rows import ROW
from fennel_core.offline.scratch import ScratchStore
from fennel_core.query.columns import QueryColumn
from fennel_core.query.datasets import ExtractorLookups, NotLaterThan
from fennel_core.query.errors import QueryError
from fennel_core.query.execution import ProgramRunner, QueryRequest
from fennel_core.query.program import QueryProgram
from tests.laws.offline.queries import (
    FAILED,
    QUERIES,
    Query,
    expected,
    given_frame,
    plain_rows,
)
from tests.laws.offline.worlds import (
    GIVEN,
    SPECS,
    TYPES,
    Code,
    OnlineCode,
    StateLookups,
    World,
    job_of,
    program,
    tables,
    worlds,
)

FEW_BYTES = 400
"""Of answers: enough for what one row looks up, and too few for the rows of a query."""


def offline(
    world: World,
    bound: QueryProgram,
    queries: Sequence[Query],
    chunk: int,
    answer_bytes: int = MOST_ANSWER_BYTES,
) -> list[Any]:
    inputs = OfflineInputs(
        {job_of(name): spec for name, spec in SPECS.items()}, world.versions(), world.erasures()
    )
    made, failures = MemoryRun(
        bound,
        inputs,
        Code(),
        lambda: ScratchStore(MemoryHangar, limit_bytes=200),
        chunk,
        answer_bytes,
    ).run(given_frame(queries))
    assert made[ROW].to_list() == list(range(len(queries)))
    failed = set(failures[ROW].to_list())
    assert len(failed) == failures.height, "a row fails once"
    return plain_rows(made, [name for name, _, _ in bound.outputs], failed)


def online(world: World, bound: QueryProgram, queries: Sequence[Query]) -> list[Any]:
    """Return what the online path returns for each row alone, with its time as the clock."""
    states = StateLookups(world)
    runner = ProgramRunner(states, OnlineCode())  # type: ignore[arg-type]  # have the methods

    async def one(row: dict[str, Any], at: int) -> Any:
        given_columns = {name: QueryColumn(TYPES[name], [row[name]]) for name in GIVEN}
        request = QueryRequest(given_columns, 1, at)
        lookups = ExtractorLookups(states, tables(), NotLaterThan(at), request.outcome)
        try:
            columns = await runner.run(bound, request, Callbacks(lookup=lookups))
        except QueryError:
            return FAILED
        return [column.values[0] for column in columns]

    async def every() -> list[Any]:
        return [await one(row, at) for row, at in queries]

    return asyncio.run(every())


def plain(rows: list[Any]) -> list[Any]:
    """Lists and tuples are one thing here."""
    return [
        row if row == FAILED else [list(v) if isinstance(v, tuple) else v for v in row]
        for row in rows
    ]


@settings(
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    st.data(),
    worlds(),
    QUERIES,
    st.sampled_from([1, 2, 3, 5, 1000]),
)
def test_offline_is_what_a_query_as_of_that_time_returns(
    data: st.DataObject, made: tuple[World, list[str]], queries: list[Query], chunk: int
) -> None:
    world, features = made
    outputs = data.draw(st.lists(st.sampled_from(features), min_size=1, max_size=6, unique=True))
    bound = program(outputs)

    found = offline(world, bound, queries, chunk)

    assert found == plain(online(world, bound, queries))
    assert found == [expected(world, outputs, row, at) for row, at in queries]


@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    worlds("Users", "Pairs") | worlds("Users", "Totals"),
    st.sampled_from(["F.code", "F.total", "F.pair", "F.after", "F.loop", "F.many"]),
    QUERIES,
    st.sampled_from([2, 5, 1000]),
    st.sampled_from([MOST_ANSWER_BYTES, FEW_BYTES]),
)
def test_code_looks_up_what_it_would_have_found_at_that_time(
    made: tuple[World, list[str]],
    output: str,
    queries: list[Query],
    chunk: int,
    answer_bytes: int,
) -> None:
    world, outputs = (
        made[0],
        ["F.friend", "F.earlier", "F.later", "F.dedupe", "F.broadcast", output],
    )
    bound = program(outputs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lookup_rounds, "ENCODED_BYTES", answer_bytes // 4)
        found = offline(world, bound, queries, chunk, answer_bytes)

    assert found == plain(online(world, bound, queries))
    assert found == [expected(world, outputs, row, at) for row, at in queries]
