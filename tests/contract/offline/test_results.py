"""Result files: rows in the order of the input, failed rows beside them, nothing else."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from fennel_core.connections import s3
from fennel_core.offline import results
from fennel_core.offline.blocks import ROWS_KIND, BlockLayout, ByRun
from fennel_core.offline.results import (
    ResultFile,
    ResultFiles,
    ResultPlace,
    WriteWork,
    delete_others,
)
from fennel_core.offline.rows import AT, REASON, ROW
from fennel_core.query.columns import LOGICAL_TIME
from tests.support.s3 import S3Server, bucket_settings, object_keys

COLUMNS = {ROW: pl.Int64(), AT: LOGICAL_TIME, REASON: pl.String(), "F.v": pl.Int64()}
LAYOUT, RUNS = BlockLayout({ROWS_KIND: COLUMNS}, (ROW,)), ByRun(100, 1)


@pytest.fixture
def place(s3_server: S3Server, tmp_path: Path) -> ResultPlace:
    settings = bucket_settings(s3_server, data_dir=tmp_path)
    s3.ensure_bucket(s3.client(settings), settings.s3_bucket)
    return ResultPlace(settings, "results/q1", "at")


def finished(first: int, count: int, failed: frozenset[int] = frozenset()) -> pl.DataFrame:
    numbers = range(first, first + count)
    return pl.DataFrame(
        {
            ROW: numbers,
            AT: numbers,
            REASON: ["raised" if n in failed else None for n in numbers],
            "F.v": [None if n in failed else 10 * n for n in numbers],
        },
        schema_overrides={ROW: pl.Int64, REASON: pl.String, "F.v": pl.Int64},
    ).with_columns(pl.col(AT).cast(pl.Int64).cast(LOGICAL_TIME))


def write(place: ResultPlace, frames: list[pl.DataFrame]) -> list[ResultFile]:
    made = WriteWork(place, LAYOUT, RUNS).write(iter(frames))
    return [ResultFile(**row) for batch in made for row in batch.to_pylist()]


def stored(place: ResultPlace, key: str) -> pl.DataFrame:
    body = s3.get(s3.client(place.settings), place.settings.s3_bucket, key)
    assert body is not None
    return pl.read_parquet(io.BytesIO(body))


def test_a_partition_is_one_file_in_order_with_its_failed_rows_beside_it(
    place: ResultPlace,
) -> None:
    [file] = write(place, [finished(4, 2), finished(6, 1, frozenset({6}))])
    assert (file.first_row, file.row_count, file.failed) == (4, 3, 1)
    rows = stored(place, file.object_key)
    assert rows.columns == ["at", "F.v"]
    assert rows["F.v"].to_list() == [40, 50, None]
    assert rows["at"].to_physical().to_list() == [4, 5, 6]
    assert stored(place, file.failed_key).rows() == [(6, "raised")]


def test_a_file_is_cut_when_it_is_full_and_keys_have_the_order_of_the_rows(
    place: ResultPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "FILE_BYTES", 1)
    files = write(place, [finished(8, 2), finished(10, 1, frozenset({10})), finished(11, 2)])
    assert [(file.first_row, file.row_count, file.failed) for file in files] == [
        (8, 2, 0),
        (10, 1, 1),
        (11, 2, 0),
    ]
    assert sorted(file.object_key for file in files) == [file.object_key for file in files]
    assert [stored(place, file.object_key)["F.v"].to_list() for file in files] == [
        [80, 90],
        [None],
        [110, 120],
    ]
    assert stored(place, files[1].failed_key).rows() == [(10, "raised")]


def test_a_partition_without_failed_rows_has_one_file(place: ResultPlace) -> None:
    [file] = write(place, [finished(0, 4)])
    assert (file.first_row, file.failed_key) == (0, "")
    bucket = place.settings.s3_bucket
    assert object_keys(s3.client(place.settings), bucket, "") == [file.object_key]


def test_a_partition_without_rows_writes_nothing(place: ResultPlace) -> None:
    assert write(place, []) == []


def test_rows_that_do_not_follow_each_other_are_refused(place: ResultPlace) -> None:
    with pytest.raises(AssertionError, match="follow each other"):
        write(place, [finished(0, 2), finished(3, 1)])
    assert object_keys(s3.client(place.settings), place.settings.s3_bucket, "") == []


def test_files_of_repeated_tasks_are_deleted_and_those_of_other_queries_kept(
    place: ResultPlace,
) -> None:
    client, bucket = s3.client(place.settings), place.settings.s3_bucket
    orphaned = write(place, [finished(0, 4)])
    kept = [*write(place, [finished(0, 4)]), *write(place, [finished(4, 3, frozenset({5}))])]
    [other] = write(replace(place, prefix="results/q10"), [finished(0, 4)])
    result = ResultFiles(tuple(kept))
    assert (result.row_count, result.failed, len(result.keys)) == (7, 1, 3)
    delete_others(client, bucket, place, result)
    assert set(object_keys(client, bucket, "")) == {*result.keys, other.object_key}
    assert orphaned[0].object_key not in result.keys


def test_nothing_is_left_on_the_disk_of_a_task(
    place: ResultPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def abandoned() -> Iterator[pl.DataFrame]:
        yield finished(0, 2)
        raise RuntimeError("the task is cancelled")

    with pytest.raises(RuntimeError):
        list(WriteWork(place, LAYOUT, RUNS).write(abandoned()))
    assert list(tmp_path.iterdir()) == []
