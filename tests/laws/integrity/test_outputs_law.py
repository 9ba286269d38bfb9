"""The naive output of each group adds up to what the steps emit, whatever the order, split and
retractions of their inputs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fennel_core.integrity import naive_outputs
from fennel_core.integrity.key_sample import KeySample
from fennel_core.integrity.naive_outputs import (
    TOMBSTONE,
    OutputSpec,
    Row,
    Unmatched,
    closed_by,
    compared_spec,
    inputs_of,
    output_row,
    tombstones_of,
    unmatched,
)
from fennel_core.integrity.naive_values import InputRow
from fennel_core.operators.build import build
from fennel_core.operators.spec import (
    AggregateSpec,
    ChangelogSpec,
    DedupSpec,
    FirstLatestSpec,
    IntervalsSpec,
    JoinSpec,
    MapSpec,
    WindowsSpec,
    has_validity,
    with_validity,
)
from fennel_core.vocab.dtypes import (
    Bool,
    Dtype,
    Field,
    Float,
    Int,
    List,
    Optional,
    Str,
    Struct,
    Timestamp,
)
from fennel_core.vocab.schema import Schema
from fennel_core.vocab.versions import IS_TOMBSTONE, POS
from fennel_core.wire import operators as wire
from fennel_core.wire.operators import Hopping, Session, Tumbling
from tests.support.histories import History, as_frame, histories, run

SECOND = 1_000_000
EVENTS = Schema((), (Field("k", Str()), Field("x", Int()), Field("paid", Timestamp())), "t")
KEYED = Schema((Field("k", Str()),), (Field("v", Optional(Int())),), "t")
KEYED_BY_ID = Schema((Field("id", Int()),), (Field("k", Str()), Field("v", Optional(Int()))), "t")
RIGHT = Schema(
    (Field("k", Str()),), (Field("v", Optional(Int())), Field("v2", Optional(Int()))), "ts"
)
JOINED_TABLE = Schema(KEYED.keys, (*KEYED.values, Field("v2", Optional(Int()))), "t")
JOINED_BY_VALUE = Schema(KEYED_BY_ID.keys, (*KEYED_BY_ID.values, Field("v2", Optional(Int()))), "t")
WINDOW = Field("w", Struct("Window", (Field("begin", Timestamp()), Field("end", Timestamp()))))
JOINED = Schema(
    (), (*EVENTS.values, Field("v", Optional(Int())), Field("ts", Optional(Timestamp()))), "t"
)
EVENTED = Schema((), (*KEYED.keys, *KEYED.values, Field("flag", Bool())), "t")
LATEST = Schema((Field("k", Str()),), (Field("x", Int()),), "t")
TIMES = st.integers(0, 12).map(lambda half: half * SECOND // 2)
EVENT = st.fixed_dictionaries(
    {"k": st.sampled_from("ab"), "x": st.integers(0, 2), "t": TIMES, "paid": TIMES}
)
VERSION = st.fixed_dictionaries(
    {
        "k": st.sampled_from("ab"),
        "t": TIMES,
        "ts": TIMES,
        "v": st.none() | st.integers(0, 3),
        "v2": st.none() | st.integers(0, 3),
        "__tombstone": st.sampled_from([False, False, True]),
    }
).map(lambda row: {**row, "v": None, "v2": None} if row["__tombstone"] else row)
VALID = st.tuples(
    st.fixed_dictionaries(
        {
            "id": st.integers(0, 1),
            "k": st.sampled_from("ab"),
            "t": TIMES,
            "v": st.none() | st.integers(0, 3),
        }
    ),
    st.none() | st.integers(0, 8),
).map(lambda r: {**r[0], "__valid_to": r[1] and r[0]["t"] + r[1] * SECOND // 2})


def join(low: int | None, high: int, *, inner: bool) -> JoinSpec:
    return JoinSpec(EVENTS, RIGHT, ("k",), ("v", "ts"), inner, low, high, JOINED)


def emitted(rows: Schema, along: str | None, *specs: tuple[wire.Spec, Dtype]) -> AggregateSpec:
    fields = tuple(Field(one.name, dtype) for one, dtype in specs)
    output = Schema((Field("k", Str()),), fields, "t")
    return AggregateSpec(rows, ("k",), tuple(one for one, _ in specs), along, False, output)


def windows(window: wire.Window, *specs: tuple[wire.Spec, Dtype]) -> WindowsSpec:
    fields = tuple(Field(one.name, dtype) for one, dtype in specs)
    output = Schema((Field("k", Str()), WINDOW), fields, "t")
    return WindowsSpec(EVENTS, ("k",), "w", window, output, tuple(one for one, _ in specs))


def sums(window: wire.Window, name: str = "s", of: str = "x") -> tuple[wire.Spec, Dtype]:
    return wire.Sum(name, window, of), Int()


def distinct(window: wire.Window) -> tuple[wire.Spec, Dtype]:
    return wire.Distinct("d", window, "x", True), List(Int())


def decayed(window: wire.Window) -> tuple[wire.Spec, Dtype]:
    return wire.ExpDecay("e", window, "x", 3 * SECOND), Float()


HOURS = Hopping(5 * SECOND, 3 * SECOND, SECOND)
INTERVALS = with_validity(KEYED_BY_ID)
LEFT = with_validity(KEYED)
CONTENTS: dict[tuple[str, ...], st.SearchStrategy[dict[str, Any]]] = {
    EVENTS.names: EVENT,
    KEYED.names: VERSION,
    RIGHT.names: VERSION,
    LEFT.names: VALID,
    INTERVALS.names: VALID,
}
SPECS: dict[str, OutputSpec] = {
    "join": join(None, 0, inner=False),
    "bounded join": join(2 * SECOND, SECOND, inner=True),
    "dedup": DedupSpec(EVENTS, ("k",), None, EVENTS),
    "dedup in windows": DedupSpec(EVENTS, ("k", "x"), Tumbling(2 * SECOND, 0), EVENTS),
    "dedup in sessions": DedupSpec(EVENTS, ("k",), Session(SECOND), EVENTS),
    "first": FirstLatestSpec(EVENTS, ("k",), True, LATEST),
    "latest": FirstLatestSpec(EVENTS, ("k",), False, LATEST),
    "intervals": IntervalsSpec(KEYED, with_validity(KEYED)),
    "inserts": ChangelogSpec(KEYED, "flag", False, EVENTED),
    "deletes": ChangelogSpec(KEYED, "flag", True, EVENTED),
    "join of tables": JoinSpec(LEFT, RIGHT, ("k",), ("v2",), False, None, 0, JOINED_TABLE),
    "inner join of tables": JoinSpec(
        INTERVALS, RIGHT, ("k",), ("v2",), True, None, 0, JOINED_BY_VALUE
    ),
    "sums in windows that move": emitted(
        EVENTS, None, sums(wire.Forever()), sums(wire.Sliding(2 * SECOND), "n")
    ),
    "sums by another time": emitted(EVENTS, "paid", sums(wire.Sliding(2 * SECOND))),
    "decayed sums": emitted(EVENTS, None, distinct(wire.Forever()), decayed(wire.Forever())),
    "tumbling": emitted(
        EVENTS, None, sums(Tumbling(2 * SECOND, 0)), distinct(Tumbling(4 * SECOND, 0))
    ),
    "hopping": emitted(
        EVENTS, None, sums(HOURS), sums(wire.ForeverHopping(2 * SECOND, SECOND), "n")
    ),
    "hopping by another time": emitted(EVENTS, "paid", sums(HOURS)),
    "keyed input": emitted(
        INTERVALS, None, sums(wire.Forever(), of="v"), sums(wire.Sliding(2 * SECOND), "n", "v")
    ),
    "keyed input in hops": emitted(
        INTERVALS, None, sums(HOURS, of="v"), sums(Tumbling(2 * SECOND, SECOND), "n", "v")
    ),
    "windows": windows(Tumbling(2 * SECOND, SECOND)),
    "windows with sums": windows(HOURS, sums(HOURS), distinct(HOURS)),
    "sessions": windows(Session(SECOND), sums(Session(SECOND))),
}


def compared(
    spec: OutputSpec, history: History
) -> dict[bytes, tuple[list[list[InputRow]], list[Row]]]:
    """Return, per group, the rows of all inputs and what the step has written for it."""
    inputs = inputs_of(spec)
    schemas = [each.schema for each in inputs]
    _, emitted = run(build(spec), history, *schemas, canonical=False)
    samples = [KeySample(each.columns, 1, 100) for each in inputs]
    for batch in reversed(history.batches):
        source = batch[0].source
        samples[source].add(as_frame(schemas[source], batch))
    by_group = [s.rows_of(each.time) for s, each in zip(samples, inputs, strict=True)]
    output = pl.concat(emitted) if emitted else None
    rows, tombstones = KeySample(inputs[0].columns, 1, 100), KeySample((POS,), 1, 1000)
    ends = isinstance(spec, JoinSpec) and has_validity(spec.left)
    if output is not None:
        rows.add(output.filter(~pl.col(IS_TOMBSTONE)) if ends else output)
        tombstones.add(output.filter(IS_TOMBSTONE) if ends else output.clear())
    written = rows.rows_of(spec.output.timestamp)
    of_left = tombstones.rows_of(spec.output.timestamp)
    found = {}
    for key in {key for each in (*by_group, written) for key in each}:
        of_group = [list(each.get(key, [])) for each in by_group]
        mine = [
            row
            for one in (of_group[0] if ends else [])
            for row in of_left.pop(msgspec.msgpack.encode([tombstones_of(one)]), [])
        ]
        found[key] = of_group, [output_row(row) for row in (*written.get(key, []), *mine)]
    assert not any(of_left.values()), "every tombstone belongs to a left row"
    return found


def watermark(spec: OutputSpec, history: History) -> int | None:
    """Return the largest event time of the rows that were added on input 0."""
    name = inputs_of(spec)[0].schema.timestamp
    added = (c for batch in history.batches for c in batch if c.source == 0 and c.sign > 0)
    return max((change.row[name] for change in added), default=None)


@pytest.mark.parametrize("name", SPECS)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_the_naive_rows_of_all_groups_are_the_integral_of_what_is_emitted(
    name: str, data: Any
) -> None:
    spec = SPECS[name]
    assert compared_spec(spec) is spec
    contents = [CONTENTS[each.schema.names] for each in inputs_of(spec)]
    history = data.draw(histories(*contents, max_rows=8))
    closed = closed_by(spec, watermark(spec, history))
    for inputs, found in compared(spec, history).values():
        assert unmatched(spec, inputs, found, closed) == Unmatched([], [])
        seen = [row for row in found if closed is None or row[spec.output.timestamp] <= closed]
        if not seen:
            continue
        altered = data.draw(st.sampled_from(seen))
        few = [row for row in found if row is not altered]
        assert unmatched(spec, inputs, few, closed).missing, "a row that was lost is missing"
        assert unmatched(spec, inputs, [*found, altered], closed).extra == [altered]
        if spec.output.value_names and not altered[TOMBSTONE]:
            wrong = {**altered, spec.output.value_names[-1]: "wrong"}
            assert unmatched(spec, inputs, [*few, wrong], closed).extra == [wrong]


def test_of_many_results_the_times_of_all_and_the_values_of_some_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(naive_outputs, "COMPUTED_RESULTS", 1)
    spec = SPECS["sums in windows that move"]
    rows = [
        InputRow(at * SECOND, bytes([at]), {"k": "a", "x": 1, "t": at * SECOND}) for at in range(3)
    ]
    missing = unmatched(spec, [rows], []).missing
    written = [{**row, "k": "a", TOMBSTONE: False} for row in missing]
    assert len(written) > 3
    assert unmatched(spec, [rows], written) == Unmatched([], [])
    wrong = [{**row, "s": -1} for row in written]
    assert len(unmatched(spec, [rows], wrong).extra) == 1
    assert len(unmatched(spec, [rows], written[1:]).missing) == 1


def test_terminal_aggregations_and_maps_have_no_output_that_is_compared() -> None:
    emitted = SPECS["sums in windows that move"]
    assert isinstance(emitted, AggregateSpec)
    assert compared_spec(replace(emitted, terminal=True)) is None
    assert compared_spec(MapSpec((EVENTS,), ((),), EVENTS)) is None
