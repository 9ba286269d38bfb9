"""Keys of whole columns."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fennel_core.vocab.keys import key_bytes, key_series

EDGES = st.sampled_from(
    [sign * (1 << power) + near for power in range(64) for sign in (-1, 1) for near in (-1, 0, 1)]
).filter(lambda n: -(1 << 63) <= n < 1 << 63)


@given(st.lists(EDGES | st.integers(-300, 300)))
def test_keys_of_a_column_of_integers_are_those_of_its_rows(values: list[int]) -> None:
    frame = pl.DataFrame({"k": values}, schema={"k": pl.Int64})
    assert key_series(frame, ["k"]).to_list() == key_bytes(frame, ["k"])


@pytest.mark.parametrize(
    ("frame", "names"),
    [
        (pl.DataFrame({"k": [1, None]}), ["k"]),
        (pl.DataFrame({"k": ["a", ""]}), ["k"]),
        (pl.DataFrame({"k": [1, 2], "l": [True, False]}), ["k", "l"]),
    ],
)
def test_keys_of_other_columns_are_those_of_their_rows(
    frame: pl.DataFrame, names: list[str]
) -> None:
    assert key_series(frame, names).to_list() == key_bytes(frame, names)
