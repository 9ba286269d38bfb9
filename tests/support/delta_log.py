"""Read a Delta table by its protocol, without the library that writes it: log and Parquet files."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.s3 import object_keys

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


@dataclass
class DeltaLog:
    """What the commits of a table say. `files`: of the newest version, in order of commits."""

    files: dict[str, None] = field(default_factory=dict)
    transactions: dict[str, int] = field(default_factory=dict)
    versions: list[int] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    deleted: list[str] = field(default_factory=list)
    """The files of change data."""


def read_log(client: S3Client, bucket: str, path: str) -> DeltaLog:
    """Replay every commit of the table below `path`; checkpoints are not looked at."""
    log, folder = DeltaLog(), f"{path}/_delta_log/"
    for key in object_keys(client, bucket, folder):
        name = key.removeprefix(folder)
        if not name.endswith(".json"):
            continue
        log.versions.append(int(name.removesuffix(".json")))
        body = client.get_object(Bucket=bucket, Key=key)["Body"].read()
        for line in body.splitlines():
            ((kind, action),) = json.loads(line).items()
            match kind:
                case "add":
                    log.files[unquote(action["path"])] = None
                case "remove":
                    del log.files[unquote(action["path"])]
                case "txn":
                    log.transactions[action["appId"]] = action["version"]
                case "metaData":
                    log.metadata = action
                case "cdc":
                    log.deleted.append(unquote(action["path"]))
    assert log.versions == list(range(len(log.versions))), "no commit is missing"
    return log


def read_rows(client: S3Client, bucket: str, path: str) -> list[dict[str, Any]]:
    """Return the rows of the newest version, in order of commits."""
    log = read_log(client, bucket, path)
    # Files of a compaction have other types in Arrow, and the same values.
    return [
        row for name in log.files for row in _read(client, bucket, f"{path}/{name}").to_pylist()
    ]


def _read(client: S3Client, bucket: str, key: str) -> pa.Table:
    return pq.read_table(io.BytesIO(client.get_object(Bucket=bucket, Key=key)["Body"].read()))
