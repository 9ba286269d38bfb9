"""After any history of a Delta table, the dataset has its rows, wherever readers were cut.

Tables are written by delta-rs: appends, merges, deletes, overwrites, OPTIMIZE and checkpoints.
Readers begin anywhere, stop within files, lose responses, run at once and are killed. The oracle
is the table.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import tempfile
from dataclasses import replace
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fennel_core.admission.source_replay import replay_requests
from fennel_core.admission.validator import RowKind, Validator
from fennel_core.connections.errors import TransactionAborted
from fennel_core.sources import delta_reader, file_rows
from fennel_core.sources.delta_changes import origin_of
from fennel_core.sources.delta_reader import DeltaReader
from fennel_core.sources.errors import ReaderSuperseded, RowsNotWritten
from fennel_core.vocab.versions import IS_TOMBSTONE, POS, decode
from fennel_core.wire.connectors import Cdc
from tests.support.delta_source import UserTable
from tests.support.ingest_world import KEYLESS, NoExecutors, catalog
from tests.support.source_world import (
    LOST_AFTER,
    LOST_BEFORE,
    RAW,
    Fault,
    SourceWorld,
    stream_source,
)

TOPIC = "w.topic.users.1"
ENDLESS_S = 1e9
NATIVE = stream_source(cdc=Cdc.NATIVE, disorder_us=0)
REFUSED = Fault(TransactionAborted("the broker refused"), committed=False)
outcomes = st.sampled_from([None, None, None, LOST_AFTER, LOST_BEFORE, REFUSED])
users = st.sets(st.sampled_from("abcde"), min_size=1)
reads = st.one_of(
    st.tuples(
        st.just("read"),
        st.lists(st.integers(0, 2), min_size=1, max_size=3),
        st.sampled_from([0, 1, 3, math.inf]),
    ),
    st.tuples(st.just("kill"), st.integers(0, 2)),
)
moves = st.one_of(st.tuples(st.just("optimize")), st.tuples(st.just("checkpoint")))
changes = st.one_of(
    st.tuples(st.just("append"), users),
    st.tuples(st.just("put"), users),
    st.tuples(st.just("delete"), users),
    st.tuples(st.just("overwrite"), users, users),
)


def versions(sources: SourceWorld) -> pl.DataFrame:
    found = [
        decode(record.value)
        for (topic, _), records in sources.world.log.items()
        if topic == TOPIC
        for record in records
    ]
    return pl.concat(found) if found else pl.DataFrame()


def content(found: pl.DataFrame) -> dict[str, int]:
    """Recompute: the version of each key that is last in (time, position)."""
    if not len(found):
        return {}
    last = found.sort("at", POS).group_by("user", maintain_order=True).last()
    return {row["user"]: row["age"] for row in last.rows(named=True) if not row[IS_TOMBSTONE]}


async def replayed(sources: SourceWorld) -> pl.DataFrame:
    """Return the versions that a later dataset computes from the raw requests."""
    validator = Validator(NoExecutors(), None)  # type: ignore[arg-type]  # no user code
    groups = await replay_requests(validator, NATIVE, sources.world.raw(RAW), ())
    frames = [
        rows.frame.with_columns(
            pl.Series(POS, group.positions.take(pa.array(rows.numbers)), dtype=pl.Binary),
            pl.lit(value=rows.kind is RowKind.DELETE).alias(IS_TOMBSTONE),
        )
        for group in groups
        for rows in group.good
    ]
    return pl.concat(frames) if frames else pl.DataFrame()


async def run(todo, table, keys, of, turns, faults) -> SourceWorld:
    sources = SourceWorld(turns=lambda: turns.pop() if turns else 0)
    sources.fault = lambda: faults.pop() if faults else None
    sources.world.commit(main=catalog(of))
    alive: dict[int, DeltaReader] = {}
    table_id = table.table_id

    async def read(number: int, rows: float, seconds: float = 0.0) -> int:
        if number not in alive:
            writer = sources.writer(origin=origin_of(table_id))
            clock = itertools.count().__next__
            alive[number] = DeltaReader(writer, table.store(), table_id, keys, clock)
        try:
            return await alive[number].round(seconds, rows)
        except (ReaderSuperseded, RowsNotWritten):
            return -1

    for what, *given_ in todo:
        if what == "kill":
            alive.pop(given_[0], None)
        elif what == "read":
            readers, rows = given_
            await asyncio.gather(*(read(number, rows, ENDLESS_S) for number in set(readers)))
        else:
            getattr(table, what)(*given_)
    faults.clear()
    assert await read(9, math.inf, ENDLESS_S) == 0
    await sources.world.close()
    return sources


def check_history(todo, cut, partitioned, turns, faults) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(delta_reader, "TRANSACTION_ROWS", cut)
        patch.setattr(file_rows, "TRANSACTION_ROWS", cut)
        table = UserTable(Path(folder), partitioned)
        sources = asyncio.run(run(todo, table, ("user",), NATIVE, turns, faults))
    assert sources.world.rows("w.dead.1") == []
    found = versions(sources)
    assert content(found) == table.content()
    again = asyncio.run(replayed(sources))
    assert len(again) == len(found)
    assert content(again) == table.content()


histories = given(
    st.lists(st.one_of(changes, changes, moves, reads), max_size=12),
    st.integers(1, 3),
    st.booleans(),
    st.lists(st.integers(0, 3), max_size=60),
    st.lists(outcomes, max_size=12),
)


@settings(deadline=None, max_examples=15)
@histories
def test_the_dataset_has_the_rows_of_the_table(todo, cut, partitioned, turns, faults) -> None:
    check_history(todo, cut, partitioned, turns, faults)


@pytest.mark.long
@settings(deadline=None, max_examples=400)
@histories
def test_the_dataset_has_the_rows_of_the_table_after_many_histories(
    todo, cut, partitioned, turns, faults
) -> None:
    check_history(todo, cut, partitioned, turns, faults)


GROWING = replace(
    stream_source(cdc=Cdc.NATIVE),
    schema=replace(KEYLESS, values=(*KEYLESS.values[:1], NATIVE.schema.values[0])),
)


@settings(deadline=None, max_examples=10)
@given(
    st.lists(st.one_of(st.tuples(st.just("append"), users), moves, reads), max_size=12),
    st.integers(1, 3),
    st.lists(st.integers(0, 3), max_size=60),
    st.lists(outcomes, max_size=12),
)
def test_each_row_of_a_table_that_grows_enters_once(todo, cut, turns, faults) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(delta_reader, "TRANSACTION_ROWS", cut)
        patch.setattr(file_rows, "TRANSACTION_ROWS", cut)
        table = UserTable(Path(folder))
        sources = asyncio.run(run(todo, table, (), GROWING, turns, faults))
    ages = sorted(row["age"] for row in sources.world.rows(TOPIC))
    assert ages == sorted(table.content().values())
    assert sorted(row["age"] for row in sources.read()) == ages
