"""What a fixture consists of, and how it becomes a platform again.

| part | form | why this form |
|---|---|---|
| `postgres.sql` | a logical dump | a later version may bring a later Postgres |
| `kafka/` | the broker's log folders | offsets and transactions stay as they were |
| `objects/` | one file per object of the bucket | any S3 server can hold them |
| `state/` | the folders of RocksDB | the local state that a slot opens |
| `secrets/` | the key of users' secrets, the id of the Kafka cluster | both are part of the data |
| `definitions/`, `requests/` | the project as files, and as sent | the unchanged commit |
| `markers.msgpack` | markers of every replaylog, as stored | they decode without a broker |
| `MANIFEST.json`, `answers.json` | formats and facts; recorded requests | the expectation |
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import boto3
import psycopg

from fennel_core.apps.local import postgres
from tests.support.own_platform import OwnPlatform

FOLDER: Final = Path(__file__).parent
SUFFIX: Final = ".tar.xz"
MANIFEST: Final = "MANIFEST.json"
ANSWERS: Final = "answers.json"
DUMP: Final = "postgres.sql"
KAFKA: Final = "kafka"
OBJECTS: Final = "objects"
STATE: Final = "state"
MARKERS: Final = "markers.msgpack"
INFRA: Final = ("--only", "postgres,kafka,s3")
FOR_EVER_S: Final = 40 * 365 * 86_400
UNLIMITED: Final = {
    "FENNEL_KAFKA_RETENTION_MS": str(1000 * FOR_EVER_S),
    "FENNEL_DESTROY_GRACE_S": str(FOR_EVER_S),
    "FENNEL_COMMIT_HISTORY_S": str(FOR_EVER_S),
    "FENNEL_ALLOW_DATA_LOSS": "false",
}
"""A fixture is opened years later: nothing in it may expire."""
PRESERVED: Final = ("users_secrets_key", "kafka_cluster_id")
"""The other secrets of a platform are passwords, which every start may choose anew."""
NOT_DATA: Final = re.compile(r"^(LOG(\.old.*)?|LOCK|\.lock|cleaner-offset-checkpoint)$")
"""Files of RocksDB and Kafka that hold no data."""
_COPY: Final = re.compile(r"^COPY (?:public\.)?\"?(\w+)\"? \((.+)\) FROM stdin;$")


def fixtures() -> list[Path]:
    """Return the fixtures of all released versions, oldest first."""
    found = FOLDER.glob(f"*{SUFFIX}")
    return sorted(found, key=lambda path: [int(part) for part in version_of(path).split(".")])


def version_of(fixture: Path) -> str:
    return fixture.name.removesuffix(SUFFIX)


# --- making ---------------------------------------------------------------------------------------


def collect(platform: OwnPlatform, folder: Path) -> None:
    """Copy what a running platform keeps in Postgres and S3 to `folder`."""
    dump = [str(postgres.binaries() / "pg_dump"), "--no-owner", "--no-privileges"]
    done = subprocess.run(  # noqa: S603  # a program of this test, and no shell
        [*dump, "--dbname", platform.value("POSTGRES_DSN"), "--file", str(folder / DUMP)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    client, bucket = _bucket(platform)
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        for each in page.get("Contents", []):
            path = folder / OBJECTS / each["Key"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(client.get_object(Bucket=bucket, Key=each["Key"])["Body"].read())


def collect_stopped(platform: OwnPlatform, folder: Path) -> None:
    """Copy what a stopped platform keeps in files to `folder`."""
    for name, source in ((KAFKA, platform.data / "kafka" / "logs"), (STATE, platform.data / STATE)):
        shutil.copytree(source, folder / name, ignore=_without_files_of_no_data)
    (folder / "secrets").mkdir()
    for name in PRESERVED:
        shutil.copy(platform.data / "secrets" / name, folder / "secrets" / name)


def pack(folder: Path, fixture: Path) -> None:
    """Write the content of `folder` as one file, in order, without times and owners."""
    new = fixture.with_name(f"{fixture.name}.new")
    with tarfile.open(new, "w:xz", preset=9) as archive:
        for path in sorted(folder.rglob("*")):
            archive.add(path, path.relative_to(folder), recursive=False, filter=_impersonal)
    new.replace(fixture)


def _impersonal(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mtime = member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _without_files_of_no_data(_folder: str, names: list[str]) -> list[str]:
    return [name for name in names if NOT_DATA.match(name)]


# --- using ----------------------------------------------------------------------------------------


def unpack(fixture: Path, folder: Path) -> None:
    with tarfile.open(fixture, "r:xz") as archive:
        archive.extractall(folder, filter="data")


def read_json(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())


def restore(folder: Path, platform: OwnPlatform) -> None:
    """Make `platform`, which has no data yet, the platform of an unpacked fixture.

    Postgres, Kafka and S3 run afterwards. The next start migrates the database, as after any
    upgrade.
    """
    shutil.copytree(folder / KAFKA, platform.data / "kafka" / "logs")
    shutil.copytree(folder / STATE, platform.data / STATE)
    shutil.copytree(folder / "secrets", platform.data / "secrets")
    for secret in (platform.data / "secrets").iterdir():
        secret.chmod(0o600)
    platform.run("up", *INFRA)
    dsn = platform.value("POSTGRES_DSN")
    server, _, database = dsn.rpartition("/")
    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {database} WITH (FORCE)")
        connection.execute(f"CREATE DATABASE {database}")
    psql = [str(postgres.binaries() / "psql"), "--quiet", "--no-psqlrc", "-v", "ON_ERROR_STOP=1"]
    done = subprocess.run(  # noqa: S603  # a program of this test, and no shell
        [*psql, "--dbname", dsn, "--file", str(folder / DUMP)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    client, bucket = _bucket(platform)
    for path in sorted((folder / OBJECTS).rglob("*")):
        if path.is_file():
            key = path.relative_to(folder / OBJECTS).as_posix()
            client.put_object(Bucket=bucket, Key=key, Body=path.read_bytes())


def tables(folder: Path) -> Mapping[str, list[dict[str, str | None]]]:
    """Return the rows of every table of the dump, as text."""
    found: dict[str, list[dict[str, str | None]]] = {}
    lines = iter((folder / DUMP).read_text().splitlines())
    for line in lines:
        if copied := _COPY.match(line):
            columns = [name.strip('" ') for name in copied[2].split(",")]
            found[copied[1]] = [
                dict(zip(columns, values, strict=True)) for values in _copied_rows(lines)
            ]
    return found


def _copied_rows(lines: Iterator[str]) -> Iterator[list[str | None]]:
    for line in lines:
        if line == "\\.":
            return
        yield [None if text == "\\N" else _unescaped(text) for text in line.split("\t")]


def _unescaped(text: str) -> str:
    escapes = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v"}
    return re.sub(r"\\(.)", lambda found: escapes.get(found[1], found[1]), text)


def binary(text: str | None) -> bytes:
    """Return the value of a `bytea` column."""
    assert text is not None
    assert text.startswith("\\x"), text[:20]
    return bytes.fromhex(text[2:])


def _bucket(platform: OwnPlatform) -> tuple[Any, str]:
    client = boto3.client(
        "s3",
        endpoint_url=platform.value("S3_ENDPOINT"),
        region_name=platform.value("S3_REGION"),
        aws_access_key_id=platform.value("S3_ACCESS_KEY"),
        aws_secret_access_key=platform.value("S3_SECRET_KEY"),
    )
    return client, platform.value("S3_BUCKET")
