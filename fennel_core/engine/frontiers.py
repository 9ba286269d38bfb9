"""Frontiers: how far event time has come, told in-band to every partition of an output.

Theory. A window closes by the largest event time of the whole input, over all keys and partitions; a consumer sees its own partition. So
a producer whose output asks for it puts a small control record into *every* partition, in the transaction that carries the rows, whenever
the largest event time it has written there moved. A consumer's frontier is the largest it was told. What is written once more after a
restart is at most what was said before, and a frontier is never lowered, so nothing has to be remembered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import polars as pl

from fennel_core.blueprints.spec import Job
from fennel_core.engine.broker import Outgoing, Record
from fennel_core.operators.step import Emit
from fennel_core.vocab.ids import Micros
from fennel_core.vocab.versions import SIGN

KIND: Final = "frontier"
HEADERS: Final = (("c", KIND.encode()),)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(int).decode


def told(records: Sequence[Record]) -> Micros | None:
    """The largest frontier among control records, None when there is none."""
    return max((Micros(_decode(r.value)) for r in records if r.control == KIND), default=None)


class Frontiers:
    """What a job partition has told about its outputs in this ownership."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._said: dict[int, int] = {}

    def messages(self, emits: tuple[Emit, ...]) -> list[Outgoing]:
        """Control records that these emits call for; call it once per transaction and in order."""
        out: list[Outgoing] = []
        for number, output in enumerate(self._job.outputs):
            if not output.frontier:
                continue
            largest = max((top for e in emits if e.output == number if (top := self._largest(e.frame)) is not None), default=None)
            if largest is not None and largest > self._said.get(number, largest - 1):
                self._said[number] = largest
                out += [Outgoing(output.topic, part, _encode(largest), HEADERS) for part in range(self._job.partitions)]
        return out

    def _largest(self, frame: pl.DataFrame) -> int | None:
        timestamp: str = self._job.step.output.timestamp  # type: ignore[union-attr]  # a step that emits has an output schema
        (largest,) = frame.filter(pl.col(SIGN) > 0).select(pl.col(timestamp).to_physical().max()).row(0)
        return None if largest is None else int(largest)
