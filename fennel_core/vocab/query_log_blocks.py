"""Blocks of logged queries: the messages of a workspace's query log.

A query names its own inputs and outputs, so two queries seldom have the same columns, and a topic
must have one schema. So a row of the topic is a *block*: rows of queries with the same features, as
one Arrow stream, beside the columns by which readers select blocks without opening them:

    workflow       large_string  as the caller named it
    branch         large_string  the branch that was queried
    commit         large_string  the version of the branch that served the features
    sampling_rate  float64       share of rows that was logged
    rows           int64         how many rows the block has
    first, last    timestamp     of its queries: their clock readings, at most `SPAN_US` apart
    features       large_binary  Arrow schema of the features, serialised
    body           large_binary  the rows, an Arrow stream

The rows of a block have the columns `request_id`, `row` (number within its request), `timestamp`,
two lists of subjects, and the features by full name (`Featureset.feature`): inputs and outputs, in
the types of their features. Full names contain a dot and the others none, so they never collide.

A *subject* is the digest of a key that the row was computed from, in a dataset with erase keys. A
row is erased when one of its subjects is. `ROW_SUBJECTS` are those of the row's own lookups. User
code may look up any key for any row, so such keys count for every row of the request; they are
listed once per block and request, in `REQUEST_SUBJECTS` of its first row there.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import polars as pl
import pyarrow as pa

from fennel_core.vocab.ids import DatasetName, Micros
from fennel_core.vocab.versions import FORMAT_HEADER

WORKFLOW: Final = "workflow"
BRANCH: Final = "branch"
COMMIT: Final = "commit"
SAMPLING_RATE: Final = "sampling_rate"
ROWS: Final = "rows"
FIRST: Final = "first"
LAST: Final = "last"
FEATURES: Final = "features"
BODY: Final = "body"
REQUEST_ID: Final = "request_id"
ROW: Final = "row"
TIMESTAMP: Final = "timestamp"
ROW_SUBJECTS: Final = "__row_subjects"
REQUEST_SUBJECTS: Final = "__request_subjects"
HEADERS: Final = (FORMAT_HEADER,)
SPAN_US: Final = Micros(60_000_000)
"""Longest time between the queries of one block: how far a reader of a time range looks around."""
SUBJECT_BYTES: Final = 16
COMPRESS_FROM_ROWS: Final = 16
TIME: Final = pl.Datetime("us", "UTC")
ROW_COLUMNS: Final[dict[str, pl.DataType]] = {
    REQUEST_ID: pl.String(),
    ROW: pl.Int64(),
    TIMESTAMP: TIME,
    ROW_SUBJECTS: pl.List(pl.Binary()),
    REQUEST_SUBJECTS: pl.List(pl.Binary()),
}
"""The columns of a block's rows before the features."""
_FRAME: Final[dict[str, pl.DataType]] = {
    WORKFLOW: pl.String(),
    BRANCH: pl.String(),
    COMMIT: pl.String(),
    SAMPLING_RATE: pl.Float64(),
    ROWS: pl.Int64(),
    FIRST: TIME,
    LAST: TIME,
    FEATURES: pl.Binary(),
    BODY: pl.Binary(),
}
COLUMNS: Final = tuple(_FRAME)
"""The columns of a block."""
_INDEX: Final = "__index"
_msgpack = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class LogBlock:
    """One row of the topic; see the module."""

    workflow: str
    branch: str
    commit: str
    sampling_rate: float
    rows: int
    first_us: Micros
    last_us: Micros
    features: bytes
    body: bytes


def subject(dataset: DatasetName, columns: Sequence[str], key: bytes) -> bytes:
    """Return the digest of a key, given the bytes of its erase-key `columns`.

    It does not depend on the order of the columns, which a commit may change.
    """
    in_order = sorted(range(len(columns)), key=columns.__getitem__)
    if in_order != list(range(len(columns))):
        values = msgspec.msgpack.decode(key)
        columns, key = [columns[n] for n in in_order], _msgpack([values[n] for n in in_order])
    whole = hashlib.sha256(_msgpack([dataset, list(columns), key]))
    return whole.digest()[:SUBJECT_BYTES]


def block_of(
    rows: pl.DataFrame, *, workflow: str, branch: str, commit: str, sampling_rate: float
) -> LogBlock:
    """Return a block of `rows`, which begin with `ROW_COLUMNS`."""
    assert rows.height > 0, "a block has rows"
    assert rows.columns[: len(ROW_COLUMNS)] == list(ROW_COLUMNS), "the columns of all blocks"
    times = rows.get_column(TIMESTAMP).to_physical()
    first, last = times.min(), times.max()
    assert isinstance(first, int), "every row has a time"
    assert isinstance(last, int), "every row has a time"
    features = rows.drop(list(ROW_COLUMNS)).clear().to_arrow(compat_level=pl.CompatLevel.oldest())
    return LogBlock(
        workflow,
        branch,
        commit,
        sampling_rate,
        rows.height,
        Micros(first),
        Micros(last),
        features.schema.serialize().to_pybytes(),
        _stream(rows, rows.height >= COMPRESS_FROM_ROWS),
    )


def encode(blocks: Sequence[LogBlock]) -> bytes:
    """Return the message value of some blocks."""
    frame = pl.DataFrame(
        {
            WORKFLOW: [each.workflow for each in blocks],
            BRANCH: [each.branch for each in blocks],
            COMMIT: [each.commit for each in blocks],
            SAMPLING_RATE: [each.sampling_rate for each in blocks],
            ROWS: [each.rows for each in blocks],
            FIRST: _times([each.first_us for each in blocks]),
            LAST: _times([each.last_us for each in blocks]),
            FEATURES: [each.features for each in blocks],
            BODY: [each.body for each in blocks],
        },
        schema=_FRAME,
    )
    return _stream(frame, compressed=False)  # bodies are compressed already


def blocks_of(frame: pl.DataFrame) -> list[LogBlock]:
    """Return the blocks of a decoded message, or of a file of history, in their order."""
    times = frame.select(pl.col(FIRST).to_physical(), pl.col(LAST).to_physical())
    columns = frame.select(WORKFLOW, BRANCH, COMMIT, SAMPLING_RATE, ROWS, FEATURES, BODY)
    return [
        LogBlock(workflow, branch, commit, rate, rows, Micros(first), Micros(last), features, body)
        for (workflow, branch, commit, rate, rows, features, body), (first, last) in zip(
            columns.iter_rows(), times.iter_rows(), strict=True
        )
    ]


def schema_of(features: bytes) -> pa.Schema:
    """Return the types of the features of a block."""
    return pa.ipc.read_schema(pa.py_buffer(features))


def rows_of(block: LogBlock, erased: Collection[bytes] = ()) -> pl.DataFrame:
    """Return the rows of a block: `ROW_COLUMNS` without the subjects, then the features.

    Rows with a subject in `erased` are left out.
    """
    rows = pl.read_ipc_stream(io.BytesIO(block.body))
    if erased:
        gone = pl.Series(list(erased), dtype=pl.Binary)
        of_rows = _rows_with(rows, ROW_SUBJECTS, gone)
        requests = rows.filter(pl.Series(_rows_with(rows, REQUEST_SUBJECTS, gone)))
        of_requests = rows.get_column(REQUEST_ID).is_in(requests.get_column(REQUEST_ID).implode())
        rows = rows.filter(~(pl.Series(of_rows) | of_requests))
    return rows.drop(ROW_SUBJECTS, REQUEST_SUBJECTS)


def _rows_with(rows: pl.DataFrame, column: str, subjects: pl.Series) -> pl.Series:
    """Return for each row whether `column` lists one of `subjects`."""
    listed = rows.select(column).with_row_index(_INDEX).explode(column)
    found = listed.filter(pl.col(column).is_in(subjects.implode())).get_column(_INDEX)
    return pl.Series(range(rows.height), dtype=found.dtype).is_in(found.implode())


def _times(micros: Sequence[Micros]) -> pl.Series:
    return pl.Series(micros, dtype=pl.Int64).cast(TIME)


def _stream(frame: pl.DataFrame, compressed: bool) -> bytes:
    sink = io.BytesIO()
    frame.write_ipc_stream(
        sink,
        compression="zstd" if compressed else "uncompressed",
        compat_level=pl.CompatLevel.oldest(),
    )
    return sink.getvalue()
