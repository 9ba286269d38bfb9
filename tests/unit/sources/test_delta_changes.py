"""What the versions of a Delta table become, and which of them stop a source."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from fennel_core.connections.delta_log import (
    FEED,
    LogUnreadable,
    columns_of,
    parse_commit,
    unserved,
)
from fennel_core.sources import delta_changes
from fennel_core.sources.delta_changes import DeltaChanges, DeltaCursor
from fennel_core.sources.errors import (
    SourceError,
    StreamReplaced,
    TableVersionsGone,
    TableVersionUnfit,
)
from tests.support.delta_source import UserTable, local_store

Row = tuple[str, str, int | None]


def read(
    path: Path, cursor: DeltaCursor | None, keys: tuple[str, ...] = ("user",), table_id: str = ""
) -> tuple[list[Row], DeltaCursor]:
    """Return (kind, user, age) of each change behind a cursor, and where they end."""
    table_id = table_id or str(DeltaTable(path).metadata().id)
    found: list[Row] = []
    for piece in DeltaChanges(local_store(path), table_id, keys, cursor).pieces():
        for part in piece.parts:
            rows = part.rows.to_pylist()
            found += [(row["_change_type"], row["user"], row.get("age")) for row in rows]
        cursor = piece.cursor
    assert cursor is not None
    return sorted(found), cursor


@pytest.fixture
def table(tmp_path: Path) -> UserTable:
    return UserTable(tmp_path / "t")


def test_the_first_read_is_the_newest_version(table: UserTable) -> None:
    table.append({"a", "b"})
    table.delete({"a"})
    rows, cursor = read(table.path, None)
    assert rows == [("read", "b", table.content()["b"])]
    assert (cursor.version, cursor.done, set(cursor.columns)) == (2, True, {"user", "age", "at"})
    assert read(table.path, cursor) == ([], cursor)


def test_an_empty_table_has_no_rows_and_is_followed(table: UserTable) -> None:
    rows, cursor = read(table.path, None)
    assert (rows, cursor.version) == ([], 0)
    table.append({"a"})
    assert read(table.path, cursor)[0] == [("insert", "a", 1)]


def test_changes_of_rows_are_those_of_the_feed(table: UserTable) -> None:
    table.append({"a", "b", "c"})
    _, cursor = read(table.path, None)
    table.put({"a", "d"})
    table.delete({"b"})
    table.optimize()
    ages = table.content()
    rows, cursor = read(table.path, cursor)
    assert rows == [
        ("delete", "b", 2),
        ("insert", "d", ages["d"]),
        ("update_postimage", "a", ages["a"]),
    ]
    assert cursor.version == DeltaTable(table.path).version()


def test_an_overwrite_deletes_only_the_keys_that_it_does_not_write(table: UserTable) -> None:
    table.append({"a", "b", "c"})
    _, cursor = read(table.path, None)
    table.overwrite({"a"}, {"b"})
    ages = table.content()
    assert read(table.path, cursor)[0] == [
        ("delete", "c", 3),
        ("insert", "a", ages["a"]),
        ("insert", "b", 2),
    ]


def test_a_key_that_is_changed_is_deleted(table: UserTable) -> None:
    table.append({"a", "b"})
    _, cursor = read(table.path, None)
    DeltaTable(table.path).update(predicate="user = 'a'", updates={"user": "'z'"})
    assert read(table.path, cursor)[0] == [("delete", "a", 1), ("update_postimage", "z", 1)]


def test_changes_have_the_version_and_time_of_their_commit(table: UserTable) -> None:
    table.append({"a"})
    _, cursor = read(table.path, None)
    table.delete({"a"})
    made_ms = DeltaTable(table.path).history(1)[0]["timestamp"]
    (part,) = [
        part
        for piece in DeltaChanges(table.store(), table.table_id, ("user",), cursor).pieces()
        for part in piece.parts
    ]
    (row,) = part.rows.to_pylist()
    assert row["_commit_version"] == 2
    assert row["_commit_timestamp"] == dt.datetime.fromtimestamp(made_ms / 1000, dt.UTC)
    assert part.title.startswith("Delta table `t`: version 2, `_change_data/")


@pytest.mark.parametrize("change", ["delete", "put", "overwrite"])
def test_without_keys_a_version_that_changes_rows_stops_the_source(
    table: UserTable, change: str
) -> None:
    table.append({"a", "b"})
    rows, cursor = read(table.path, None, ())
    assert len(rows) == 2
    table.append({"c"})
    getattr(table, change)(*([{"a"}] if change != "overwrite" else [{"a"}, {"b"}]))
    pieces = DeltaChanges(table.store(), table.table_id, (), cursor).pieces()
    assert next(pieces).parts[0].rows.column("user").to_pylist() == ["c"]
    with pytest.raises(TableVersionUnfit, match=r"version 3 \(\w+\) changes or removes rows"):
        list(pieces)


def test_without_keys_a_merge_that_only_inserts_is_read(table: UserTable) -> None:
    table.append({"a"})
    _, cursor = read(table.path, None, ())
    table.put({"b"})
    assert read(table.path, cursor, ())[0] == [("insert", "b", 2)]


def test_partition_columns_are_values_of_the_rows(tmp_path: Path) -> None:
    table = UserTable(tmp_path / "t", partitioned=True)
    table.append({"a b/c", "d"})
    rows, cursor = read(table.path, None)
    assert rows == [("read", "a b/c", 1), ("read", "d", 2)]
    table.put({"d"})
    table.delete({"a b/c"})
    assert read(table.path, cursor)[0] == [("delete", "a b/c", 1), ("update_postimage", "d", 3)]


def test_reading_goes_on_behind_any_row(table: UserTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fennel_core.sources.file_rows.TRANSACTION_ROWS", 1)
    table.append({"a", "b", "c"})
    first = DeltaChanges(table.store(), table.table_id, ("user",), None).pieces()
    cursors = [piece.cursor for piece in first]
    assert [(cursor.row, cursor.done) for cursor in cursors] == [
        (1, False),
        (2, False),
        (3, False),
        (0, True),
    ]
    table.overwrite({"a"}, {"b"})
    for left, cursor in zip((2, 1, 0, 0), cursors, strict=True):
        rows, ended = read(table.path, cursor)
        assert [kind for kind, _, _ in rows] == ["delete", "insert", "insert"] + left * ["read"]
        assert (ended.version, ended.done) == (2, True)


def test_a_log_that_was_cut_is_reported_with_its_versions(table: UserTable) -> None:
    table.append({"a"})
    _, cursor = read(table.path, None)
    table.append({"b"})
    table.append({"c"})
    table.checkpoint()
    (table.path / "_delta_log" / f"{2:020}.json").unlink()
    with pytest.raises(TableVersionsGone, match="what versions 2 to 3 changed cannot be read"):
        read(table.path, cursor)


def test_files_that_vacuum_deleted_are_reported(table: UserTable) -> None:
    table.append({"a"})
    _, cursor = read(table.path, None)
    table.append({"b"})
    table.overwrite({"c"}, set())
    DeltaTable(table.path).vacuum(
        retention_hours=0, dry_run=False, enforce_retention_duration=False
    )
    with pytest.raises(TableVersionsGone, match="of version 2 was deleted, as by VACUUM"):
        read(table.path, cursor)


def test_a_table_that_went_back_is_reported(table: UserTable) -> None:
    table.append({"a"})
    _, cursor = read(table.path, None)
    (table.path / "_delta_log" / f"{1:020}.json").unlink()
    with pytest.raises(TableVersionsGone, match="is at version 0, and version 1 of it was read"):
        read(table.path, cursor)


def test_a_table_that_was_made_again_is_another_one(table: UserTable) -> None:
    table.append({"a"})
    before = table.table_id
    _, cursor = read(table.path, None)
    shutil.rmtree(table.path)
    again = UserTable(table.path)
    again.append({"b"})
    with pytest.raises(StreamReplaced, match=f"`delta/{before}`.*`delta/{again.table_id}`"):
        read(table.path, cursor, table_id=before)


def test_a_new_column_is_read(table: UserTable) -> None:
    table.append({"a"})
    _, cursor = read(table.path, None)
    at = pa.array([dt.datetime(2026, 1, 1, tzinfo=dt.UTC)], pa.timestamp("us", "UTC"))
    new = pa.table({"user": ["b"], "age": pa.array([7], pa.int32()), "at": at, "town": ["Rome"]})
    write_deltalake(table.path, new, mode="append", schema_mode="merge")
    rows, cursor = read(table.path, cursor)
    assert rows == [("insert", "b", 7)]
    assert set(cursor.columns) == {"user", "age", "at", "town"}


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"user": ["b"]}, "version 2 removes column `age`, removes column `at`"),
        ({"user": ["b"], "age": ["7"], "at": [None]}, "makes `age` string, which was integer"),
    ],
)
def test_a_column_that_is_gone_or_changed_stops_the_source(
    table: UserTable, columns: dict, text: str
) -> None:
    table.append({"a"})
    _, cursor = read(table.path, None)
    new = pa.table(columns)
    if "at" in columns:
        new = new.set_column(2, "at", pa.nulls(1, pa.timestamp("us", "UTC")))
    write_deltalake(table.path, new, mode="overwrite", schema_mode="overwrite")
    with pytest.raises(TableVersionUnfit, match=text):
        read(table.path, cursor)


def test_a_feed_that_ends_stops_a_source_with_keys(table: UserTable) -> None:
    table.append({"a"})
    _, cursor = read(table.path, None)
    DeltaTable(table.path).alter.set_table_properties({FEED: "false"})
    with pytest.raises(TableVersionUnfit, match="version 2 ends the change data feed"):
        read(table.path, cursor)
    assert read(table.path, cursor, ())[0] == []


def test_a_first_read_with_keys_needs_the_feed(table: UserTable) -> None:
    table.append({"a"})
    DeltaTable(table.path).alter.set_table_properties({FEED: "false"})
    with pytest.raises(TableVersionUnfit, match="has no change data feed"):
        read(table.path, None)
    assert read(table.path, None, ())[0] == [("read", "a", 1)]


def test_a_column_that_rows_are_given_when_they_are_read_is_refused(tmp_path: Path) -> None:
    rows = pa.table({"user": ["a"], "_commit_version": [7]})
    write_deltalake(tmp_path / "t", rows)
    with pytest.raises(TableVersionUnfit, match="has a column `_commit_version`"):
        read(tmp_path / "t", None, ())


NESTED = {
    "name": "home",
    "type": {
        "type": "struct",
        "fields": [
            {"name": "zip", "type": "integer", "nullable": True, "metadata": {}},
            {
                "name": "tags",
                "type": {"type": "array", "elementType": "string", "containsNull": True},
                "nullable": True,
                "metadata": {},
            },
        ],
    },
    "nullable": True,
    "metadata": {},
}


def test_a_comment_within_a_column_does_not_change_its_type() -> None:
    before = columns_of(json.dumps({"type": "struct", "fields": [NESTED]}))
    text = json.dumps({"type": "struct", "fields": [NESTED]})
    commented = text.replace('"metadata": {}', '"metadata": {"comment": "of the user"}')
    required = text.replace("true", "false")
    assert columns_of(commented) == columns_of(required) == before
    assert columns_of(text.replace("integer", "long")) != before
    assert columns_of(text.replace("elementType", "valueType")) != before


def test_a_half_written_commit_is_reported(table: UserTable) -> None:
    table.append({"a"})
    _, cursor = read(table.path, None)
    table.append({"b"})
    file = table.path / "_delta_log" / f"{2:020}.json"
    table.checkpoint()
    file.write_text(file.read_text()[:-40])
    with pytest.raises(TableVersionUnfit, match="version 2 is not read: it cannot be read"):
        read(table.path, cursor)


def test_a_version_with_too_many_keys_is_refused(
    table: UserTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.append({"a", "b", "c"})
    _, cursor = read(table.path, None)
    table.overwrite({"a", "b"}, {"c"})
    monkeypatch.setattr(delta_changes, "KEYS", 2)
    with pytest.raises(TableVersionUnfit, match="has more than 2 rows beside deletes"):
        read(table.path, cursor)


@pytest.mark.parametrize(
    ("features", "configuration", "text"),
    [
        (["typeWidening"], {}, "a reader with typeWidening"),
        (["columnMapping"], {"delta.columnMapping.mode": "name"}, "columnMapping.mode"),
        (["deletionVectors"], {"delta.enableDeletionVectors": "true"}, "deletion vectors"),
        (["columnMapping", "timestampNtz"], {"delta.columnMapping.mode": "none"}, None),
    ],
)
def test_features_that_are_not_read_are_refused_by_name(features, configuration, text) -> None:
    found = unserved(features, configuration)
    assert (found is None) if text is None else (text in (found or ""))


@pytest.mark.parametrize(
    ("action", "text"),
    [
        ({"add": {"path": "s3://other/a.parquet"}}, "is not below the table"),
        ({"add": {"path": "..%2Fother%2Fa.parquet"}}, "is not below the table"),
        ({"add": {"path": "a", "deletionVector": {"storageType": "u"}}}, "a deletion vector"),
        ({"remove": {"path": "a"}}, "without saying its partition"),
        ({"metaData": {"id": "1", "schemaString": "no"}}, "its schema cannot be read"),
    ],
)
def test_actions_that_are_not_read_are_refused(action: dict, text: str) -> None:
    with pytest.raises(LogUnreadable, match=text):
        parse_commit(3, json.dumps(action).encode())


def test_actions_that_change_no_rows_have_no_files() -> None:
    lines = [
        {"add": {"path": "a", "dataChange": False, "deletionVector": None}},
        {"remove": {"path": "b", "dataChange": False}},
        {"txn": {"appId": "x", "version": 1}},
    ]
    commit = parse_commit(3, "\n".join(map(json.dumps, lines)).encode())
    assert (commit.files, commit.timestamp_us, commit.shape) == ((), None, None)
    with pytest.raises(LogUnreadable, match="no actions"):
        parse_commit(3, b"\n")


def test_errors_have_stable_codes() -> None:
    codes = {each.code for each in (TableVersionsGone, TableVersionUnfit)}
    assert codes == {"source-versions-gone", "source-version-unfit"}
    assert issubclass(TableVersionUnfit, SourceError)
