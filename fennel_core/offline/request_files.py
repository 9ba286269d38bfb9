"""The objects of a request on S3, and its input as a Parquet file.

    offline/<workspace>/<id>/input/<digest>.parquet         time and inputs of each row, in order
    offline/<workspace>/<id>/keys/<digest>                  sealed keys of users' buckets
    offline/<workspace>/<id>/staged/<epoch>/…               rows that a run has read from a bucket
    offline/<workspace>/<id>/result/<epoch>/…               see `results`
    offline/<workspace>/<id>/result/<epoch>/columns.json    a small result, as `query` returns one

All keys are below the installation's prefix. Each run writes below its own epoch, so a run that was
replaced never touches the files of the one that counts. The name of an input is its content, so an
attempt to store a request that is repeated on another version of the branch changes no object.
"""

from __future__ import annotations

import hashlib
import io
from typing import Final

import polars as pl
import pyarrow.parquet as pq

from fennel_core.vocab.ids import WorkspaceId

FOLDER: Final = "offline/"
INPUT_ROWS: Final = 20_000
"""Rows of a row group, which a task reads at once."""


def request_folder(workspace: WorkspaceId, id_: str) -> str:
    """Return the prefix of the objects of a request."""
    return f"{FOLDER}{workspace}/{id_}/"


def request_of(key: str) -> str | None:
    """Return the id of the request that an object belongs to, None if it is none of ours."""
    words = key.split("/")
    return words[2] if len(words) > 3 and f"{words[0]}/" == FOLDER else None


def input_key(workspace: WorkspaceId, id_: str, body: bytes) -> str:
    digest = hashlib.sha256(body).hexdigest()[:16]
    return f"{request_folder(workspace, id_)}input/{digest}.parquet"


def result_prefix(workspace: WorkspaceId, id_: str, epoch: int) -> str:
    return f"{request_folder(workspace, id_)}result/{epoch}"


def staged_prefix(workspace: WorkspaceId, id_: str, epoch: int) -> str:
    """Return the prefix of the rows that a run has read from a user's bucket."""
    return f"{request_folder(workspace, id_)}staged/{epoch}"


def input_file(rows: pl.DataFrame) -> bytes:
    """Return the rows of a request as a Parquet file."""
    body = io.BytesIO()
    pq.write_table(rows.to_arrow(), body, row_group_size=INPUT_ROWS, compression="zstd")
    return body.getvalue()
