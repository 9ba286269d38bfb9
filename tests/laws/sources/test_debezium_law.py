"""After any changes of a table, the dataset has its rows, however its events are read."""

import asyncio
import json
from dataclasses import replace

import polars as pl
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from fennel_core.admission.source_replay import replay_requests
from fennel_core.admission.validator import RowKind, Validator
from fennel_core.blueprints.spec import SourceBinding
from fennel_core.vocab.dtypes import Field, Str
from fennel_core.vocab.versions import IS_TOMBSTONE, POS, decode
from fennel_core.wire import expr as e
from fennel_core.wire.connectors import Cdc, EvalExpr
from tests.support.ingest_world import NoExecutors, catalog
from tests.support.source_world import RAW, SourceWorld, batch, stream_source
from tests.support.table_changes import changes, table_and_events

TOPIC = "w.topic.users.1"
DEBEZIUM = stream_source(cdc=Cdc.DEBEZIUM, disorder_us=0)


def content(versions: pl.DataFrame) -> dict[str, int]:
    """Recompute: the version of each key that is last in (time, position)."""
    last = versions.sort("at", POS).group_by("user", maintain_order=True).last()
    return {row["user"]: row["age"] for row in last.rows(named=True) if not row[IS_TOMBSTONE]}


def versions(sources: SourceWorld) -> pl.DataFrame:
    found = [
        decode(record.value)
        for (topic, _), records in sources.world.log.items()
        if topic == TOPIC
        for record in records
    ]
    return pl.concat(found) if found else pl.DataFrame()


async def written(events: list, cuts: list[int], of: SourceBinding = DEBEZIUM) -> SourceWorld:
    sources = SourceWorld()
    sources.world.commit(main=catalog(of))
    writer, start = sources.writer(), 0
    for end in [*sorted(c for c in cuts if c < len(events)), len(events)]:
        if end > start:
            await writer.write(batch(events[start:end], first=start))
            start = end
    await sources.world.close()
    return sources


async def replayed(sources: SourceWorld, of: SourceBinding = DEBEZIUM) -> pl.DataFrame:
    """Return the versions that a later dataset computes from the raw requests."""
    validator = Validator(NoExecutors(), None)  # type: ignore[arg-type]  # no user code
    groups = await replay_requests(validator, of, sources.world.raw(RAW), ())
    frames = [
        rows.frame.with_columns(
            pl.Series(POS, group.positions.take(pa.array(rows.numbers)), dtype=pl.Binary),
            pl.lit(value=rows.kind is RowKind.DELETE).alias(IS_TOMBSTONE),
        )
        for group in groups
        for rows in group.good
    ]
    return pl.concat(frames) if frames else pl.DataFrame()


@settings(deadline=None)
@given(changes(), st.integers(0, 14), st.lists(st.integers(1, 20), max_size=4))
def test_the_dataset_has_the_rows_of_the_table(history, snapshot, cuts) -> None:
    table, events = table_and_events(history, snapshot)
    sources = asyncio.run(written(events, cuts))
    assert sources.world.rows("w.dead.1") == []
    found = versions(sources)
    assert (content(found) if len(found) else {}) == table
    again = asyncio.run(replayed(sources))
    columns = ["user", "age", "at", POS, IS_TOMBSTONE]
    assert len(again) == len(found)
    if len(found):
        assert again.select(columns).sort(POS).equals(found.select(columns).sort(POS))


TOWNS = replace(
    DEBEZIUM,
    source=replace(
        DEBEZIUM.source, where=EvalExpr(e.IsNull(e.Ref("town")), (Field("town", Str()),))
    ),
)
"""Reads a column that is not optional: a batch without it is refused, a row without it is not."""


@settings(deadline=None)
@given(
    changes(),
    st.lists(st.booleans(), min_size=30, max_size=30),
    st.lists(st.integers(1, 20), max_size=8),
)
def test_a_recomputation_judges_rows_of_any_shape_as_they_were(history, shapes, cuts) -> None:
    """A table gets and loses a column; what a batch lacks is decided by the batch alone."""
    _, events = table_and_events([replace(each, wrapped=False) for each in history])
    for number, (message, has_town) in enumerate(zip(events, shapes, strict=False)):
        made = None if message is None else json.loads(message)
        if made is not None and has_town:
            for image in ("before", "after"):
                made[image] = made[image] and made[image] | {"town": "rome"}
            events[number] = json.dumps(made).encode()
    sources = asyncio.run(written(events, cuts, TOWNS))
    found, again = versions(sources), asyncio.run(replayed(sources, TOWNS))
    assert len(again) == len(found)
    if len(found):
        columns = ["user", "age", "at", POS, IS_TOMBSTONE]
        assert again.select(columns).sort(POS).equals(found.select(columns).sort(POS))


@settings(deadline=None)
@given(changes(), st.lists(st.integers(1, 20), max_size=4))
def test_how_events_are_cut_into_batches_changes_no_version(history, cuts) -> None:
    _, events = table_and_events(history)
    rows = [
        found.drop(POS).rows() if len(found := versions(asyncio.run(written(events, each)))) else []
        for each in ([], cuts)
    ]
    assert sorted(rows[0], key=repr) == sorted(rows[1], key=repr)
