"""Tiles: the events of each key as a tree of time spans, with partial aggregates per span.

Theory. The tree is a buffered tree (Bε-tree). A node has a buffer of records
(`aggregates.records`, in any order) and, per child span that has events, a summary: one packed
partial per aggregator. The root spans all time; children of level i are aligned spans of
2^SHIFTS[i] µs: 102 days, 6 days, 10 hours, 36 minutes, and so on.

A write appends to the root's buffer and decodes nothing. A buffer with more than `BUFFER_RECORDS`
records is flushed: its records are grouped by child span, the summaries of the children are
updated, the records are appended to the children's buffers, and those are flushed in turn. So every
event is in one buffer on the path from the root to its span, the events below a node are in its
parent's summary of it, and a key with few events is a single state entry. Spans of the last level
are not divided by time any more, since their events may all share one timestamp: a buffer with more
than `BLOCK_RECORDS` records is cut into blocks, numbered children that span the same time as their
parent.

A read asks for the partials of disjoint slices of time. A child inside one slice contributes its
summary, one that contains a slice's end is opened, one after the last end is skipped. A partial
that was too large to keep is nil in the summary; then the child is opened too.

Example. Say a buffer holds two records, and `Count` is the only aggregator. After events at 1 h,
2 h and 30 h of day 0 the root's buffer was flushed, and the tree of the key is

    root          buffer: -                summaries: {0: [3]}          (102-day spans)
      child 0     buffer: -                summaries: {0: [3]}          (6-day spans)
        child 0   buffer: -                summaries: {0: [2], 3: [1]}  (10-hour spans)
          child 0 buffer: 1 h, 2 h
          child 3 buffer: 30 h

and a fourth event, at 31 h, is appended to the root's buffer. Counting up to 24 h reads three
nodes: 24 h lies inside the spans of the first two children, so these are opened; of the 10-hour
spans, span 0 ends before 24 h and contributes its summary, 2, and span 3 begins after it and is
skipped. The record at 31 h in the root's buffer is read and does not count.

Invariants. The same records in the same order give the same bytes, whatever the batches
(`tile_writer.py`). A record is never changed; a retraction is one more record, with weight -1.

State: tag `a`: key → root node; tag `n`: key, level, number of the span → node, and for a block
also its number (`tile_codec.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fennel_core.aggregates.aggregation import Aggregator
from fennel_core.aggregates.exact import Ints
from fennel_core.aggregates.records import RecordLayout, Records
from fennel_core.operators.aggregate.tile_codec import NODES, ROOTS, Partials, PartialsCodec
from fennel_core.operators.aggregate.tile_reader import TileQuery, TileReader
from fennel_core.operators.aggregate.tile_writer import TileWriter
from fennel_core.operators.gradual import Gradual
from fennel_core.operators.step import StateReader


class Tiles:
    """The tree of every key, under the table tags `tags`: (roots, nodes).

    `layout` and `aggregators` must not change while state written with them exists.
    """

    def __init__(
        self,
        layout: RecordLayout,
        aggregators: Sequence[Aggregator[Any]],
        tags: tuple[bytes, bytes] = (ROOTS, NODES),
    ) -> None:
        partials = PartialsCodec(aggregators)
        self._writer = TileWriter(layout, partials, tags)
        self._reader = TileReader(layout, partials, tags)

    def add(
        self, reads: StateReader, keys: Sequence[bytes], records: Records, starts: Ints
    ) -> dict[bytes, bytes]:
        """Return the puts that add `records`, which belong to `keys[i]` from `starts[i]` on."""
        return self._writer.add(reads, keys, records, starts)

    def read(
        self, reads: StateReader, queries: Sequence[TileQuery], *, exhaustive: bool = False
    ) -> Gradual[list[list[Partials]]]:
        """Return, per query and slice, one partial per aggregator.

        `exhaustive` reads every event instead of summaries: slower, but nothing is INCOMPLETE.
        """
        return self._reader.read(reads, queries, exhaustive=exhaustive)
