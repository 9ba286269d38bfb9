"""Which objects a path of a bucket names."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fennel_core.graph.s3_paths import PathWindow, UnknownDirective, file_path

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


DAY = 24 * 3_600 * 1_000_000


@pytest.mark.parametrize(
    ("suffix", "period"),
    [
        ("%Y/*", 366 * DAY),
        ("%Y/%b/*", 31 * DAY),
        ("date=%Y-%m-%d/*.csv", DAY),
        ("%y/%j/*", DAY),
        ("%Y/%m/%d/%H/*", DAY // 24),
        ("%Y/%m/%d/%H-%M/*", DAY // 24 // 60),
        ("%Y/%m/%d/%H%M%S.json", DAY // 24 // 3600),
        ("%Y/%m/%d/%I%p/*", DAY),
        ("%Y/%d/*", 366 * DAY),
        ("%m-%d/*", None),
        ("*.csv", None),
    ],
)
def test_a_path_names_a_time_as_long_as_its_smallest_part(suffix: str, period: int | None) -> None:
    assert file_path("", suffix).period_us == period


FORMS = ("%Y", "%Y/%m", "%Y/%b/%d", "%Y/%j", "%Y/%m/%d/%H/%M", "%Y/%H")


@given(st.integers(1_577_836_800, 1_893_456_000), st.sampled_from(FORMS), st.data())
def test_no_file_is_left_out_that_may_have_a_row_of_the_window(
    second: int, form: str, data: st.DataObject
) -> None:
    at = datetime.fromtimestamp(second, UTC)
    path = file_path("", f"{form}/*")
    row_us = second * 1_000_000
    before, after = (data.draw(st.none() | st.integers(0, 400 * DAY)) for _ in range(2))
    since_us = None if before is None else row_us - before
    until_us = None if after is None else row_us + after
    window = replace(path, window=PathWindow(since_us, until_us))
    assert window.may_have_rows(f"{at.strftime(form)}/a.csv")


def test_files_whose_path_is_outside_of_the_window_are_left_out() -> None:
    path = file_path("", "%Y-%m-%d/*")
    (day,) = {path.time_us("2024-03-02/a")}
    assert day is not None

    def held(since_us: int | None, until_us: int | None) -> list[str]:
        own = replace(path, window=PathWindow(since_us, until_us))
        keys = [f"2024-03-0{n}/a" for n in range(1, 5)]
        return [key[9] for key in keys if own.may_have_rows(key)]

    assert held(None, None) == ["1", "2", "3", "4"]
    assert held(day, None) == ["2", "3", "4"]
    assert held(day - 1, None) == ["1", "2", "3", "4"]
    assert held(None, day) == ["1", "2"]
    assert held(None, day - 1) == ["1"]
    assert held(day, day) == ["2"]
