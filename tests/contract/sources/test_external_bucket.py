"""A bucket of a user on a real S3: listing, files that change, refused keys, and whole files."""

from __future__ import annotations

import io
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import SecretStr

from fennel_core.connections import s3
from fennel_core.connections.external_s3 import (
    ExternalBucket,
    ExternalBucketUnusable,
    FileBody,
    FileChanged,
    FileRefused,
    ListedFile,
    opened,
)
from fennel_core.settings.model import Settings
from fennel_core.sources.file_trial import newest_file_rows
from fennel_core.sources.read_rows import ArrowRows, MessageRows
from fennel_core.sources.s3_files import FileRound
from fennel_core.wire.connectors import S3, Login, PlainSecret, S3Table
from tests.support.s3 import S3Server, bucket_settings, s3_server
from tests.support.source_world import partition

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

__all__ = ["s3_server"]


def connector(server: S3Server) -> S3:
    secret = server.s3_secret_key.get_secret_value()
    return S3("lake", None, Login(PlainSecret(server.s3_access_key), PlainSecret(secret)))


@pytest.fixture
def bucket(s3_server: S3Server) -> ExternalBucket:
    name = f"lake-{uuid.uuid4().hex[:8]}"
    made = opened(connector(s3_server), name, bucket_settings(s3_server), _sealed)
    s3.ensure_bucket(made.client(), name)
    return made


def _sealed(_: object) -> str:
    raise AssertionError("these keys are plain")


def put(client: S3Client, bucket: ExternalBucket, key: str, content: bytes) -> None:
    client.put_object(Bucket=bucket.bucket, Key=key, Body=content)


def listed(client: S3Client, bucket: ExternalBucket, prefix: str = "") -> list[ListedFile]:
    return [file for page in bucket.files(client, prefix) for file in page]


def test_a_listing_names_the_content_of_each_object(bucket: ExternalBucket) -> None:
    client = bucket.client()
    put(client, bucket, "in/a", b"one")
    put(client, bucket, "out/b", b"two")
    (first,) = listed(client, bucket, "in/")
    assert (first.key, first.size_bytes) == ("in/a", 3)
    put(client, bucket, "in/a", b"new")
    (second,) = listed(client, bucket, "in/")
    assert second.etag != first.etag
    assert second.modified_us >= first.modified_us > 0


def test_a_listing_has_every_page(bucket: ExternalBucket) -> None:
    client = bucket.client()
    for number in range(1_003):
        put(client, bucket, f"f{number:04}", b"")
    pages = list(bucket.files(client, ""))
    assert [len(page) for page in pages] == [1000, 3]


def test_a_file_that_is_overwritten_or_deleted_is_noticed(bucket: ExternalBucket) -> None:
    client = bucket.client()
    put(client, bucket, "a", b"0123456789")
    (file,) = listed(client, bucket)
    body = FileBody(bucket, client, file)
    assert body.read(4) == b"0123"
    assert (body.seek(8), body.read(4)) == (8, b"89")
    put(client, bucket, "a", b"abcdefghij")
    body.seek(0)
    with pytest.raises(FileChanged, match="overwritten"):
        body.read(4)
    put(client, bucket, "a", b"short")
    with pytest.raises(FileChanged):
        body.fetch(8, 2)
    client.delete_object(Bucket=bucket.bucket, Key="a")
    with pytest.raises(FileChanged, match="deleted"):
        body.read(4)


def test_a_bucket_that_cannot_be_used_is_named(bucket: ExternalBucket) -> None:
    bucket.check()
    for wrong, text in (
        (replace(bucket, bucket="no-such-bucket-1"), "`no-such-bucket-1` does not exist"),
        (replace(bucket, s3_secret_key=SecretStr("no")), "does not allow listing it"),
        (replace(bucket, s3_access_key="no"), "does not allow listing it"),
        (replace(bucket, s3_endpoint="http://127.0.0.1:1"), "cannot be used"),
    ):
        with pytest.raises(ExternalBucketUnusable, match=text):
            wrong.check()
        with pytest.raises(ExternalBucketUnusable, match=text):
            listed(wrong.client(), wrong)


def test_an_object_that_is_refused_is_not_the_whole_bucket(bucket: ExternalBucket) -> None:
    client = bucket.client()
    put(client, bucket, "a", b"0123")
    (file,) = listed(client, bucket)
    refused = replace(bucket, s3_secret_key=SecretStr("no"))
    with pytest.raises(FileRefused, match="reading `a`"):
        FileBody(bucket, refused.client(), file).fetch(0, 2)
    gone = replace(bucket, s3_endpoint="http://127.0.0.1:1")
    with pytest.raises(ExternalBucketUnusable):
        FileBody(bucket, gone.client(), file).fetch(0, 2)


def test_a_connector_without_keys_has_those_of_the_platform(s3_server: S3Server) -> None:
    own = opened(S3("lake", None, Login(None, None)), "b", s3_server, _sealed)
    assert (own.s3_access_key, own.s3_secret_key) == (
        s3_server.s3_access_key,
        s3_server.s3_secret_key,
    )


def contents() -> dict[str, bytes]:
    sink = io.BytesIO()
    pq.write_table(pa.table({"n": range(50_000)}), sink, row_group_size=9_000)
    return {
        "parquet": sink.getvalue(),
        "csv": b"n\n" + b"".join(b"%d\n" % n for n in range(50_000)),
        "json": b"".join(b'{"n":%d}\n' % n for n in range(50_000)),
    }


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_a_file_is_read_from_a_row_in_its_middle(bucket: ExternalBucket, kind: str) -> None:
    client = bucket.client()
    put(client, bucket, f"in/2024/a.{kind}", contents()[kind])
    put(client, bucket, "in/2024/_SUCCESS", b"")
    put(client, bucket, f"out/2024/a.{kind}", b"")
    db = S3("lake", None, Login(None, None))
    table = S3Table(db, bucket.bucket, "in/", "%Y/*", kind, ",", (), False, None)
    store = FileRound(Settings(), partition(), "s3", bucket, table, 0).store()
    (file,) = store.files()
    rows = 0
    for piece in store.pieces(file, 31_234):
        for part in piece.parts:
            assert isinstance(part, ArrowRows | MessageRows)
            assert part.title == f"S3 file `{bucket.bucket}/in/2024/a.{kind}`"
            rows += part.rows.num_rows if isinstance(part, ArrowRows) else len(part.messages)
    assert rows == 50_000 - 31_234


def test_a_file_that_changes_while_it_is_parsed_is_not_unreadable(bucket: ExternalBucket) -> None:
    client = bucket.client()
    put(client, bucket, "a.parquet", contents()["parquet"])
    (file,) = listed(client, bucket)
    db = S3("lake", None, Login(None, None))
    table = S3Table(db, bucket.bucket, "", "", "parquet", "", (), False, None)
    store = FileRound(Settings(), partition(), "s3", bucket, table, 0).store()
    pieces = store.pieces(file, 0)
    next(pieces)
    put(client, bucket, "a.parquet", contents()["csv"])
    with pytest.raises(FileChanged):
        list(pieces)


def test_the_newest_files_are_shown_by_their_first_rows(bucket: ExternalBucket) -> None:
    client, settings = bucket.client(), Settings(s3_endpoint=bucket.s3_endpoint)
    for number, content in enumerate([b'{"a":1}\n{"a":2}\n', b'{"a":3}\nno\n{"a":4}\n', b""]):
        put(client, bucket, f"in/{number}.json", content)
    keys = Login(
        PlainSecret(bucket.s3_access_key), PlainSecret(bucket.s3_secret_key.get_secret_value())
    )
    db = S3("lake", None, keys)

    def shown(kind: str, count: int = 4) -> list[tuple[str, int, object]]:
        table = S3Table(db, bucket.bucket, "in/", f"*.{kind}", kind, "", (), True, None)
        rows = newest_file_rows(settings, table, lambda _: "", count)
        return [(each.key, each.number, each.row) for each in rows]

    assert shown("json") == [
        ("in/1.json", 0, {"a": 3}),
        ("in/1.json", 1, "the message is not JSON"),
        ("in/1.json", 2, {"a": 4}),
        ("in/0.json", 0, {"a": 1}),
    ]
    assert len(shown("json", 2)) == 2
    put(client, bucket, "in/a.parquet", contents()["parquet"])
    put(client, bucket, "in/b.parquet", b"PAR1 half")
    broken, *good = shown("parquet")
    assert broken[:2] == ("in/b.parquet", 0)
    assert "cannot be read" in str(broken[2])
    assert [number for _, number, _ in good] == [0, 1, 2]
    assert shown("csv") == []
