"""The law of blocks: however rows are cut into batches, blocks and runs, they come out in order, in
the partition that they belong to, and none is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fennel_core.offline import block_sort, blocks
from fennel_core.offline.block_sort import BlockSort
from fennel_core.offline.blocks import ROWS_KIND, BlockLayout, ByHash, ByRun, write_blocks
from fennel_core.offline.rows import ROW
from fennel_core.offline.timeline import KEY, ORDER, SOURCE, TIME, TimelineChunk
from fennel_core.vocab.versions import IS_TOMBSTONE, POS, SIGN

SHARED = {KEY: pl.Binary(), TIME: pl.Int64(), SOURCE: pl.Int8()}
META = {POS: pl.Binary(), SIGN: pl.Int8(), IS_TOMBSTONE: pl.Boolean()}
LAYOUT = BlockLayout(
    {
        ROWS_KIND: {**SHARED, ROW: pl.Int64()},
        0: {**SHARED, **META, "0.v": pl.String()},
        1: {**SHARED, **META, "1.w": pl.List(pl.Int64())},
    },
    ORDER,
)
SMALL = st.integers(0, 3)
TIMES = SMALL | st.sampled_from([-(1 << 55), 1 << 55, 1 << 60])
KEYS = SMALL.map(lambda n: b"key of more than twelve bytes %d" % n)
TEXTS = st.sampled_from([None, "", "a text that is longer than twelve bytes"])
VERSION = st.fixed_dictionaries(
    {
        KEY: KEYS,
        TIME: TIMES,
        POS: SMALL.map(lambda n: b"%014d" % n),
        SIGN: st.just(1),
        IS_TOMBSTONE: st.booleans(),
    }
)


def corrected(
    versions: st.SearchStrategy[dict[str, object]],
) -> st.SearchStrategy[list[dict[str, object]]]:
    """Draw versions and the retractions of some of them, in any order."""
    pairs = st.tuples(versions, st.booleans())
    made = st.lists(pairs, max_size=15).map(
        lambda drawn: [
            row
            for version, gone in drawn
            for row in ([{**version, SIGN: -1}, version] if gone else [version])
        ]
    )
    return made.flatmap(st.permutations)


WORLDS = st.fixed_dictionaries(
    {
        ROWS_KIND: st.lists(
            st.fixed_dictionaries({KEY: KEYS, TIME: TIMES, SOURCE: st.sampled_from([126, 127])}),
            max_size=30,
        ),
        0: corrected(st.tuples(VERSION, TEXTS).map(lambda v: {**v[0], SOURCE: 0, "0.v": v[1]})),
        1: corrected(
            st.tuples(VERSION, st.lists(SMALL, max_size=2)).map(
                lambda v: {**v[0], SOURCE: 1, "1.w": v[1]}
            )
        ),
    }
)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(blocks, "SPLIT_ROWS", 3)
    monkeypatch.setattr(blocks, "COLLECTED_BYTES", 200)
    monkeypatch.setattr(block_sort, "CHUNK_ROWS", 4)
    monkeypatch.setattr(block_sort, "CHUNK_BYTES", 300)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    yield
    assert list(tmp_path.iterdir()) == [], "runs on disk leave with the task"


def received(
    frames: dict[int, pl.DataFrame], layout: BlockLayout, placement: ByHash | ByRun
) -> dict[int, list[pa.RecordBatch]]:
    """Return the blocks by partition, as a shuffle brings them together."""
    found: dict[int, list[pa.RecordBatch]] = {n: [] for n in range(placement.partitions)}
    for kind, frame in frames.items():
        for batch in write_blocks(frame.iter_slices(7), layout, kind, placement):
            for place, number in enumerate(batch.column(0).to_pylist()):
                found[number].append(batch.slice(place, 1))
    return found


def plain(chunk: TimelineChunk) -> pl.DataFrame:
    """Return all columns of a chunk, with nulls."""
    found = chunk.order.drop("__place")
    for number in (ROWS_KIND, 0, 1):
        own = chunk.rows if number == ROWS_KIND else chunk.versions[number]
        mine = found[SOURCE] > 1 if number == ROWS_KIND else found[SOURCE] == number
        places = pl.select(pl.when(mine).then(chunk.order["__place"])).to_series()
        found = found.hstack(own.select(pl.all().gather(places)))
    return found


relaxed = settings(
    max_examples=75, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@relaxed
@given(
    world=WORLDS,
    partitions=st.integers(1, 3),
    sorted_bytes=st.sampled_from([1, 300, 1 << 20]),
    data=st.data(),
)
def test_a_timeline_has_every_row_in_order(
    world: dict[int, list[dict[str, object]]],
    partitions: int,
    sorted_bytes: int,
    data: st.DataObject,
) -> None:
    frames = {
        kind: pl.DataFrame(rows, schema=dict(LAYOUT.kinds[kind])) for kind, rows in world.items()
    }
    frames[ROWS_KIND] = frames[ROWS_KIND].with_columns(pl.int_range(pl.len()).alias(ROW))
    placement = ByHash(KEY, partitions)
    sort = BlockSort(LAYOUT, placement, sorted_bytes)
    found: list[pl.DataFrame] = []
    seen: set[bytes] = set()
    for batches in received(frames, LAYOUT, placement).values():
        shuffled = data.draw(st.permutations(batches))
        chunks = [plain(chunk) for chunk in sort.timeline(iter(shuffled))]
        found += chunks
        if chunks:
            assert_in_order(pl.concat(chunks))
            assert not seen & {*pl.concat(chunks)[KEY]}, "a key is in one partition"
            seen |= {*pl.concat(chunks)[KEY]}
    whole = pl.concat(frames.values(), how="diagonal")
    made = pl.concat(found) if found else whole.clear()
    assert made.height == whole.height
    assert by_content(made) == by_content(whole.select(made.columns))


def by_content(frame: pl.DataFrame) -> list[str]:
    return sorted(map(repr, frame.rows()))


def assert_in_order(frame: pl.DataFrame) -> None:
    order = frame.select(ORDER)
    assert order.equals(order.sort(ORDER, maintain_order=True))
    retracted = set()
    for row in frame.filter(pl.col(SOURCE) < 2).rows(named=True):
        content = repr({name: value for name, value in row.items() if name != SIGN})
        if row[SIGN] < 0:
            retracted.add(content)
        assert row[SIGN] < 0 or content not in retracted, "additions come first"


@relaxed
@given(count=st.integers(0, 40), runs=st.integers(1, 4), small=st.booleans(), data=st.data())
def test_a_result_has_its_rows_in_runs(
    count: int, runs: int, small: bool, data: st.DataObject
) -> None:
    layout = BlockLayout({ROWS_KIND: {ROW: pl.Int64(), "v": pl.String()}}, (ROW,))
    numbers = data.draw(st.permutations(range(count)))
    frame = pl.DataFrame({ROW: numbers}, schema={ROW: pl.Int64}).with_columns(
        pl.format("row number {}", ROW).alias("v")
    )
    placement = ByRun(count, runs)
    sort = BlockSort(layout, placement, 1 if small else 1 << 20)
    found = [
        row
        for batches in received({ROWS_KIND: frame}, layout, placement).values()
        for chunk in sort.rows(iter(batches))
        for row in chunk.rows()
    ]
    assert found == [(n, f"row number {n}") for n in range(count)]


def test_blocks_of_another_partition_are_refused() -> None:
    layout = BlockLayout({ROWS_KIND: {ROW: pl.Int64()}}, (ROW,))
    frame = pl.DataFrame({ROW: range(20)}, schema={ROW: pl.Int64})
    [batch] = write_blocks(iter([frame]), layout, ROWS_KIND, ByHash(ROW, 1))
    with pytest.raises(AssertionError, match="same build of polars"):
        list(BlockSort(layout, ByHash(ROW, 3)).rows(iter([batch])))


def test_wide_rows_are_collected_and_merged_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(block_sort, "CHUNK_ROWS", 50_000)
    monkeypatch.setattr(block_sort, "CHUNK_BYTES", 100_000)
    monkeypatch.setattr(blocks, "SPLIT_ROWS", 50_000)
    monkeypatch.setattr(blocks, "COLLECTED_BYTES", 100_000)
    layout = BlockLayout({ROWS_KIND: {ROW: pl.Int64(), "v": pl.String()}}, (ROW,))
    frame = pl.DataFrame({ROW: range(200)}).with_columns(pl.lit("v" * 10_000).alias("v"))
    placement = ByRun(200, 1)
    batches = list(write_blocks(iter([frame]), layout, ROWS_KIND, placement))
    assert max(batch.nbytes for batch in batches) < 250_000
    chunks = list(BlockSort(layout, placement, 500_000).rows(iter(batches)))
    assert max(chunk.height for chunk in chunks) < 50
    assert pl.concat(chunks)[ROW].to_list() == list(range(200))
