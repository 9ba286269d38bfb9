"""A key with more rows than fit in memory: what is remembered does not grow with them."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from fennel_core.hangar.store import Hangar
from fennel_core.offline.asof_join import AsOfJoin
from fennel_core.offline.scratch import ScratchStore, open_spill
from fennel_core.offline.sources import AggregateSource, TableSource
from fennel_core.offline.tile_lookups import TileLookups
from fennel_core.offline.timeline import KEY, TIME, in_order, request_rows, version_rows
from fennel_core.offline.window_lookups import WindowLookups
from fennel_core.operators.spec import AggregateSpec
from fennel_core.vocab.dtypes import Field, Int
from fennel_core.vocab.keys import key_bytes
from fennel_core.vocab.schema import Schema
from fennel_core.wire import operators as wire

SECOND = 1_000_000
ROWS = 20_000
CHUNK = 1_000
USERS = Schema((Field("k", Int()),), (Field("v", Int()),), "t")
EVENTS = Schema((), (Field("k", Int()), Field("v", Int())), "t")
[HOT] = key_bytes(pl.DataFrame({"k": [1]}), ["k"])


def versions(times: pl.Series, values: pl.Series, positions: pl.Series) -> pl.DataFrame:
    return pl.DataFrame({"t": times, "v": values, "__pos": positions}).select(
        pl.lit(1, dtype=pl.Int64).alias("k"),
        "v",
        pl.col("t").cast(pl.Datetime("us", "UTC")),
        "__pos",
        pl.lit(1, dtype=pl.Int8).alias("__sign"),
        pl.lit(value=False).alias("__tombstone"),
    )


def positions(count: int) -> pl.Series:
    return pl.Series([n.to_bytes(14, "big") for n in range(count)], dtype=pl.Binary)


def requests(times: pl.Series) -> pl.DataFrame:
    return request_rows(
        pl.DataFrame({TIME: times}).select(pl.lit(HOT, dtype=pl.Binary).alias(KEY), TIME)
    )


def test_a_join_remembers_one_version_of_a_hot_key() -> None:
    source = TableSource(USERS, ("v",))
    numbers = pl.Series(range(ROWS), dtype=pl.Int64)
    frame = versions(numbers * SECOND, numbers, positions(ROWS))
    asked = numbers * SECOND + 1
    join = AsOfJoin(source, 0)
    parts = [version_rows(frame, 0, ("k",), "t", ("v",)), requests(asked)]
    found = []
    for chunk in in_order(parts, 1, CHUNK):
        found.append(join.answer(chunk.seen_by(0)))
        assert join.carried_rows <= 2
    assert pl.concat(found)["v"].to_list() == numbers.to_list()


def test_a_version_is_found_by_requests_of_later_chunks() -> None:
    frame = versions(pl.Series([1]), pl.Series([7]), positions(1))
    parts = [version_rows(frame, 0, ("k",), "t", ("v",)), requests(pl.Series([0, 1, 2, 3, 4]))]
    join = AsOfJoin(TableSource(USERS, ("v",)), 0)
    found = pl.concat([join.answer(chunk.seen_by(0)) for chunk in in_order(parts, 1, 1)])
    assert found["v"].to_list() == [None, 7, 7, 7, 7]


@pytest.mark.parametrize("values", [[7, 8], [8, 7]])
def test_of_versions_with_one_time_the_one_with_the_last_position_is_found(
    values: list[int],
) -> None:
    frame = versions(pl.Series([1, 1]), pl.Series(values), positions(2)).sort("v")
    parts = [version_rows(frame, 0, ("k",), "t", ("v",)), requests(pl.Series([1]))]
    join = AsOfJoin(TableSource(USERS, ("v",)), 0)
    [found] = [join.answer(chunk.seen_by(0)) for chunk in in_order(parts, 1, CHUNK)]
    assert found["v"].to_list() == values[1:]


def corrections(values: pl.Series) -> pl.DataFrame:
    """Return versions of one position; each but the last is retracted by the next."""
    one = pl.Series([b"pos"], dtype=pl.Binary).new_from_index(0, ROWS)
    added = versions(pl.Series([0]).new_from_index(0, ROWS), values, one)
    taken_back = added[:-1].with_columns(pl.lit(-1, dtype=pl.Int8).alias("__sign"))
    places = pl.int_range(ROWS, eager=True) * 2
    order = pl.concat([places, places[:-1] + 1]).alias("order")
    return pl.concat([added, taken_back]).with_columns(order)


@pytest.mark.parametrize(
    "values", [pl.Series(range(ROWS)), pl.Series([7, 8] * (ROWS // 2))], ids=["all", "two"]
)
@pytest.mark.parametrize("by", [["order"], ["v", "__sign"]], ids=["of-the-topic", "of-spark"])
def test_a_join_adds_up_the_corrections_of_one_position(values: pl.Series, by: list[str]) -> None:
    frame = corrections(values).sort(by, descending=[name == "__sign" for name in by])
    join = AsOfJoin(TableSource(USERS, ("v",)), 0)
    parts = [version_rows(frame, 0, ("k",), "t", ("v",)), requests(pl.Series([0]))]
    found = []
    for chunk in in_order(parts, 1, CHUNK):
        found.append(join.answer(chunk.seen_by(0)))
        assert join.carried_rows <= 2
    assert pl.concat(found)["v"].to_list() == [values.item(-1)]


FOREVER = wire.Count("n", wire.Forever(), None, False, False, False)
TEN_SECONDS = wire.Sum("s", wire.Sliding(10 * SECOND), "v")
ASKED = range(0, ROWS, 100)


def hot_events(*specs: wire.Spec) -> tuple[AggregateSource, list[pl.DataFrame]]:
    """Return an aggregation of one key, and the parts of its timeline."""
    names = tuple(spec.name for spec in specs)
    output = Schema((Field("k", Int()),), tuple(Field(name, Int()) for name in names), "t")
    source = AggregateSource(AggregateSpec(EVENTS, ("k",), specs, None, True, output), names)
    numbers = pl.Series(range(ROWS), dtype=pl.Int64)
    frame = versions(numbers * SECOND, numbers, positions(ROWS))
    events = version_rows(frame, 0, source.keys, source.time, source.version_columns)
    return source, [events, requests(pl.Series(ASKED, dtype=pl.Int64) * SECOND)]


def test_windows_remember_the_longest_one_of_a_hot_key(tmp_path: Path) -> None:
    source, parts = hot_events(TEN_SECONDS)
    lookups = WindowLookups(source, 0, ScratchStore(lambda: open_spill(tmp_path)))
    found = []
    for chunk in in_order(parts, 1, CHUNK):
        found.append(lookups.answer(chunk.seen_by(0)))
        assert lookups.carried_rows <= 12
    assert pl.concat(found)["s"].to_list() == [sum(range(max(n - 10, 0), n + 1)) for n in ASKED]


def test_a_hot_key_whose_window_has_too_many_events_spills_to_disk(tmp_path: Path) -> None:
    opened: list[Hangar] = []

    def spill() -> Hangar:
        opened.append(open_spill(tmp_path))
        return opened[-1]

    source, parts = hot_events(FOREVER, TEN_SECONDS)
    lookups = WindowLookups(source, 0, ScratchStore(spill, limit_bytes=64 << 10), 2 * CHUNK)
    found = []
    for chunk in in_order(parts, 1, CHUNK):
        found.append(lookups.answer(chunk.seen_by(0)))
        assert lookups.carried_rows <= 2 * CHUNK
    rows = pl.concat(found)
    assert rows["n"].to_list() == [n + 1 for n in ASKED]
    assert rows["s"].to_list() == [sum(range(max(n - 10, 0), n + 1)) for n in ASKED]
    assert len(opened) == 1


def test_the_state_of_a_hot_key_spills_to_disk(tmp_path: Path) -> None:
    opened: list[Hangar] = []

    def spill() -> Hangar:
        opened.append(open_spill(tmp_path))
        return opened[-1]

    source, parts = hot_events(FOREVER, TEN_SECONDS)
    scratch = ScratchStore(spill, limit_bytes=64 << 10)
    lookups = TileLookups(source, 0, scratch)
    found = pl.concat([lookups.answer(chunk.seen_by(0)) for chunk in in_order(parts, 1, CHUNK)])
    assert found["n"].to_list() == [n + 1 for n in ASKED]
    assert found["s"].to_list() == [sum(range(max(n - 10, 0), n + 1)) for n in ASKED]
    assert len(opened) == 1
    [other] = key_bytes(pl.DataFrame({"k": [2]}), ["k"])
    after = request_rows(pl.DataFrame({KEY: [other], TIME: [0]}))
    [chunk] = in_order([parts[0].clear(), after], 1, CHUNK)
    assert lookups.answer(chunk.seen_by(0))["n"].to_list() == [None]
    assert list(tmp_path.iterdir()) == [], "the state of a key is deleted when the next one begins"
