"""Exports: the rows of a read as Parquet or as a Delta table, whole or not at all."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest

from fennel_core.dataframes import export as exports
from fennel_core.dataframes import export_places
from fennel_core.dataframes.datasource import OpenedRead, schema_of
from fennel_core.dataframes.export import DELTA_LOG, SUCCESS, ExportFormat, export
from fennel_core.dataframes.export_places import FolderPlace, place_at
from fennel_core.dataframes.planning import ReadPlan, read_of
from fennel_core.dataframes.read_request import parse_options
from fennel_core.history.errors import ExportFailed, ReadFailed
from fennel_core.history.parquet import RowFilter
from fennel_core.history.topic_slices import TopicSlice
from tests.laws.dataframes.page_source import COMMENTS, ORDER_ROWS, ORDERS
from tests.laws.dataframes.stores import MemoryVersions, topic_of

NOW = datetime(2026, 3, 5, tzinfo=UTC)
AMOUNTS = [7.5, 10.0, 20.0, 30.0]


def opened(as_of: str = "2026-03-05", store: MemoryVersions | None = None) -> OpenedRead:
    """A dataset without keys, of four rows in two partitions with two files each."""
    versions, topic = topic_of(ORDER_ROWS, ORDERS, (), [1, 1])
    asked = {"dataset": "Order", "workspace": "w", "columns": "amount,at", "as_of": as_of}
    plan = ReadPlan(read_of(ORDERS, None, parse_options(asked, NOW), ()), topic, COMMENTS)
    if store is not None:
        store.objects, store.messages = versions.objects, versions.messages
    return OpenedRead(plan, store or versions)


def amounts(folder: Path) -> list[float]:
    return sorted(value for path in folder.glob("*.parquet") for value in read_amounts(path))


def read_amounts(path: Path) -> list[float]:
    table = pq.ParquetFile(path).read()
    assert table.column_names == ["amount", "at"]
    found: list[float] = table.column("amount").to_pylist()
    return found


@pytest.mark.parametrize("written_rows", [1, exports.WRITTEN_ROWS])
def test_parquet_has_the_rows_of_the_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written_rows: int
) -> None:
    monkeypatch.setattr(exports, "WRITTEN_ROWS", written_rows)
    for part_rows, files in ((1, 4), (1000, 2)):
        folder = tmp_path / str(part_rows)
        made = export(opened(), FolderPlace(folder), ExportFormat.PARQUET, part_rows, NOW)
        assert (sum(file.rows for file in made), len(made)) == (4, files)
        assert amounts(folder) == AMOUNTS
        assert {each.name for each in folder.iterdir()} == {SUCCESS, *(f.name for f in made)}


def test_an_empty_dataset_has_a_file_with_its_columns(tmp_path: Path) -> None:
    (made,) = export(opened("2020-01-01"), FolderPlace(tmp_path), ExportFormat.PARQUET, 1000, NOW)
    assert read_amounts(tmp_path / made.name) == []


def test_the_log_of_a_delta_table_names_its_files_and_schema(tmp_path: Path) -> None:
    read = opened()
    made = export(read, FolderPlace(tmp_path), ExportFormat.DELTA, 1, NOW)
    lines = (tmp_path / DELTA_LOG).read_text().splitlines()
    actions = [json.loads(line) for line in lines]
    assert [next(iter(each)) for each in actions] == [
        *("commitInfo", "protocol", "metaData"),
        *["add"] * len(made),
    ]
    assert json.loads(actions[2]["metaData"]["schemaString"]) == schema_of(read.plan).jsonValue()
    for action, file in zip(actions[3:], made, strict=True):
        added = action["add"]
        assert (added["path"], added["size"]) == (
            file.name,
            (tmp_path / file.name).stat().st_size,
        )
        assert json.loads(added["stats"]) == {"numRecords": file.rows}
    assert amounts(tmp_path) == AMOUNTS
    assert not (tmp_path / SUCCESS).exists()


class FailingVersions(MemoryVersions):
    """A store that fails after some files."""

    left: int = 2

    def batches(
        self, part: TopicSlice, columns: Sequence[str], rows: RowFilter
    ) -> Iterator[pl.DataFrame]:
        self.left -= columns != ("__pos",)
        if self.left < 0:
            raise ReadFailed("the store is away [read-api]")
        return super().batches(part, columns, rows)


def test_an_export_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ReadFailed, match="the store is away"):
        export(opened(store=FailingVersions()), FolderPlace(tmp_path), ExportFormat.DELTA, 1, NOW)
    assert list(tmp_path.rglob("*.*")) == []


@pytest.mark.parametrize("failing", ["part-", ".json"])
def test_an_export_to_a_full_disk_leaves_an_empty_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def full(descriptor: int) -> None:
        if failing in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(export_places.os, "fsync", full)
        with pytest.raises(ExportFailed, match="No space left on device; free some space"):
            export(opened(), FolderPlace(tmp_path), ExportFormat.DELTA, 1, NOW)
    assert list(tmp_path.iterdir()) == []
    export(opened(), FolderPlace(tmp_path), ExportFormat.DELTA, 1, NOW)
    assert amounts(tmp_path) == AMOUNTS


def test_a_place_that_cannot_be_used_names_the_fix(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for target, said in (
        (str(tmp_path), "is not empty; name a new folder"),
        (str(tmp_path / "file"), "cannot be written"),
        ("gs://bucket/x", "nor an address like s3://bucket/prefix"),
        ("s3://bucket", "nor an address like s3://bucket/prefix"),
    ):
        with pytest.raises(ExportFailed, match=said):
            export(opened(), place_at(target), ExportFormat.PARQUET, 1, NOW)
