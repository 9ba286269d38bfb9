"""A real S3 endpoint for tests: the one of `FENNEL_TEST_S3_ENDPOINT`, else a private s3proxy."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pydantic import SecretStr

from fennel_core.connections import s3
from fennel_core.settings.model import Settings
from tests.support.polling import eventually_sync
from tests.support.ports import free_port

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

JARS = Path(__file__).parents[2] / ".fennel" / "jars" / "s3"


@dataclass(frozen=True)
class S3Server:
    """The settings of a client; fits `fennel_core.connections.s3.S3Settings`."""

    s3_endpoint: str
    s3_region: str = "us-east-1"
    s3_access_key: str = "test"
    s3_secret_key: SecretStr = field(default_factory=lambda: SecretStr("test-secret"))


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    def listens() -> bool:
        assert process.poll() is None, (
            "s3proxy did not start: is Java 17 there, and did `make jars` run?"
        )
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    eventually_sync(listens, within_s=30, interval_s=0.1, what="s3proxy listens")


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """The endpoint and credentials of an S3 that starts empty."""
    if given := os.environ.get("FENNEL_TEST_S3_ENDPOINT"):
        yield S3Server(given)
        return
    jar = next(JARS.glob("s3proxy-*.jar"), None)
    assert jar is not None, "the S3 jar is missing: run `make jars`"
    folder = Path(tempfile.mkdtemp(prefix="fennel-s3-"))
    port = free_port()
    server = S3Server(f"http://127.0.0.1:{port}")
    (folder / "objects").mkdir()
    values = {
        "s3proxy.endpoint": server.s3_endpoint,
        "s3proxy.authorization": "aws-v2-or-v4",
        "s3proxy.identity": server.s3_access_key,
        "s3proxy.credential": server.s3_secret_key.get_secret_value(),
        "jclouds.provider": "filesystem-nio2",
        "jclouds.filesystem.basedir": str(folder / "objects"),
        "jclouds.identity": "unused",
        "jclouds.credential": "unused",
    }
    (folder / "conf").write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    words = [
        "java",
        "-Xmx128m",
        "-XX:+UseSerialGC",
        "-DLOG_LEVEL=warn",
        "-jar",
        str(jar),
        "--properties",
        str(folder / "conf"),
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT)  # noqa: S603  # a program of this test, and no shell
    try:
        _wait(port, process)
        yield server
    finally:
        process.terminate()
        process.wait(timeout=20)
        shutil.rmtree(folder, ignore_errors=True)


def bucket_settings(server: S3Server, **changed: object) -> Settings:
    """Return the settings of a platform with a bucket of its own, which is not made yet."""
    own = {
        "s3_endpoint": server.s3_endpoint,
        "s3_region": server.s3_region,
        "s3_access_key": server.s3_access_key,
        "s3_secret_key": server.s3_secret_key,
        "s3_bucket": f"test-{uuid.uuid4().hex[:8]}",
    }
    return Settings.model_validate(own | changed)


def object_keys(client: S3Client, bucket: str, prefix: str) -> list[str]:
    """Return every key that starts with `prefix`, sorted."""
    return [each.key for each in s3.list_objects(client, bucket, prefix)]
