"""Aggregate over a keyed dataset, which arrives as signed facts: rows with a beginning and an end.

Theory. A row counts from its beginning until it is succeeded or leaves the window, whichever is first:
`from <= q < min(to, from + d + 1 s)`. So for each window length a row is filed twice, once with its weight when it begins to count and once
with the opposite weight when it ceases to; the value as of q is the aggregate of everything filed at or before q. Each window length has
tiles of its own, since rows leave at different times. All of these times are changes of the result; they are filed apart, with the row's
own sign, for the timestamp of the answer. A key is found from its first change on, even when all its rows have ended.

State: tags `a`, `n`: tiles of the times of changes; tags 0x80 + 2i and 0x81 + 2i: tiles of window length i (ascending, for ever last).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from fennel_core.aggregates.extremes import LastTime
from fennel_core.aggregates.make import make
from fennel_core.aggregates.verbs import Aggregation
from fennel_core.operators.aggregate.assemble import Assembler
from fennel_core.operators.aggregate.filing import Filing
from fennel_core.operators.aggregate.step import SECOND_US, rows_of
from fennel_core.operators.aggregate.tiles import NODES, ROOTS, Tiles
from fennel_core.operators.rows import MIN_TIME, encode
from fennel_core.operators.spec import TO, Aggregate, has_facts
from fennel_core.operators.step import Outcome, Reads
from fennel_core.vocab.ids import Micros
from fennel_core.vocab.versions import SIGN
from fennel_core.wire import operators as wire

_AT = "\0at"
"""The time a record is filed under."""
_FIRST_TAG = 0x80


class _Trees:
    """Tiles of one window length and the columns that are read from them."""

    def __init__(self, spec: Aggregate, specs: Sequence[wire.Spec], span_us: int | None, tags: tuple[bytes, bytes]) -> None:
        self.span_us = span_us
        self.names = [one.name for one in specs]
        aggregations = [make(one, spec.input, time=spec.input.timestamp) for one in specs]
        self.filing = Filing(spec.input, spec.keys, _AT, aggregations)
        self.tiles = Tiles(self.filing.layout, aggregations, tags)
        self.assembler = Assembler(self.tiles, aggregations, range(len(aggregations)))


class FactsAggregateStep:
    """The step of a terminal `spec.Aggregate` whose input has facts; serves lookups."""

    def __init__(self, spec: Aggregate) -> None:
        assert spec.terminal, "a keyed dataset is aggregated at read time"
        assert has_facts(spec.input), "see AggregateStep"
        self._spec = spec
        self._time = spec.along or spec.input.timestamp
        spans = sorted({_span_us(one) for one in spec.specs}, key=lambda span: (span is None, span or 0))
        self._trees = [
            _Trees(spec, [one for one in spec.specs if _span_us(one) == span], span, _tags(number)) for number, span in enumerate(spans)
        ]
        clock: tuple[Aggregation[Any], ...] = (LastTime(),)
        self._filing = Filing(spec.input, spec.keys, _AT, clock)
        self._clock = Tiles(self._filing.layout, clock, (ROOTS, NODES))
        self._clock_assembler = Assembler(self._clock, clock, (0,))
        names = [name for tree in self._trees for name in tree.names]
        self._order = [names.index(name) for name in spec.output.value_names]

    def apply(self, reads: Reads, source: int, batch: pl.DataFrame) -> Outcome:
        """File each row at its beginning and at its ends."""
        assert source == 0, "an aggregation has one input"
        begun = batch.with_columns(pl.col(self._time).alias(_AT))
        puts: dict[bytes, bytes] = {}
        ends = []
        for tree in self._trees:
            end = pl.col(TO) if tree.span_us is None else pl.min_horizontal(TO, pl.col(self._time) + pl.duration(microseconds=tree.span_us))
            ended = batch.with_columns(end.alias(_AT)).filter(pl.col(_AT).is_not_null())
            ends.append(ended)
            filed = tree.filing.file(pl.concat([begun, ended.with_columns(-pl.col(SIGN))]))
            puts.update(tree.tiles.add(reads, filed.keys, filed.records, filed.starts))
        filed = self._filing.file(pl.concat([begun, *ends]))
        puts.update(self._clock.add(reads, filed.keys, filed.records, filed.starts))
        return Outcome(puts=puts)

    def lookup(self, reads: Reads, keys: Sequence[bytes], as_of: Sequence[Micros]) -> list[bytes | None]:
        ranges = [((MIN_TIME, moment),) for moment in as_of]
        clocks = self._clock_assembler.values(reads, keys, ranges, as_of)
        found = [tree.assembler.values(reads, keys, [span * len(tree.names) for span in ranges], as_of) for tree in self._trees]
        out: list[bytes | None] = []
        for (changed,), *parts in zip(clocks, *found, strict=True):
            values = [value for part in parts for value in part]
            out.append(None if changed is None else encode([changed, *(values[i] for i in self._order)]))
        return out

    def rows(self, reads: Reads, as_of: Micros, limit: int) -> list[tuple[bytes, bytes]]:
        """Up to `limit` keys with their rows as of a time."""
        return rows_of(self, reads, as_of, limit)


def _span_us(spec: wire.Spec) -> int | None:
    """How long a row counts at most; None is until it is succeeded."""
    if isinstance(spec, wire.ExpDecay):
        raise ValueError("an exponentially decayed sum over a keyed dataset is not defined: aggregate its changelog instead")
    match spec.window:
        case wire.Forever():
            return None
        case wire.Sliding(duration_us):
            return duration_us + SECOND_US
        case window:
            raise ValueError(f"{window} closes by event time: it is not assembled at read time")


def _tags(number: int) -> tuple[bytes, bytes]:
    assert _FIRST_TAG + 2 * number + 1 < 0xFF, "more window lengths than table tags"
    return bytes([_FIRST_TAG + 2 * number]), bytes([_FIRST_TAG + 2 * number + 1])
