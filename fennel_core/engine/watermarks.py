"""Watermarks: how far event time has come, sent in-band to every partition of an output.

Theory. A window closes by the largest event time of its whole input, over all keys and partitions,
but a consumer reads one partition only. A producer whose output carries the watermark therefore
writes a small control record into *every* partition whenever the largest event time that it has
written grows, in the transaction that carries the rows. The watermark of a consumer is the largest
one it has received. After a restart a producer may write an older watermark again; a watermark is
never lowered, so nothing has to be stored.

Two ways in which this differs from Flink: a watermark here is the largest event time accepted,
without an allowance for late rows (lateness is decided at ingest), and it must be a function of the
accepted rows, not of their order of arrival (decision record 0025). The rows that a join emits are
not: a row that meets its match and loses it later was emitted, a row whose match was deleted before
it arrived never is. So steps with state use the largest time of the rows they *received*, and pass
on the watermarks they received. Only a `MapSpec` uses just the rows that it lets through: over rows
that are never retracted that is a function of the rows, and over others the watermark of its input
covers the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import polars as pl

from fennel_core.blueprints.spec import Job
from fennel_core.engine.broker import OutgoingRecord, Record
from fennel_core.operators.spec import (
    JoinSpec,
    MapSpec,
    SourceReplaySpec,
    TableSpec,
    UserCodeSpec,
)
from fennel_core.operators.step import OutputBatch
from fennel_core.vocab.ids import Micros, partition_indexes
from fennel_core.vocab.versions import SIGN

KIND: Final = "watermark"
HEADERS: Final = (("c", KIND.encode()),)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(int).decode


def received_watermark(records: Sequence[Record]) -> Micros | None:
    """Return the largest watermark among control records, None if there is none."""
    return max((Micros(_decode(r.value)) for r in records if r.control == KIND), default=None)


def carries_watermark(job: Job) -> bool:
    """Return True if any output of the job carries the watermark."""
    return any(output.watermark for output in job.outputs)


def batch_max_time(job: Job, source: int, batch: pl.DataFrame) -> Micros | None:
    """Return the largest event time of the batch that counts for the watermark of the outputs.

    `source`: number of the input. None if no row counts.
    """
    match job.step:
        case MapSpec() | UserCodeSpec() | SourceReplaySpec() | TableSpec():
            return None  # the rows that they emit count, and the watermarks that they received
        case JoinSpec(left=left, right=right, output=output):
            if source != 0 and not output.keyed:
                return None  # the events of the output are those of the left side
            timestamp = left.timestamp if source == 0 else right.timestamp
        case step:
            timestamp = step.input.timestamp
    return _largest(batch, timestamp)


class OutputWatermarks:
    """The watermarks that a job partition has written to its outputs during this ownership."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._written: dict[int, int] = {}
        """Per output number."""

    def records(
        self, emits: tuple[OutputBatch, ...], max_time: Micros | None
    ) -> list[OutgoingRecord]:
        """Return the control records that one transaction must carry.

        `emits`: rows of the transaction; `max_time`: largest event time received. Call it once per
        transaction, in order.
        """
        out: list[OutgoingRecord] = []
        for number, output in enumerate(self._job.outputs):
            if not output.watermark:
                continue
            timestamp: str = self._job.step.output.timestamp  # type: ignore[union-attr]  # a step that emits has an output schema
            times = [max_time, *(_largest(e.frame, timestamp) for e in emits if e.output == number)]
            largest = max((time for time in times if time is not None), default=None)
            if largest is not None and largest > self._written.get(number, largest - 1):
                self._written[number] = largest
                out += [
                    OutgoingRecord(output.topic, part, _encode(largest), HEADERS)
                    for part in partition_indexes(self._job.partitions)
                ]
        return out


def _largest(frame: pl.DataFrame, timestamp: str) -> Micros | None:
    (largest,) = frame.filter(pl.col(SIGN) > 0).select(pl.col(timestamp).to_physical().max()).row(0)
    return None if largest is None else Micros(int(largest))
