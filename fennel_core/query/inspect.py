"""Inspect: the last rows of a dataset, for people.

A dataset's rows are on its topic as signed versions, and the newest positions are the newest rows.
A version that a later message retracts is not a row, and a tombstone has no values to show. A
terminal aggregate has no topic: the slots that hold it assemble its rows as of now, and the newest
by event time are shown. Erased keys are left out after that, so fewer rows may be shown than were
asked for. `tail_rows` selects the rows; the rest of the module fetches them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import msgspec
import polars as pl

from fennel_core.connections.erasures import ErasableKeys
from fennel_core.connections.frames import RemoteError
from fennel_core.query.columns import QueryColumn
from fennel_core.query.concurrently import gather_or_cancel
from fennel_core.query.errors import (
    JobParked,
    PartitionUnavailable,
    SlotUnresponsive,
    ViewOutdated,
)
from fennel_core.query.kafka import KafkaTails
from fennel_core.query.lookups import ReadOutcome, refresh_owners
from fennel_core.query.owners import Owners
from fennel_core.query.program import ServedDataset
from fennel_core.query.slot_connections import SlotConnections, retry_reason
from fennel_core.vocab.dtypes import Field, Timestamp
from fennel_core.vocab.ids import JobId, PartitionIndex, partition_indexes
from fennel_core.vocab.keys import key_bytes
from fennel_core.vocab.schema import Schema
from fennel_core.vocab.versions import IS_TOMBSTONE, POS, SIGN

ROWS_MAX = 100_000
"""The largest number of rows shown: they are held in memory."""
_LIVE = "__live"
RETRY_PAUSE_S = 0.02
_decode_list = msgspec.msgpack.Decoder(list[object]).decode


class Inspector:
    """Fetches the last rows of datasets from Kafka or from slots."""

    def __init__(
        self,
        tails: KafkaTails,
        slots: SlotConnections,
        owners: Owners,
        timeout_s: float,
        hidden: Callable[[ErasableKeys, Sequence[bytes]], Sequence[int]],
    ) -> None:
        self._tails = tails
        self._slots = slots
        self._owners = owners
        self._timeout_s = timeout_s
        self._hidden = hidden

    async def last_rows(
        self, table: ServedDataset, rows: int, now_us: int, outcome: ReadOutcome
    ) -> list[tuple[Field, QueryColumn]]:
        """Return the columns of the dataset's last `rows` rows, oldest first."""
        rows = min(rows, ROWS_MAX)
        schema = table.view.schema
        # Before anything is read: it raises while the erased keys are unknown.
        self._hidden(table.erasable, ())
        if table.view.topic is not None:
            frame = await self._tails.tail(table.view.topic, table.partitions, rows)
            return frame_columns(
                schema,
                None if frame is None else self._shown(table, tail_rows(frame, schema, rows)),
            )
        job = table.job()
        parts = await gather_or_cancel(
            self._scan(job, part, rows, now_us, outcome)
            for part in partition_indexes(table.partitions)
        )
        pairs = [pair for part in parts for pair in part]
        erased = set(self._hidden(table.erasable, [key for key, _ in pairs]))
        shown = [pair for place, pair in enumerate(pairs) if place not in erased]
        return scanned_columns(schema, shown, rows)

    def _shown(self, table: ServedDataset, frame: pl.DataFrame) -> pl.DataFrame:
        """Return the rows of `frame` whose keys are not erased."""
        names = table.view.schema.key_names
        if not names:
            return frame
        erased = set(self._hidden(table.erasable, key_bytes(frame, names)))
        return (
            frame.filter(
                pl.Series([place not in erased for place in range(len(frame))], dtype=pl.Boolean)
            )
            if erased
            else frame
        )

    async def _scan(
        self, job: JobId, part: PartitionIndex, rows: int, now_us: int, outcome: ReadOutcome
    ) -> Sequence[tuple[bytes, bytes]]:
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        why = "it has no owner yet"
        while asyncio.get_running_loop().time() < deadline:
            epoch = self._owners.epoch
            address = self._owners.address((job, part))
            if address is not None:
                try:
                    reply = await self._slots.call(
                        address,
                        "scan",
                        {"job": job, "part": part, "as_of": now_us, "limit": rows},
                    )
                    found: list[tuple[bytes, bytes]] = reply["rows"]
                    outcome.stale |= reply["stale"]
                    return found
                except RemoteError as refused:
                    why = retry_reason(refused)
                except (OSError, SlotUnresponsive) as lost:
                    why = f"its owner at {address} does not respond: {lost}"
            elif (parked := self._owners.parked((job, part))) is not None:
                raise JobParked.of((job, part), parked.error)
            await refresh_owners(self._owners, epoch, (job,))
            if not self._owners.knows(job):
                raise ViewOutdated(f"job `{job}` no longer exists")
            await asyncio.sleep(RETRY_PAUSE_S)
        raise PartitionUnavailable((job, part), why)


def tail_rows(frame: pl.DataFrame, schema: Schema, rows: int) -> pl.DataFrame:
    """Return the last `rows` live rows of signed versions, by position.

    Retracted versions and tombstones are left out.
    """
    version = [POS, *schema.key_names]
    live = frame.with_columns(pl.col(SIGN).cast(pl.Int64).sum().over(version).alias(_LIVE))
    kept = live.filter((pl.col(SIGN) > 0) & (pl.col(_LIVE) > 0) & ~pl.col(IS_TOMBSTONE))
    return (
        kept.unique(version, keep="last", maintain_order=True)
        .sort(POS)
        .tail(rows)
        .select(schema.names)
    )


def frame_columns(schema: Schema, frame: pl.DataFrame | None) -> list[tuple[Field, QueryColumn]]:
    """Return the columns of a frame; empty columns without a frame."""
    if frame is None:
        return [(field, QueryColumn(field.dtype, ())) for field in schema.fields]
    return [(field, QueryColumn(field.dtype, series=frame[field.name])) for field in schema.fields]


def scanned_columns(
    schema: Schema, pairs: Sequence[tuple[bytes, bytes]], rows: int
) -> list[tuple[Field, QueryColumn]]:
    """Return the columns of (key, row) pairs from slots: the `rows` newest, oldest first."""
    if not pairs:
        return frame_columns(schema, None)
    decoded: list[tuple[Any, ...]] = [
        (*_decode_list(row), *_decode_list(key)) for key, row in pairs
    ]
    decoded.sort(key=itemgetter(0))
    columns = list(zip(*decoded[-rows:], strict=True))
    values = 1 + len(schema.values)
    return [
        *(
            (field, QueryColumn(field.dtype, column))
            for field, column in zip(schema.keys, columns[values:], strict=True)
        ),
        *(
            (field, QueryColumn(field.dtype, column))
            for field, column in zip(schema.values, columns[1:values], strict=True)
        ),
        (Field(schema.timestamp, Timestamp()), QueryColumn(Timestamp(), columns[0])),
    ]
