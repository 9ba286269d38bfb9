"""Which objects a path of a bucket names."""

from __future__ import annotations

import pytest

from fennel_core.graph.s3_paths import UnknownDirective, file_path

KEYS = (
    "in/a.csv",
    "in/a.json",
    "in/x/b.csv",
    "in/x/y/c.csv",
    "in/date=2024-02-29/1.csv",
    "in/date=2024-02-29/h/2.csv",
    "in/date=yesterday/1.csv",
    "in/_SUCCESS",
    "in/_temporary/0/part.csv",
    "in/x/.b.csv.crc",
    "in/",
    "out/a.csv",
)


@pytest.mark.parametrize(
    ("prefix", "suffix", "places"),
    [
        ("in/", "", [0, 1, 2, 3, 4, 5, 6]),
        ("in/", "*", [0, 1]),
        ("in/", "*.csv", [0]),
        ("in/", "**", [0, 1, 2, 3, 4, 5, 6]),
        ("in/", "**/*.csv", [0, 2, 3, 4, 5, 6]),
        ("in/", "*/*.csv", [2, 4, 6]),
        ("in/", "**/y/*", [3]),
        ("in/", "x", [2, 3]),
        ("in/", "date=%Y-%m-%d", [4, 5]),
        ("in/", "date=%Y-%m-%d/*.csv", [4]),
        ("", "in/a.csv", [0]),
        ("in/a.", "", [0, 1]),
        ("in/x", "", [2, 3]),
        ("in/_", "", [7, 8]),
    ],
)
def test_a_path_names_its_objects(prefix: str, suffix: str, places: list[int]) -> None:
    path = file_path(prefix, suffix)
    assert [key for key in KEYS if path.matches(key)] == [KEYS[place] for place in places]


def test_a_prefix_may_end_in_the_middle_of_a_name() -> None:
    path = file_path("orders", "")
    for key in ("orders.csv", "orders_2024.csv", "orders/a.csv", "orders2/x.csv"):
        assert path.matches(key), key
    for key in ("orders/_SUCCESS", "orders_2024/.crc", "orders/"):
        assert not path.matches(key), key
    for hidden in ("_SUCCESS", ".a"):
        assert not file_path("", "").matches(hidden)
        assert not file_path("orders/", "").matches(f"orders/{hidden}")


def test_the_time_of_a_key_is_that_of_all_its_parts() -> None:
    path = file_path("in/", "%Y-%m/day=%d/*")
    assert path.time_us("in/1970-01/day=02/x") == 86_400_000_000
    assert path.time_us("in/1970-02/day=30/x") is None
    assert file_path("in/", "*").time_us("in/x") is None
    # A year that is there twice makes no time; the files are read all the same.
    twice = file_path("in/", "%Y/%Y-%m/*")
    assert twice.matches("in/2024/2024-01/x")
    assert twice.time_us("in/2024/2024-01/x") is None


def test_a_directive_that_is_not_read_back_is_refused() -> None:
    with pytest.raises(UnknownDirective, match="`%U` in `week=%U` is not read"):
        file_path("in/", "week=%U/*")
