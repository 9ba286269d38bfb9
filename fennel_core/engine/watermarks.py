"""Frontiers: how far event time has come, told in-band to every partition of an output.

Theory. A window closes by the largest event time of the whole input, over all keys and partitions;
a consumer sees its own partition. So a producer whose output asks for it puts a small control
record into *every* partition, in the transaction that carries the rows, whenever the largest event
time it has written there moved. A consumer's frontier is the largest it was told. What is written
once more after a restart is at most what was said before, and a frontier is never lowered, so
nothing has to be remembered.

A frontier must be a function of the rows that were accepted, not of the order they came in
(decision record 0025). What a join emits is not: a row that meets its match and loses it later was
emitted, one whose match was gone before it came never is. So steps that keep state tell the largest
time they were *given*, whatever they made of it, and what one was told it passes on. Only a
`MapSpec` tells just what it lets through: over rows that nobody takes back that is a function of
the rows, over others it hears of the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import polars as pl

from fennel_core.blueprints.spec import Job
from fennel_core.engine.broker import OutgoingRecord, Record
from fennel_core.operators.spec import JoinSpec, MapSpec, TableSpec, UserCodeSpec
from fennel_core.operators.step import OutputBatch
from fennel_core.vocab.ids import Micros
from fennel_core.vocab.versions import SIGN

KIND: Final = "frontier"
HEADERS: Final = (("c", KIND.encode()),)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(int).decode


def told(records: Sequence[Record]) -> Micros | None:
    """The largest frontier among control records, None when there is none."""
    return max((Micros(_decode(r.value)) for r in records if r.control == KIND), default=None)


def given(job: Job, source: int, batch: pl.DataFrame) -> Micros | None:
    """The largest event time in a batch of input `source` that counts for the frontier of the job's
    outputs; None if none does.
    """
    match job.step:
        case MapSpec() | UserCodeSpec() | TableSpec():
            return None  # what they emit says it, and what they were told
        case JoinSpec(left=left, right=right, output=output):
            if source != 0 and not output.keyed:
                return None  # events are those of the left side
            timestamp = left.timestamp if source == 0 else right.timestamp
        case step:
            timestamp = step.input.timestamp
    return _largest(batch, timestamp)


class OutputWatermarks:
    """What a job partition has told about its outputs in this ownership."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._said: dict[int, int] = {}

    @property
    def wanted(self) -> bool:
        """Does any output carry the frontier?"""
        return any(output.frontier for output in self._job.outputs)

    def messages(
        self, emits: tuple[OutputBatch, ...], heard: Micros | None
    ) -> list[OutgoingRecord]:
        """Control records that these emits and what was `heard` (given or told) call for; call it
        once per transaction and in order.
        """
        out: list[OutgoingRecord] = []
        for number, output in enumerate(self._job.outputs):
            if not output.frontier:
                continue
            timestamp: str = self._job.step.output.timestamp  # type: ignore[union-attr]  # a step that emits has an output schema
            tops = [heard, *(_largest(e.frame, timestamp) for e in emits if e.output == number)]
            largest = max((top for top in tops if top is not None), default=None)
            if largest is not None and largest > self._said.get(number, largest - 1):
                self._said[number] = largest
                out += [
                    OutgoingRecord(output.topic, part, _encode(largest), HEADERS)
                    for part in range(self._job.partitions)
                ]
        return out


def _largest(frame: pl.DataFrame, timestamp: str) -> Micros | None:
    (largest,) = frame.filter(pl.col(SIGN) > 0).select(pl.col(timestamp).to_physical().max()).row(0)
    return None if largest is None else Micros(int(largest))
