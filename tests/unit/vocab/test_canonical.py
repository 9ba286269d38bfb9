"""The canonical encoding: one value, one text, under names that Python does not choose."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fennel_core.vocab.canonical import Stored, StoredNames
from fennel_core.vocab.errors import StoredNameUnknown, StoredValueMismatch


class Color(Enum):
    RED = 1
    NAVY = 2


@dataclass(frozen=True)
class Point:
    x: object
    northing: object
    label: str = ""


@dataclass(frozen=True)
class Stranger:
    x: int


POINT = Stored("point", Point, "x y=northing label")
NAMES = StoredNames([POINT, Stored("color", Color, "red dark=NAVY")])
scalars = st.none() | st.booleans() | st.integers() | st.text() | st.binary()
values = st.recursive(
    scalars | st.sampled_from(Color) | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.builds(Point, inner, inner)
        | st.frozensets(scalars, max_size=3)
    ),
    max_leaves=8,
)


def test_values_are_written_under_their_stored_names() -> None:
    point = Point(1, (Color.NAVY, b"\xff"), "a")
    assert NAMES.dumps(point) == (
        b'["point",{"label":"a","x":1,"y":["tuple",["enum","color","dark"],["bytes","ff"]]}]'
    )


@given(values)
def test_loading_returns_the_value_that_was_dumped(value: object) -> None:
    assert NAMES.loads(NAMES.dumps(value), object) == value


@given(values, values)
def test_digests_are_equal_exactly_when_the_bytes_are(one: object, other: object) -> None:
    equal = NAMES.dumps(one) == NAMES.dumps(other)
    assert (NAMES.digest(one) == NAMES.digest(other)) == equal


def test_a_field_that_was_not_stored_takes_its_default() -> None:
    assert NAMES.loads('["point",{"x":1,"y":2}]', Point) == Point(1, 2, "")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('["vector",{"x":1}]', "the class `vector`"),
        ('["point",{"x":1,"y":2,"z":3}]', "the member `point.z`"),
        ('["point",{"x":1,"northing":2}]', "the member `point.northing`"),
        ('["enum","color","NAVY"]', "the member `color.NAVY`"),
        ('["enum","shade","dark"]', "the class `shade`"),
        ('["point",{"x":1}]', "a value without all fields of `point`"),
    ],
)
def test_an_unknown_stored_name_is_refused_with_the_next_action(text: str, name: str) -> None:
    with pytest.raises(StoredNameUnknown, match=f"{name}.*make clean"):
        NAMES.loads(text, object)


@pytest.mark.parametrize("text", ["", "[", "[1]", '["bytes","xy"]', '["point"]', b"\xff"])
def test_malformed_bytes_are_refused(text: str | bytes) -> None:
    with pytest.raises(StoredValueMismatch):
        NAMES.loads(text, object)


def test_a_value_of_another_class_is_refused() -> None:
    with pytest.raises(StoredValueMismatch, match="expected a Color, found a Point"):
        NAMES.loads(NAMES.dumps(Point(1, 2)), Color)


@pytest.mark.parametrize("value", [Stranger(1), [1], {"a": 1}, object()])
def test_only_values_of_the_table_can_be_dumped(value: object) -> None:
    with pytest.raises(TypeError):
        NAMES.dumps(value)


@pytest.mark.parametrize(
    "rows",
    [
        [Stored("point", Point, "x label")],
        [Stored("point", Point, "x y label")],
        [Stored("point", Point, "x x=northing label")],
        [Stored("point", Point, "x y=northing z=northing label")],
        [Stored("color", Color, "red")],
        [Stored("text", str)],
        [POINT, Stored("other", Point, "x y=northing label")],
        [POINT, Stored("point", Stranger, "x")],
        [Stored("tuple", Stranger, "x")],
    ],
)
def test_a_table_that_does_not_fit_its_classes_cannot_be_built(rows: list[Stored]) -> None:
    with pytest.raises(ValueError, match=r"list|neither"):
        StoredNames(rows)
