"""The bytes of Arrow rows, counted without decoding a value."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from fennel_core.wire.arrow_sizes import decoded_sizes

LONG = "x" * 1000
INDEXES = pa.array([0, None, 0], pa.int32())
VIEWS = pa.ListViewArray.from_arrays(
    pa.array([0, 0, 0], pa.int32()), pa.array([1, 0, 2], pa.int32()), pa.array([LONG, LONG])
)


@pytest.mark.parametrize(
    ("column", "least"),
    [
        (pa.array([LONG, None, "é"]), [1000, 0, 2]),
        (pa.array([LONG, None, "é"], pa.string_view()), [1000, 0, 2]),
        (pa.array([LONG.encode(), b"", b"a"], pa.large_binary()), [1000, 0, 1]),
        (pa.DictionaryArray.from_arrays(INDEXES, pa.array([LONG])), [1000, 0, 1000]),
        (VIEWS, [1000, 0, 2000]),
        (pa.array([[LONG, "a"], None, [LONG]]), [1001, 0, 1000]),
        (pa.array([[LONG, "a"], None, ["b", "c"]], pa.list_(pa.string(), 2)), [1001, 0, 2]),
        (pa.array([{"a": LONG, "b": 1}, None, {"a": "a", "b": 2}]), [1000, 0, 1]),
        (
            pa.array([[(LONG, "a")], None, [("a", LONG)]], pa.map_(pa.string(), pa.string())),
            [1001, 0, 1001],
        ),
        (pa.array([1, None, 2]), [0, 0, 0]),
    ],
    ids=lambda each: str(each.type) if isinstance(each, pa.Array) else "",
)
@pytest.mark.parametrize("skipped", [0, 1])
def test_a_row_has_at_least_the_bytes_of_its_values(
    column: pa.Array, least: list[int], skipped: int
) -> None:
    found = decoded_sizes(pa.record_batch([column.slice(skipped)], ["c"]))
    overhead = found - np.array(least[skipped:])
    assert (overhead >= 1).all()
    assert (overhead <= 8).all()
