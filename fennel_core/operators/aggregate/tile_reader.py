"""Read the partials of time slices from tiles (`tiles.py` has the theory and an example).

A child of a node that lies inside one slice contributes its partials; one that contains a slice's
end is opened; one after the last end is skipped. This reads one node per level and slice end,
unless the partials of a key are too large to keep: then it reads every node of the key, in pieces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Final

import numpy as np

from fennel_core.aggregates.aggregation import Events
from fennel_core.aggregates.exact import Ints
from fennel_core.aggregates.records import RecordLayout, load_records
from fennel_core.aggregates.small import MAX_SMALL_EVENTS, parse_small
from fennel_core.operators.aggregate.tile_codec import (
    NO_SUMMARIES,
    SHIFTS,
    Partials,
    PartialsCodec,
    Summaries,
    TileNode,
    block_key,
    child_keys,
    child_span,
)
from fennel_core.operators.aggregate.tile_writer import starts_of_runs
from fennel_core.operators.gradual import Gradual
from fennel_core.operators.rows import prefixes
from fennel_core.operators.step import StateReader

NODES_AT_ONCE: Final = 64
"""Nodes to read in one piece of work: some milliseconds."""
RECORDS_AT_ONCE: Final = 32_768
"""Buffered records to add up in one piece of work: some tens of milliseconds."""


@dataclass(frozen=True, slots=True)
class TileQuery:
    """The time slices of one key to read. `ends` are their ends (inclusive), ascending: slice i
    covers ends[i - 1] < t <= ends[i], the first slice everything before. Events after the last end
    are not read.
    """

    key: bytes
    ends: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Buffer:
    """The buffered records of a node that query number `query` reads."""

    query: int
    node: TileNode


@dataclass(frozen=True, slots=True)
class _Opened:
    """A child to read next: of the node at `parent`, for query number `query`."""

    query: int
    parent: bytes
    child: int


class TileReader:
    """Reads the trees under the table tags `tags`: (roots, nodes)."""

    def __init__(
        self, layout: RecordLayout, partials: PartialsCodec, tags: tuple[bytes, bytes]
    ) -> None:
        self._layout = layout
        self._partials = partials
        self._exhaustive = partials.exhaustive()
        self._root_tag, self._node_tag = tags
        self._struct_bytes = layout.struct.itemsize

    def read(
        self, reads: StateReader, queries: Sequence[TileQuery], *, exhaustive: bool = False
    ) -> Gradual[list[list[Partials]]]:
        """Return, per query and slice, one partial per aggregator.

        `exhaustive` reads every event instead of the partials of children: slower, but nothing
        finalizes to INCOMPLETE.
        """
        codec = self._exhaustive if exhaustive else self._partials
        totals = [[codec.empty() for _ in query.ends] for query in queries]
        buffers: list[_Buffer] = []
        wanted = list(enumerate(prefixes(self._root_tag, [query.key for query in queries])))
        for level in range(len(SHIFTS) + 2):
            opened: list[_Opened] = []
            for start in range(0, len(wanted), NODES_AT_ONCE):
                if start:
                    yield
                some = wanted[start : start + NODES_AT_ONCE]
                stored_nodes = reads.get_many([state_key for _, state_key in some])
                for (i, state_key), stored in zip(some, stored_nodes, strict=True):
                    if stored is None:
                        continue
                    node = TileNode.parse(stored, self._struct_bytes)
                    if node.count:
                        buffers.append(_Buffer(i, node))
                    if node.packed_summaries != NO_SUMMARIES:
                        summaries = node.summaries()
                        spans = [child_span(state_key, level, child) for child in summaries]
                        children = self._use_summaries(
                            summaries, spans, queries[i].ends, totals[i], exhaustive=exhaustive
                        )
                        opened += [_Opened(i, state_key, child) for child in children]
            if not opened:
                break
            wanted = self._state_keys(opened, queries, level)
        for number, together in enumerate(_at_once(buffers)):
            if number:
                yield
            self._use_buffers(together, queries, totals, codec)
        return totals

    def _state_keys(
        self, opened: list[_Opened], queries: Sequence[TileQuery], level: int
    ) -> list[tuple[int, bytes]]:
        if level < len(SHIFTS):
            keys = [queries[item.query].key for item in opened]
            state_keys = child_keys(self._node_tag, keys, level, [item.child for item in opened])
        else:
            state_keys = [block_key(item.parent, item.child) for item in opened]
        return list(zip([item.query for item in opened], state_keys, strict=True))

    def _use_summaries(
        self,
        summaries: Summaries,
        spans: list[tuple[int, int]],
        ends: tuple[int, ...],
        totals: list[Partials],
        *,
        exhaustive: bool,
    ) -> list[int]:
        """Merge the partials of children that lie inside one slice; return the numbers of the
        children to open. `spans`: first and last time of each child.
        """
        opened: list[int] = []
        for (child, packed), (first, last) in zip(summaries.items(), spans, strict=True):
            number = _slice_of(ends, first)
            if number == len(ends):
                continue
            if last > ends[number] or exhaustive or None in packed:
                opened.append(child)
            else:
                self._partials.merge_packed(totals[number], packed)
        return opened

    def _use_buffers(
        self,
        buffers: list[_Buffer],
        queries: Sequence[TileQuery],
        totals: list[list[Partials]],
        codec: PartialsCodec,
    ) -> None:
        """Merge buffered records into the slices they lie in."""
        if sum(buffer.node.count for buffer in buffers) <= MAX_SMALL_EVENTS:
            self._use_small(buffers, queries, totals, codec)
            return
        records = load_records(self._layout, [buffer.node.records for buffer in buffers])
        ends = np.array([queries[buffer.query].ends for buffer in buffers], dtype=np.int64)
        counts = [buffer.node.count for buffer in buffers]
        width = ends.shape[1]
        slices = (records.ts[:, None] > np.repeat(ends, counts, axis=0)).sum(axis=1)
        owners = np.repeat(np.array([buffer.query for buffer in buffers], dtype=np.int64), counts)
        segments: Ints = owners * width + slices
        order = np.flatnonzero(slices < width)
        order = order[np.argsort(segments[order], kind="stable")]
        if len(order) == 0:
            return
        segments = segments[order]
        starts = starts_of_runs(segments)
        updates = codec.update(Events.of(records.take(order), starts))
        for segment, partials in zip(segments[starts].tolist(), updates, strict=True):
            codec.merge(totals[segment // width][segment % width], partials)

    def _use_small(
        self,
        buffers: list[_Buffer],
        queries: Sequence[TileQuery],
        totals: list[list[Partials]],
        codec: PartialsCodec,
    ) -> None:
        """As `_use_buffers`, for few records: without arrays."""
        pairs = [(buffer.query, buffer.node.records) for buffer in buffers]
        for query, group in groupby(sorted(pairs, key=itemgetter(0)), key=itemgetter(0)):
            events = parse_small(self._layout, [records for _, records in group])
            for number, inside in events.split(queries[query].ends):
                (partials,) = codec.update(inside)
                codec.merge(totals[query][number], partials)


def _at_once(buffers: Sequence[_Buffer]) -> Iterator[list[_Buffer]]:
    """Yield the buffers in groups of at most `RECORDS_AT_ONCE` records, or of one buffer."""
    group: list[_Buffer] = []
    records = 0
    for buffer in buffers:
        if group and records + buffer.node.count > RECORDS_AT_ONCE:
            yield group
            group, records = [], 0
        group.append(buffer)
        records += buffer.node.count
    yield group


def _slice_of(ends: tuple[int, ...], time: int) -> int:
    """Return the number of the slice that contains `time`, len(ends) after the last."""
    for i, end in enumerate(ends):
        if time <= end:
            return i
    return len(ends)
