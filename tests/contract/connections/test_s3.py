"""The properties of an S3 store that the platform relies on, checked against a real one."""

from __future__ import annotations

import io
import threading
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest
from botocore.exceptions import ClientError
from pydantic import SecretStr

from fennel_core.connections import s3
from tests.support.s3 import S3Server, object_keys

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


@pytest.fixture
def store(s3_server: S3Server) -> tuple[S3Client, str]:
    client, bucket = s3.client(s3_server), f"test-{uuid.uuid4().hex[:8]}"
    s3.ensure_bucket(client, bucket)
    return client, bucket


def test_a_bucket_is_created_once_and_found_again(store: tuple[S3Client, str]) -> None:
    client, bucket = store
    s3.ensure_bucket(client, bucket)
    assert object_keys(client, bucket, "") == []


def test_an_object_is_written_once_and_never_changed(store: tuple[S3Client, str]) -> None:
    client, bucket = store
    assert s3.put_new(client, bucket, "a/1", b"first")
    assert not s3.put_new(client, bucket, "a/1", b"second")
    assert s3.get(client, bucket, "a/1") == b"first"


def test_of_many_writers_at_once_exactly_one_wins(store: tuple[S3Client, str]) -> None:
    client, bucket = store
    for attempt in range(3):
        won: list[int] = []
        barrier = threading.Barrier(8)

        def write(number: int, key: str, won: list[int], barrier: threading.Barrier) -> None:
            barrier.wait()
            if s3.put_new(client, bucket, key, str(number).encode() * 1000):
                won.append(number)

        writers = [
            threading.Thread(target=write, args=(n, f"race/{attempt}", won, barrier))
            for n in range(8)
        ]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        assert len(won) == 1
        assert s3.get(client, bucket, f"race/{attempt}") == str(won[0]).encode() * 1000


class Conflicting:
    """A client whose first writes meet another write of the same key, which then fails."""

    def __init__(self, client: S3Client, conflicts: int) -> None:
        self._client, self._conflicts = client, conflicts

    def put_object(self, **request: Any) -> None:
        if self._conflicts:
            self._conflicts -= 1
            request["Body"].read()
            raise ClientError({"ResponseMetadata": {"HTTPStatusCode": 409}}, "PutObject")  # type: ignore[typeddict-item]  # botocore reads no more of it
        self._client.put_object(**request)


def test_a_write_that_met_another_one_is_repeated(
    store: tuple[S3Client, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, bucket = store
    monkeypatch.setattr(s3, "CONFLICT_S", 0)
    some = cast("S3Client", Conflicting(client, 2))
    assert s3.put_new(some, bucket, "c/1", io.BytesIO(b"whole"))
    assert s3.get(client, bucket, "c/1") == b"whole"
    with pytest.raises(ClientError):
        s3.put_new(cast("S3Client", Conflicting(client, 9)), bucket, "c/2", io.BytesIO(b"x"))


def test_keys_are_listed_by_prefix_and_deleted(store: tuple[S3Client, str]) -> None:
    client, bucket = store
    for key in ("p/2", "p/1", "q/1"):
        s3.put_new(client, bucket, key, b"")
    assert object_keys(*store, "p/") == ["p/1", "p/2"]
    s3.delete(client, bucket, "p/1")
    s3.delete(client, bucket, "p/1")
    assert object_keys(*store, "p/") == ["p/2"]
    assert s3.get(client, bucket, "p/1") is None


def test_wrong_credentials_are_an_error_and_not_a_missing_object(
    store: tuple[S3Client, str], s3_server: S3Server
) -> None:
    stranger = s3.client(replace(s3_server, s3_secret_key=SecretStr("wrong")))
    with pytest.raises(ClientError):
        s3.get(stranger, store[1], "a/1")


def test_an_object_is_read_in_ranges_like_a_file(store: tuple[S3Client, str]) -> None:
    client, bucket = store
    body = bytes(range(256)) * 40
    assert s3.put_new(client, bucket, "ranges", body)
    file = s3.RangedObject(client, bucket, "ranges", len(body))
    assert file.read(10) == body[:10]
    assert (file.seek(-3, 2), file.tell()) == (len(body) - 3, len(body) - 3)
    assert file.read() == body[-3:]
    assert file.read(1) == b""
    file.seek(5_000)
    assert file.read(4) == body[5_000:5_004]
    with pytest.raises(FileNotFoundError):
        s3.RangedObject(client, bucket, "absent", 9).read()
