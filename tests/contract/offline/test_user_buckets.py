"""Rows from a user's bucket and results in one, against a real S3."""

from __future__ import annotations

import io
import os
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pydantic import SecretStr

from fennel_core.connections import s3
from fennel_core.connections.secrets import Sealer, SecretUnreadable, make_key_file
from fennel_core.offline.api_errors import OfflineQueryInvalid
from fennel_core.offline.buckets import Bucket, BucketRefused
from fennel_core.offline.place_checks import S3Places
from fennel_core.offline.request_body import CheckedOfflineQuery
from fennel_core.offline.request_files import INPUT_ROWS
from fennel_core.offline.request_input import InputRows, row_groups
from fennel_core.offline.request_row import OfflineRequest, RequestDefinition
from fennel_core.offline.results import ResultFile, ResultFiles
from fennel_core.offline.rows import AT, ROW
from fennel_core.offline.s3_files import InputInvalid, SourceFile, list_files
from fennel_core.offline.s3_keys import seal, unseal
from fennel_core.offline.s3_output import Publication
from fennel_core.offline.s3_places import BucketKeys, PlaceKeys, S3Source, S3Target
from fennel_core.offline.s3_staging import StagedInput, StageWork, stage, staged_input
from fennel_core.offline.spark import session
from fennel_core.settings.model import Settings
from fennel_core.vocab.dtypes import Dtype, Float, Int, List, Optional, Str
from fennel_core.vocab.ids import BranchName, WorkspaceId
from tests.support.s3 import S3Server, bucket_settings, object_keys

ROOT = Path(__file__).parents[3]
SHOP = WorkspaceId("shop")
TYPES: dict[str, Dtype] = {"F.k": Int(), "F.x": Optional(Float()), "F.s": Str(), "F.l": List(Int())}
WRONG = BucketKeys("someone", SecretStr("else"))
CSV = """at,k,F.x,F.s,F.l
2026-01-01 00:00:00,1,1.5,"a,b","[1, 2]"
,2,,,[]
"""
JSON = """{"at": "2026-01-01T00:00:00Z", "k": 1, "F.x": 1.5, "F.s": "a,b", "F.l": [1, 2]}

{"at": null, "k": 2, "F.s": "", "F.l": []}
"""


@pytest.fixture
def settings(s3_server: S3Server, tmp_path: Path) -> Settings:
    """Settings with the bucket of the platform, and one of a user beside it."""
    make_key_file(tmp_path / "key")
    made = bucket_settings(
        s3_server,
        data_dir=tmp_path,
        secrets_key_file=tmp_path / "key",
        offline_shared_buckets=("shared",),
    )
    for bucket in (made.s3_bucket, user_bucket(made).name):
        s3.ensure_bucket(s3.client(made), bucket)
    return made


def user_bucket(settings: Settings) -> Bucket:
    own = BucketKeys(settings.s3_access_key, settings.s3_secret_key)
    return Bucket(settings, f"{settings.s3_bucket}-user", own)


def put(settings: Settings, key: str, body: bytes) -> None:
    assert s3.put_new(s3.client(settings), user_bucket(settings).name, key, body)


def source(settings: Settings, format_: str, **changes: Any) -> S3Source:
    made = S3Source(user_bucket(settings).name, "in/", format_, {"F.k": "k"})
    return replace(made, **changes)


def staged(settings: Settings, place: S3Source) -> StagedInput:
    """Return what the tasks of a run read, without Spark."""
    bucket = user_bucket(settings)
    files = list_files(bucket, place)
    work = StageWork(settings, bucket, place, files, TYPES, "at", "staged/1")
    return staged_input([made for number in range(len(files)) for made in work.staged(number)])


def rows(settings: Settings, given: StagedInput) -> pl.DataFrame:
    read = InputRows(settings, row_groups(given.parts))
    return pl.concat(read.rows(iter([pa.RecordBatch.from_pydict({"id": range(len(read))})])))


def parquet(frame: pl.DataFrame) -> bytes:
    body = io.BytesIO()
    frame.write_parquet(body)
    return body.getvalue()


def two_rows() -> pl.DataFrame:
    return pl.DataFrame(
        {
            "F.l": [[1, 2], []],
            "at": pl.Series(["2026-01-01", None]).str.to_datetime("%Y-%m-%d", time_unit="ns"),
            "k": [1, 2],
            "F.x": pl.Series([1.5, None], dtype=pl.Float32),
            "F.s": ["a,b", ""],
        }
    )


@pytest.mark.parametrize("format_", ["csv", "json", "parquet"])
def test_rows_are_read_by_file_name_and_position(settings: Settings, format_: str) -> None:
    bodies = {"csv": CSV.encode(), "json": JSON.encode(), "parquet": parquet(two_rows())}
    for key in ("in/b/1", "in/a", "in/b/0"):
        put(settings, key, bodies[format_])
    for marker in ("in/_SUCCESS", "in/b/.hidden"):
        put(settings, marker, b"x")
    assert [f.key for f in list_files(user_bucket(settings), source(settings, format_))] == [
        *("in/a", "in/b/0", "in/b/1")
    ]
    given = staged(settings, source(settings, format_))
    found = rows(settings, given)
    assert found[ROW].to_list() == list(range(6))
    assert found["F.k"].to_list() == [1, 2] * 3
    assert found["F.x"].to_list() == [1.5, None] * 3
    assert found["F.s"].to_list() == ["a,b", ""] * 3
    assert found["F.l"].to_list() == [[1, 2], []] * 3
    midnight = 1_767_225_600_000_000
    assert found[AT].to_physical().to_list() == [midnight, None] * 3
    assert (given.row_count, given.latest) == (6, midnight)


def test_csv_may_have_other_delimiters_and_headers_of_the_request(settings: Settings) -> None:
    put(settings, "in/a", b"2026-01-01|7|1.5|x|[3]\r\n")
    headers = ("at", "k", "F.x", "F.s", "F.l")
    found = rows(
        settings, staged(settings, source(settings, "csv", delimiter="|", headers=headers))
    )
    assert found.drop(ROW, AT).rows() == [(7, 1.5, "x", [3])]


def test_parts_have_full_row_groups(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fennel_core.offline.s3_staging.PART_ROWS", INPUT_ROWS)
    count = 2 * INPUT_ROWS + 5
    frame = pl.concat([two_rows()[:1]] * count).with_columns(pl.int_range(count).alias("k"))
    put(settings, "in/a", parquet(frame[: INPUT_ROWS + 3]))
    put(settings, "in/b", parquet(frame[INPUT_ROWS + 3 :]))
    given = staged(settings, source(settings, "parquet"))
    assert [part.row_count for part in given.parts] == [INPUT_ROWS, 3, INPUT_ROWS, 2]
    found = rows(settings, given)
    assert found[ROW].to_list() == found["F.k"].to_list() == list(range(count))


@pytest.mark.parametrize(
    ("format_", "body", "text"),
    [
        ("csv", "at,k,F.s,F.l\n2026-01-01,1,a,[]", "no column `F.x`"),
        ("csv", CSV + "2026-01-01,1\n", "row 3 has 2 cells"),
        ("csv", CSV.replace("2,,,", "two,,,"), "two"),
        ("csv", CSV.replace("[1, 2]", "[1,"), "in/a"),
        ("json", JSON + "{", "in/a"),
        ("json", '{"k": 1}', "no column"),
        ("parquet", CSV, "in/a"),
        ("csv", "at,k,F.x,F.s,F.l\n", "no rows"),
    ],
)
def test_a_file_that_is_not_what_the_request_says_is_refused_by_name(
    settings: Settings, format_: str, body: str, text: str
) -> None:
    put(settings, "in/a", body.encode())
    with pytest.raises(InputInvalid, match=text):
        staged(settings, source(settings, format_))


def test_spark_reads_files_and_fails_with_the_first_that_is_wrong(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_MASTER", "local[1]")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *sys.path]))
    bucket, place = user_bucket(settings), source(settings, "csv")
    for key in ("in/b", "in/a", "in/c"):
        put(settings, key, CSV.encode())
    files = list_files(bucket, place)
    work = StageWork(settings, bucket, place, files, TYPES, "at", "staged/1")
    spark = session(settings, "user-buckets")
    try:
        given = stage(spark, work)
        assert rows(settings, given)["F.k"].to_list() == [1, 2] * 3
        refused = replace(work, bucket=replace(bucket, keys=WRONG))
        with pytest.raises(BucketRefused, match="does not allow reading"):
            stage(spark, refused)
    finally:
        spark.stop()


def test_an_input_without_files_is_refused(settings: Settings) -> None:
    with pytest.raises(InputInvalid, match="no file with rows below `in/`"):
        list_files(user_bucket(settings), source(settings, "csv"))


def test_a_bucket_that_refuses_is_named_with_the_fix(settings: Settings) -> None:
    refused = replace(user_bucket(settings), keys=WRONG)
    with pytest.raises(BucketRefused, match=r"does not allow listing.*some….*other keys") as wrong:
        list_files(refused, source(settings, "csv"))
    assert refused.name in str(wrong.value)
    assert "else" not in repr(refused)
    gone = replace(user_bucket(settings), name="no-such-bucket")
    with pytest.raises(BucketRefused, match="`no-such-bucket` does not exist; create it"):
        list_files(gone, source(settings, "csv", bucket="no-such-bucket"))
    with pytest.raises(BucketRefused, match="does not allow writing"):
        Publication(settings, refused, "out/q1/").begin()
    work = StageWork(
        *(settings, refused, source(settings, "csv"), (SourceFile("in/a", 1),), TYPES),
        *("at", "staged/1"),
    )
    with pytest.raises(BucketRefused, match="does not allow reading"):
        staged_input(list(work.staged(0)))


def test_a_result_is_copied_once_under_names_of_its_own(settings: Settings) -> None:
    client, bucket = s3.client(settings), user_bucket(settings)
    publication = Publication(settings, bucket, "out/q1/")
    for attempt in ("first", "second"):
        publication.clear()
        publication.begin()
        files = ResultFiles(
            (
                ResultFile(0, f"{attempt}/0", "", 2, 0),
                ResultFile(1, f"{attempt}/1", f"{attempt}/failed", 2, 1),
            )
        )
        for key in files.keys:
            s3.put_new(client, settings.s3_bucket, key, key.encode())
        publication.publish(files, lambda: None)
        assert object_keys(client, bucket.name, "out/") == [
            "out/q1/_STARTED",
            "out/q1/_SUCCESS",
            "out/q1/_failed/part-00001.parquet",
            "out/q1/part-00000.parquet",
            "out/q1/part-00001.parquet",
        ]
        assert s3.get(client, bucket.name, "out/q1/part-00001.parquet") == f"{attempt}/1".encode()


def test_a_result_of_a_run_that_must_stop_has_no_marker(settings: Settings) -> None:
    client, bucket = s3.client(settings), user_bucket(settings)
    s3.put_new(client, settings.s3_bucket, "0", b"rows")
    calls: list[int] = []

    def check() -> None:
        calls.append(1)
        if len(calls) > 1:
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        Publication(settings, bucket, "out/q1/").publish(
            ResultFiles((ResultFile(0, "0", "", 1, 0),)), check
        )
    assert object_keys(client, bucket.name, "out/") == ["out/q1/part-00000.parquet"]


def test_keys_are_sealed_for_one_request(settings: Settings) -> None:
    assert settings.secrets_key_file is not None
    sealer = Sealer.from_file(settings.secrets_key_file)
    keys = PlaceKeys(WRONG, None)
    sealed = seal(sealer, SHOP, "q1", keys)
    assert b"else" not in sealed
    assert "else" not in repr(keys)
    assert unseal(sealer, SHOP, "q1", sealed) == keys
    with pytest.raises(SecretUnreadable):
        unseal(sealer, SHOP, "q2", sealed)
    with pytest.raises(SecretUnreadable):
        unseal(sealer, WorkspaceId("other"), "q1", sealed)


def asked(settings: Settings, **changes: Any) -> CheckedOfflineQuery:
    keys = PlaceKeys(user_bucket(settings).keys, user_bucket(settings).keys)
    nothing: Any = None
    made = CheckedOfflineQuery(
        *(nothing, ("F.k",), ("F.v",), "at", "default", pl.DataFrame(), (), ("F.k",)),
        source=source(settings, "csv"),
        target=S3Target(user_bucket(settings).name, "out"),
        keys=keys,
    )
    return replace(made, **changes)


def test_buckets_are_tried_before_a_request_is_accepted(settings: Settings) -> None:
    places = S3Places.of(settings)
    assert places.rules.own == settings.s3_bucket
    assert places.rules.shared == {"shared"}
    put(settings, "in/a", CSV.encode())
    places.check(asked(settings), "q1")
    assert object_keys(s3.client(settings), user_bucket(settings).name, "out/") == [
        "out/q1/_STARTED"
    ]
    good = user_bucket(settings).keys
    for changes, text in (
        ({"keys": PlaceKeys(WRONG, good)}, "input_s3: bucket .* does not allow listing"),
        ({"keys": PlaceKeys(good, WRONG)}, "output_s3: bucket .* does not allow writing"),
        ({"needed": ("F.k", "F.other")}, "no column `F.other`.*feature_to_column_map"),
        ({"timestamp_column": "time"}, "no column `time`; its columns are at, k"),
    ):
        with pytest.raises(OfflineQueryInvalid, match=text):
            places.check(asked(settings, **changes), "q1")


def test_a_request_without_a_result_leaves_nothing_in_its_bucket(settings: Settings) -> None:
    client, bucket, places = s3.client(settings), user_bucket(settings), S3Places.of(settings)
    assert places.sealer is not None
    for folder in ("out/q1/", "out/q2/"):
        Publication(settings, bucket, folder).begin()
    s3.put_new(client, bucket.name, "out/q1/part-00000.parquet", b"rows")
    row = requested(S3Target(bucket.name, "out"))
    with pytest.raises(BucketRefused, match="does not allow"):
        places.withdraw(row, seal(places.sealer, SHOP, "q1", PlaceKeys(None, WRONG)))
    places.withdraw(row, seal(places.sealer, SHOP, "q1", PlaceKeys(None, bucket.keys)))
    assert object_keys(client, bucket.name, "out/") == ["out/q2/_STARTED"]


def requested(target: S3Target) -> OfflineRequest:
    wanted = RequestDefinition(("F.k",), ("F.v",), "at", "w", 1, "in", 0, 0, target=target)
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return OfflineRequest("q1", SHOP, BranchName("main"), "ann", wanted, now)
