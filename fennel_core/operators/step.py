"""The step: how a job turns one batch of one input into changes of state and output.

Theory. A step is a pure function of (state, input number, batch): it uses no clock, no randomness
and no I/O except reads of its own state. The live path, replay after a crash, a backfill and the
simulator therefore run the same code and reach the same bytes. A step may receive any split and
interleaving of its inputs; the law is that the integral of its outputs depends only on the set of
versions that it received. It reads state only through `StateReader` and returns everything that it
changes.

State keys are `vocab.keys.state_prefix(tag, key) + suffix`; each step owns its one-byte table tags.
Keys starting with 0xff belong to the runner (offsets, hashes).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import polars as pl

from fennel_core.operators.gradual import Gradual, finished
from fennel_core.vocab.ids import Micros


class StateReader(Protocol):
    """Read access to the state of a job partition (the read half of `hangar.store`)."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key, None where there is none."""
        ...

    def scan(
        self, start: bytes, stop: bytes, *, reverse: bool = False, limit: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        """Return entries with start <= key < stop, ascending (descending with `reverse`), at most
        `limit` of them.
        """
        ...


@dataclass(frozen=True, slots=True)
class OutputBatch:
    """Signed versions (columns of the output's schema + vocab.versions.META) for output number
    `output` of the job.
    """

    output: int
    frame: pl.DataFrame


@dataclass(frozen=True, slots=True)
class DeadRows:
    """Rows that cannot be processed. They leave the set that the law speaks of and go to the
    dead-letter topic with the reason.
    """

    reason: str
    frame: pl.DataFrame


@dataclass(frozen=True, slots=True)
class Outcome:
    """The changes that one step makes. A key is in `puts` or in `deletes`, never in both."""

    puts: Mapping[bytes, bytes] = field(default_factory=dict)
    deletes: frozenset[bytes] = frozenset()
    emits: tuple[OutputBatch, ...] = ()
    dead: tuple[DeadRows, ...] = ()


class OperatorStep(Protocol):
    """The computation of a job."""

    def apply(self, reads: StateReader, source: int, batch: pl.DataFrame) -> Outcome:
        """Process one batch of signed versions of input number `source`."""
        ...


class LookupStep(Protocol):
    """A step whose state serves lookups."""

    def lookup(
        self, reads: StateReader, keys: Sequence[bytes], as_of: Sequence[Micros]
    ) -> list[bytes | None]:
        """Return the row of each key as of each time (inclusive), None where there is none.

        A row is the msgpack array `[timestamp, value, ...]`: event time in microseconds, then the
        value fields in schema order in the form of `vocab.keys.physical` (temporals as integers,
        decimals as text, structs as maps by field name, dicts as arrays of {key, value}).
        """
        ...


class GradualLookupStep(ABC):
    """A step whose keys may have a state so large that a lookup is done in pieces."""

    @abstractmethod
    def lookup_gradually(
        self, reads: StateReader, keys: Sequence[bytes], as_of: Sequence[Micros]
    ) -> Gradual[list[bytes | None]]:
        """As `LookupStep.lookup`; each piece takes some milliseconds."""

    def lookup(
        self, reads: StateReader, keys: Sequence[bytes], as_of: Sequence[Micros]
    ) -> list[bytes | None]:
        """See `LookupStep.lookup`."""
        return finished(self.lookup_gradually(reads, keys, as_of))


def lookup_in_pieces(
    step: LookupStep, reads: StateReader, keys: Sequence[bytes], as_of: Sequence[Micros]
) -> Gradual[list[bytes | None]]:
    """Look up keys in as many pieces as the step has."""
    if isinstance(step, GradualLookupStep):
        return (yield from step.lookup_gradually(reads, keys, as_of))
    return step.lookup(reads, keys, as_of)


class WatermarkStep(Protocol):
    """A step with windows that close by event time. It also raises its watermark by itself, to the
    largest event time of each batch.
    """

    def advance(self, reads: StateReader, watermark: Micros) -> Outcome:
        """Emit the results that become visible because the largest event time accepted from the
        whole input is now `watermark`. A lower watermark than before has no effect.
        """
        ...
