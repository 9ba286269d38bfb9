"""Law: a DataFrame with pushed filters, columns and parts is a naive filter over all rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import datasource as spark

from fennel_core.connections.erasures import ErasedKeys
from fennel_core.dataframes.contents import (
    ALWAYS,
    AggregateRead,
    ChangelogRead,
    ContentRead,
    DatasetRead,
)
from fennel_core.dataframes.part_rows import rows_of_part
from fennel_core.dataframes.parts import TopicInput, parts_of
from fennel_core.dataframes.pushdown import pushed_down
from fennel_core.hangar.memory import MemoryHangar
from fennel_core.operators.build import as_lookup_step, build
from fennel_core.operators.rows import decode
from fennel_core.operators.spec import AggregateSpec
from fennel_core.vocab.dtypes import Field, Float, Int, List, Optional, Str
from fennel_core.vocab.ids import Micros
from fennel_core.vocab.keys import key_bytes
from fennel_core.vocab.schema import Schema
from tests.laws.dataframes.stores import CUTS, MemoryVersions, topic_of
from tests.laws.offline import naive
from tests.laws.offline.worlds import INPUTS, KEYS, ROWS, SECOND, SPECS, World
from tests.support.histories import Change, History, histories, run

KEYED = Schema(
    (Field("k", Str()), Field("n", Int())),
    (Field("v", Optional(Float())), Field("tags", List(Int()))),
    "t",
)
KEYLESS = Schema((), KEYED.fields[:-1], "t")
TIMES = (-5, 0, 1, 300)
ROW = st.fixed_dictionaries(
    {
        "k": st.sampled_from("abcd"),
        "n": st.integers(0, 1),
        "v": st.none() | st.sampled_from([0.5, -1.0]),
        "tags": st.lists(st.integers(0, 2), max_size=2),
        "t": st.sampled_from(TIMES),
        "__tombstone": st.booleans(),
    }
)
EVENT = ROW.map(lambda row: {**row, "__tombstone": False})
ERASED = ErasedKeys(("k",), frozenset(key_bytes(pl.DataFrame({"k": ["d"]}), ("k",))))
COMPARED = {
    spark.EqualTo: lambda value, other: value == other,
    spark.In: lambda value, other: value in other,
    spark.GreaterThan: lambda value, other: value > other,
    spark.GreaterThanOrEqual: lambda value, other: value >= other,
    spark.LessThan: lambda value, other: value < other,
    spark.LessThanOrEqual: lambda value, other: value <= other,
}


def moment(micros: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


def values(column: str) -> st.SearchStrategy[Any]:
    match column:
        case "k":
            return st.sampled_from("abcx")
        case "n":
            return st.integers(-1, 2)
        case "v":
            return st.sampled_from([0.5, -1.0])
        case _:
            return st.sampled_from([-6, *TIMES, 7]).map(moment)


@st.composite
def filters(draw: st.DrawFn) -> spark.Filter:
    """Any comparison that Spark pushes to a source."""
    column = draw(st.sampled_from("knvt"))
    kind = draw(st.sampled_from(sorted(COMPARED, key=lambda each: each.__name__)))
    if kind is spark.In:
        listed = draw(st.lists(st.none() | values(column), min_size=1, max_size=3))
        return spark.In((column,), tuple(listed))
    return kind((column,), draw(values(column)))


def satisfies(row: dict[str, Any], each: Any) -> bool:
    value = row[each.attribute[0]]
    if value is None:
        return False
    value = moment(value) if each.attribute[0] == "t" else value
    return bool(COMPARED[type(each)](value, each.value))


def computed(
    read: DatasetRead,
    asked: Sequence[spark.Filter],
    store: MemoryVersions,
    topic: TopicInput,
    part_rows: int,
) -> Iterator[dict[str, Any]]:
    """Yield what Spark shows: the rows of every part that satisfy the filters it kept."""
    found = pushed_down(read, asked)
    for part in parts_of(read, found.conditions, topic, part_rows):
        for frame in rows_of_part(store, read, part):
            assert tuple(frame.columns) == read.wanted
            for row in frame.with_columns(pl.col(pl.Datetime).to_physical()).to_dicts():
                if all(satisfies(row, each) for each in found.remaining):
                    yield row


def bag(rows: Iterator[dict[str, Any]] | list[dict[str, Any]], wanted: Sequence[str]) -> list[str]:
    return sorted(repr([row[name] for name in wanted]) for row in rows)


@st.composite
def wanted_columns(draw: st.DrawFn, names: Sequence[str], asked: Sequence[Any]) -> tuple[str, ...]:
    """Some columns in any order, with those that filters read, as Spark requires."""
    needed = {each.attribute[0] for each in asked}
    chosen = draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    return tuple(dict.fromkeys([*chosen, *sorted(needed)]))


@settings(deadline=None, max_examples=80)
@given(
    data=st.data(),
    keyed=st.booleans(),
    cuts=CUTS,
    asked=st.lists(filters(), max_size=3),
    as_of=st.sampled_from([-6, -5, 0, 1, 299, ALWAYS]),
    part_rows=st.sampled_from([1, 4, 1000]),
)
def test_a_dataset_as_of_a_time(
    data: st.DataObject,
    keyed: bool,
    cuts: list[int],
    asked: list[spark.Filter],
    as_of: int,
    part_rows: int,
) -> None:
    schema = KEYED if keyed else KEYLESS
    history = data.draw(histories(ROW if keyed else EVENT))
    wanted = data.draw(wanted_columns(schema.names, asked))
    store, topic = topic_of(history, schema, schema.key_names, cuts)
    read = ContentRead(schema, wanted, Micros(as_of), (ERASED,))
    expected = [row for row in history.left_over() if row["t"] <= as_of and row["k"] != "d"]
    if keyed:
        last = {}
        for row in sorted(expected, key=lambda row: (row["t"], row["__pos"])):
            last[row["k"], row["n"]] = row
        expected = [row for row in last.values() if not row["__tombstone"]]
    expected = [row for row in expected if all(satisfies(row, each) for each in asked)]
    found = computed(read, asked, store, topic, part_rows)
    assert bag(found, wanted) == bag(expected, wanted)


@settings(deadline=None, max_examples=50)
@given(
    data=st.data(),
    keyed=st.booleans(),
    cuts=CUTS,
    asked=st.lists(filters(), max_size=2),
    part_rows=st.sampled_from([1, 4, 1000]),
)
def test_a_changelog_is_every_signed_version(
    data: st.DataObject, keyed: bool, cuts: list[int], asked: list[spark.Filter], part_rows: int
) -> None:
    schema = KEYED if keyed else KEYLESS
    history = data.draw(histories(ROW if keyed else EVENT))
    wanted = data.draw(wanted_columns((*schema.names, "__pos", "__sign", "__tombstone"), asked))
    store, topic = topic_of(history, schema, schema.key_names, cuts)
    rows = [{**c.row, "__sign": c.sign} for batch in history.batches for c in batch]
    expected = [row for row in rows if row["k"] != "d" and all(satisfies(row, a) for a in asked)]
    read = ChangelogRead(schema, wanted, (ERASED,))
    assert bag(computed(read, asked, store, topic, part_rows), wanted) == bag(expected, wanted)


@settings(deadline=None, max_examples=60)
@given(
    data=st.data(),
    name=st.sampled_from(["Totals", "ByTime", "Current"]),
    cuts=CUTS,
    at=st.sampled_from([n * SECOND + d for n in (-9, 0, 2, 3, 11, 50) for d in (0, 1)]),
    part_rows=st.sampled_from([1, 4, 1000]),
)
def test_a_terminal_aggregate_has_the_row_that_a_lookup_of_each_key_finds(
    data: st.DataObject, name: str, cuts: list[int], at: int, part_rows: int
) -> None:
    spec = SPECS[name]
    assert isinstance(spec, AggregateSpec)
    history = data.draw(histories(ROWS[name]))
    keys = data.draw(st.none() | st.lists(KEYS, min_size=1, max_size=2))
    erased = data.draw(st.sampled_from([(), (0,)]))
    wanted = data.draw(wanted_columns(spec.output.names, [spark.In(("k",), ())] if keys else []))
    asked = [spark.In(("k",), tuple(keys))] if keys else []
    hidden = key_bytes(pl.DataFrame({"k": erased}, schema={"k": pl.Int64}), ("k",))
    store, topic = topic_of(history, INPUTS[name], spec.keys, cuts)
    read = AggregateRead(spec, wanted, Micros(at), (ErasedKeys(("k",), frozenset(hidden)),))
    every = [k for k in (0, 1) if k not in erased and (keys is None or k in keys)]
    expected = looked_up(name, spec, history, every, at)
    if name == "Totals":
        world = World({name: history}, frozenset())
        for row in expected:
            assert row["s"] == naive.total(world, row["k"], at)
    found = computed(read, asked, store, topic, part_rows)
    assert bag(found, wanted) == bag(expected, wanted)


def looked_up(
    name: str, spec: AggregateSpec, history: History, keys: list[int], at: int
) -> list[dict[str, Any]]:
    """Return the rows that the online path finds, over the state that the live step reaches."""
    step = build(spec)
    state = run(step, history, INPUTS[name], canonical=False)[0] if history.batches else None
    lookup = as_lookup_step(step)
    assert lookup is not None
    encoded = key_bytes(pl.DataFrame({"k": keys}, schema={"k": pl.Int64}), ("k",))
    rows = lookup.lookup(state or MemoryHangar(), encoded, [at] * len(keys))
    names = (spec.output.timestamp, *spec.output.value_names)
    return [
        {"k": key, **dict(zip(names, decode(row), strict=True))}
        for key, row in zip(keys, rows, strict=True)
        if row is not None
    ]


@pytest.mark.parametrize("keyed", [True, False])
def test_filters_and_parts_read_less(keyed: bool) -> None:
    schema = KEYED if keyed else KEYLESS
    rows = [
        {"k": f"key{n:02}", "n": 0, "v": None, "tags": [], "t": n, "__tombstone": False}
        for n in range(64)
    ]
    history = History(
        [
            [
                Change(0, 1, {**row, "__pos": b"\x01" + number.to_bytes(13, "big")})
                for number, row in list(enumerate(rows))[begin : begin + 16]
            ]
            for begin in range(0, 64, 16)
        ]
    )
    store, topic = topic_of(history, schema, schema.key_names, [2, 2])
    read = ContentRead(schema, ("k",), ALWAYS)

    def read_rows(*asked: spark.Filter) -> int:
        store.read_rows = 0
        assert list(computed(ContentRead(schema, ("k", "n", "t"), ALWAYS), asked, store, topic, 99))
        return store.read_rows

    one = (spark.EqualTo(("k",), "key07"), spark.EqualTo(("n",), 0))
    assert read_rows(*one) <= 4, "row groups of other keys are skipped"
    late = (spark.GreaterThan(("t",), moment(60)),)
    assert read_rows(*late) <= 32, "files with earlier rows are skipped"
    assert len(list(parts_of(read, (), topic, 8))) > len(list(parts_of(read, (), topic, 999)))
    assert len(list(parts_of(read, pushed_down(read, one).conditions, topic))) == (
        1 if keyed else 2
    )
