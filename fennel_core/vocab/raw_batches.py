"""Batches of raw requests: the messages of an endpoint's raw topic.

A raw topic is a keyless dataset of accepted `log` requests, so engines and history read it like any
other topic. Columns:

    body        large_binary        the request as it was sent
    rows        int64               how many rows it has
    judged_for  list<large_string>  topics whose datasets ingest judged its rows for, in the same
                                    transaction: their accepted rows are on those topics already
    late        large_string        JSON: dataset -> numbers of its late rows; null without any
    received    timestamp           the database's clock when the request got its position

`__pos` is the position of the first row; row i of the request has the i-th position after it. So a
raw request has everything that is needed to type its rows later, under any schema, with the
positions that they had when they were accepted.

Example: a request of three rows, of which row 2 was late for `Orders`, logged while the endpoint
fed `Orders` only:

    rows 3 · judged_for ["w.topic.<orders>.7"] · late '{"Orders":[2]}'
"""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import polars as pl

from fennel_core.vocab.dtypes import Bytes, Field, Int, List, Optional, Str
from fennel_core.vocab.ids import DatasetName, Micros, TopicName
from fennel_core.vocab.schema import Schema
from fennel_core.vocab.versions import FORMAT_HEADER, IS_TOMBSTONE, POS, SIGN

BODY: Final = "body"
ROWS: Final = "rows"
JUDGED_FOR: Final = "judged_for"
LATE: Final = "late"
RECEIVED: Final = "received"
SCHEMA: Final = Schema(
    (),
    (
        Field(BODY, Bytes()),
        Field(ROWS, Int()),
        Field(JUDGED_FOR, List(Str())),
        Field(LATE, Optional(Str())),
    ),
    RECEIVED,
)
HEADERS: Final = (FORMAT_HEADER,)
COMPRESS_FROM_BYTES: Final = 4096
_FRAME: Final = {
    BODY: pl.Binary(),
    ROWS: pl.Int64(),
    JUDGED_FOR: pl.List(pl.String()),
    LATE: pl.String(),
    RECEIVED: pl.Datetime("us", "UTC"),
    POS: pl.Binary(),
    SIGN: pl.Int8(),
    IS_TOMBSTONE: pl.Boolean(),
}
_encode_late = msgspec.json.Encoder().encode
_decode_late = msgspec.json.Decoder(dict[DatasetName, list[int]]).decode


@dataclass(frozen=True, slots=True)
class RawRequest:
    """One accepted request."""

    body: bytes
    rows: int
    judged_for: Collection[TopicName]
    late: Mapping[DatasetName, Sequence[int]]
    received_us: Micros
    position: bytes
    """Of its first row."""


def encode(requests: Sequence[RawRequest]) -> bytes:
    """Return the message value of a batch of requests."""
    count = len(requests)
    frame = pl.DataFrame(
        {
            BODY: [each.body for each in requests],
            ROWS: [each.rows for each in requests],
            JUDGED_FOR: [sorted(each.judged_for) for each in requests],
            LATE: [_encode_late(each.late).decode() if each.late else None for each in requests],
            RECEIVED: pl.Series([each.received_us for each in requests], dtype=pl.Int64).cast(
                _FRAME[RECEIVED]
            ),
            POS: [each.position for each in requests],
            SIGN: [1] * count,
            IS_TOMBSTONE: [False] * count,
        },
        schema=_FRAME,
    )
    sink = io.BytesIO()
    size = sum(len(each.body) for each in requests)
    frame.write_ipc_stream(
        sink,
        compression="zstd" if size >= COMPRESS_FROM_BYTES else "uncompressed",
        compat_level=pl.CompatLevel.oldest(),
    )
    return sink.getvalue()


def requests_of(frame: pl.DataFrame) -> list[RawRequest]:
    """Return the requests of a decoded batch, in their order."""
    received = frame.get_column(RECEIVED).to_physical()
    columns = frame.select(BODY, ROWS, JUDGED_FOR, LATE, POS).iter_rows()
    return [
        RawRequest(
            body,
            rows,
            frozenset(judged_for),
            {} if late is None else _decode_late(late),
            Micros(at),
            position,
        )
        for (body, rows, judged_for, late, position), at in zip(columns, received, strict=True)
    ]
