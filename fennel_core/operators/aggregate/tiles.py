"""Tiles: all events of one key as a tree of time spans, each with the partial aggregates of its
parts.

Theory. A node is a log of records (`aggregates.records`, in any order) and, per child span that has
events, one packed partial per aggregation. The root spans all time; children of level i are aligned
spans of 2^SHIFTS[i] µs: 102 days, 6 days, 10 hours, 36 minutes, … . Writing appends to the root's
log and decodes nothing. A log over `LOG_RECORDS` moves on: its records are filed under their child
spans, the children's partials are updated, the records are appended to the children's logs, and so
on down. So an event is somewhere on the path from the root to its span, everything below a node is
in its parent's partial of it, and a key with few events is one value. Spans of the last level are
not divided by time any more (their events may all have one timestamp): a log of over
`BLOCK_RECORDS` is put aside as it is, as a numbered child that spans what its parent does.

Reading asks for disjoint intervals of time: a child inside one interval counts by its partial, one
that an edge crosses is opened, one beyond the end is not looked at. That touches one node per level
and edge. A partial that is missing (too large to keep) means: open the child.

Work is done for all keys of a batch at once, level by level: NumPy over records, Python per touched
child. What moves is always a block of exactly one record more than a log may hold, so the bytes of
a tree are a function of the order of its key's records and not of the batches they came in: the
live lane and the bulk lane arrive at the same state hash.

State: tag `a`: key → root node; tag `n`: key, level, number of the span (8 bytes, ordered), for a
block also its number → node. Node: count of records and length of the partials (4 bytes each,
big-endian), partials (msgpack map: child number → packed partials, nil where missing), structs,
heap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from struct import Struct
from typing import Any

import msgspec
import numpy as np

from fennel_core.aggregates.aggregation import Aggregator, Events
from fennel_core.aggregates.exact import Ints
from fennel_core.aggregates.records import RecordLayout, Records, load_records
from fennel_core.aggregates.small import MAX_SMALL_EVENTS, parse_small
from fennel_core.operators.rows import TIME_BYTES, prefixes, time_bytes, time_of
from fennel_core.operators.step import StateReader

ROOTS = b"a"
NODES = b"n"
SHIFTS = (43, 39, 35, 31, 27, 23, 19, 15)
LOG_RECORDS = 256
"""Records a log may hold before it moves on: the events a reader scans at an edge, and the bytes a
batch rewrites per key it touches.
"""
BLOCK_RECORDS = 2048
"""Records a log of the last level may hold before it is put aside."""

_HEAD = Struct(">II")
_NO_PARTIALS = b"\x80"
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[int, list[Any]]).decode
Partials = list[Any]


@dataclass(frozen=True, slots=True)
class TileNode:
    count: int
    partials: bytes
    structs: bytes
    heap: bytes

    @classmethod
    def parse(cls, stored: bytes | None, struct_bytes: int) -> TileNode:
        if stored is None:
            return EMPTY
        count, length = _HEAD.unpack_from(stored)
        records = _HEAD.size + length
        heap = records + count * struct_bytes
        assert heap <= len(stored), "a node holds the records it counts"
        return cls(count, stored[_HEAD.size : records], stored[records:heap], stored[heap:])

    def stored(self) -> bytes:
        return b"".join(
            (_HEAD.pack(self.count, len(self.partials)), self.partials, self.structs, self.heap)
        )


EMPTY = TileNode(0, _NO_PARTIALS, b"", b"")


@dataclass(frozen=True, slots=True)
class TileQuery:
    """One key at one time: `cuts` are the ends (inclusive) of its intervals, ascending; events
    after the last are not wanted.
    """

    key: bytes
    cuts: tuple[int, ...]


class Tiles:
    """The tree of every key, under the table tags `tags`. `aggregations` must not change while
    state written with them lives.
    """

    def __init__(
        self,
        layout: RecordLayout,
        aggregations: Sequence[Aggregator[Any]],
        tags: tuple[bytes, bytes] = (ROOTS, NODES),
    ) -> None:
        self._layout = layout
        self._roots, self._nodes = tags
        self._aggregations = tuple(aggregations)
        self._whole = tuple(aggregation.exhaustive() for aggregation in aggregations)
        self._size = layout.struct.itemsize

    # --- writing ----------------------------------------------------------------------------------

    def add(
        self, reads: StateReader, keys: Sequence[bytes], records: Records, starts: Ints
    ) -> dict[bytes, bytes]:
        """Puts that add `records`, which belong to `keys[i]` from `starts[i]` on."""
        puts: dict[bytes, bytes] = {}
        places = prefixes(self._roots, keys)
        owners = list(keys)
        for level in range(len(SHIFTS)):
            full = self._append(reads, places, records, starts, puts, LOG_RECORDS)
            if not full:
                return puts
            numbers = [i for i, _ in full]
            places, owners, records, starts = self._move(
                [places[i] for i in numbers], [owners[i] for i in numbers], full, level, puts
            )
        for i, node in self._append(reads, places, records, starts, puts, BLOCK_RECORDS):
            self._put_aside(places[i], node, puts)
        return puts

    def _append(
        self,
        reads: StateReader,
        places: list[bytes],
        records: Records,
        starts: Ints,
        puts: dict[bytes, bytes],
        limit: int,
    ) -> list[tuple[int, TileNode]]:
        """Append each segment to its node's log; nodes whose log is now longer than `limit` come
        back unwritten.
        """
        edges = [*starts.tolist(), len(records)]
        added = records.slices(edges[:-1], edges[1:])
        held = reads.get_many(places)
        full: list[tuple[int, TileNode]] = []
        for i, (place, old, (structs, heap)) in enumerate(zip(places, held, added, strict=True)):
            node = TileNode.parse(old, self._size)
            count = node.count + edges[i + 1] - edges[i]
            node = TileNode(count, node.partials, node.structs + structs, node.heap + heap)
            if count > limit:
                full.append((i, node))
            else:
                puts[place] = node.stored()
        return full

    def _move(
        self,
        places: list[bytes],
        owners: list[bytes],
        full: list[tuple[int, TileNode]],
        level: int,
        puts: dict[bytes, bytes],
    ) -> tuple[list[bytes], list[bytes], Records, Ints]:
        """Move what is full of the logs on to children: the children's places, owners, records and
        where each one's begin.
        """
        records = load_records(self._layout, [(node.structs, node.heap) for _, node in full])
        cut = _cut([node.count for _, node in full], LOG_RECORDS + 1)
        rests = records.slices(cut.stays.tolist(), cut.ends.tolist())
        records, blocks = _without_cancelled(
            records.take(np.flatnonzero(cut.blocks >= 0)), cut.blocks[cut.blocks >= 0]
        )
        parents, children = cut.node_of(blocks), records.ts >> SHIFTS[level]
        order = np.lexsort((blocks, children, parents))
        records, parents, children, blocks = (
            records.take(order),
            parents[order],
            children[order],
            blocks[order],
        )
        pieces = _starts(parents, children, blocks)
        events = Events.of(records, pieces)
        updates = (
            list(
                zip(
                    *(aggregation.update(events) for aggregation in self._aggregations), strict=True
                )
            )
            if len(pieces)
            else []
        )
        summaries = [_decode(node.partials) for _, node in full]
        for parent, child, partials in zip(
            parents[pieces].tolist(), children[pieces].tolist(), updates, strict=True
        ):
            summaries[parent][child] = self._merged(summaries[parent].get(child), partials)
        for place, summary, rest, count in zip(
            places, summaries, rests, (cut.ends - cut.stays).tolist(), strict=True
        ):
            puts[place] = TileNode(count, _encode(dict(sorted(summary.items()))), *rest).stored()
        starts = _starts(parents, children)
        below = list(zip(parents[starts].tolist(), children[starts].tolist(), strict=True))
        keys = [owners[parent] for parent, _ in below]
        return self._child_places(keys, level, [child for _, child in below]), keys, records, starts

    def _put_aside(self, place: bytes, node: TileNode, puts: dict[bytes, bytes]) -> None:
        """Make the full stretches of the log of a node of the last level blocks of their own."""
        records = load_records(self._layout, [(node.structs, node.heap)])
        length = BLOCK_RECORDS + 1
        edges = [*range(0, node.count + 1, length), node.count]
        packs = records.slices(edges[:-1], edges[1:])
        events = Events.of(records.take(np.arange(edges[-2])), np.array(edges[:-2], dtype=np.int64))
        updates = zip(
            *(aggregation.update(events) for aggregation in self._aggregations), strict=True
        )
        summary = _decode(node.partials)
        for pack, partials in zip(packs, updates, strict=False):
            number = len(summary)
            summary[number] = self._merged(None, partials)
            puts[_block_place(place, number)] = TileNode(length, _NO_PARTIALS, *pack).stored()
        puts[place] = TileNode(node.count - edges[-2], _encode(summary), *packs[-1]).stored()

    def _merged(self, packed: list[Any] | None, partials: Sequence[Any]) -> list[Any]:
        if packed is None:
            return [
                a.pack(partial) for a, partial in zip(self._aggregations, partials, strict=True)
            ]
        return [
            None if old is None else a.pack(a.merge(a.unpack(old), new))
            for a, old, new in zip(self._aggregations, packed, partials, strict=True)
        ]

    # --- reading ----------------------------------------------------------------------------------

    def read(
        self, reads: StateReader, asked: Sequence[TileQuery], *, exhaustive: bool = False
    ) -> list[list[Partials]]:
        """Per item and interval, one partial per aggregation. `exhaustive` reads every event:
        nothing comes out INCOMPLETE.
        """
        aggregations = self._whole if exhaustive else self._aggregations
        totals = [[[a.empty for a in aggregations] for _ in item.cuts] for item in asked]
        logs: list[tuple[int, TileNode]] = []
        wanted = list(enumerate(prefixes(self._roots, [item.key for item in asked])))
        for level in range(len(SHIFTS) + 2):
            opened: list[tuple[int, bytes, int]] = []
            for (i, place), stored in zip(
                wanted, reads.get_many([place for _, place in wanted]), strict=True
            ):
                if stored is None:
                    continue
                node = TileNode.parse(stored, self._size)
                if node.count:
                    logs.append((i, node))
                if node.partials != _NO_PARTIALS:
                    spans = [
                        (child, *_span(place, level, child), packed)
                        for child, packed in _decode(node.partials).items()
                    ]
                    numbers = self._use(spans, asked[i].cuts, totals[i], exhaustive=exhaustive)
                    opened += [(i, place, number) for number in numbers]
            if not opened:
                break
            items = [i for i, _, _ in opened]
            if level < len(SHIFTS):
                places = self._child_places(
                    [asked[i].key for i in items], level, [number for *_, number in opened]
                )
            else:
                places = [_block_place(place, number) for _, place, number in opened]
            wanted = list(zip(items, places, strict=True))
        self._use_logs(logs, asked, totals, aggregations)
        return totals

    def _use(
        self,
        children: list[tuple[int, int, int, list[Any]]],
        cuts: tuple[int, ...],
        totals: list[Partials],
        *,
        exhaustive: bool,
    ) -> list[int]:
        """Add the partials of children (number, first and last time, partials) in one interval; the
        numbers of those to be opened.
        """
        opened: list[int] = []
        for child, first, last, packed in children:
            interval = _interval(cuts, first)
            if interval == len(cuts):
                continue
            if last > cuts[interval] or exhaustive or None in packed:
                opened.append(child)
                continue
            total = totals[interval]
            for j, aggregation in enumerate(self._aggregations):
                total[j] = aggregation.merge(total[j], aggregation.unpack(packed[j]))
        return opened

    def _use_logs(
        self,
        logs: list[tuple[int, TileNode]],
        asked: Sequence[TileQuery],
        totals: list[list[Partials]],
        aggregations: Sequence[Aggregator[Any]],
    ) -> None:
        if sum(node.count for _, node in logs) <= MAX_SMALL_EVENTS:
            self._use_few(logs, asked, totals, aggregations)
            return
        records = load_records(self._layout, [(node.structs, node.heap) for _, node in logs])
        cuts = np.array([asked[i].cuts for i, _ in logs], dtype=np.int64)
        counts = [node.count for _, node in logs]
        interval = (records.ts[:, None] > np.repeat(cuts, counts, axis=0)).sum(axis=1)
        width = cuts.shape[1]
        segment = (
            np.repeat(np.array([i for i, _ in logs], dtype=np.int64), counts) * width + interval
        )
        order = np.flatnonzero(interval < width)
        order = order[np.argsort(segment[order], kind="stable")]
        if len(order) == 0:
            return
        segment = segment[order]
        starts = _starts(segment)
        events = Events.of(records.take(order), starts)
        partials = zip(*(aggregation.update(events) for aggregation in aggregations), strict=True)
        for here, new in zip(segment[starts].tolist(), partials, strict=True):
            total = totals[here // width][here % width]
            for j, aggregation in enumerate(aggregations):
                total[j] = aggregation.merge(total[j], new[j])

    def _use_few(
        self,
        logs: list[tuple[int, TileNode]],
        asked: Sequence[TileQuery],
        totals: list[list[Partials]],
        aggregations: Sequence[Aggregator[Any]],
    ) -> None:
        for i, group in groupby(sorted(logs, key=itemgetter(0)), key=itemgetter(0)):
            events = parse_small(self._layout, [(node.structs, node.heap) for _, node in group])
            for interval, inside in events.within(asked[i].cuts):
                total = totals[i][interval]
                for j, aggregation in enumerate(aggregations):
                    (new,) = aggregation.update(inside)
                    total[j] = aggregation.merge(total[j], new)

    def _child_places(self, keys: list[bytes], level: int, children: list[int]) -> list[bytes]:
        mark = bytes([level + 1])
        return [
            prefix + mark + time_bytes(child)
            for prefix, child in zip(prefixes(self._nodes, keys), children, strict=True)
        ]


def _span(place: bytes, level: int, child: int) -> tuple[int, int]:
    """First and last time of a child; a block spans what the node it was put aside from does."""
    shift = SHIFTS[min(level, len(SHIFTS) - 1)]
    number = child if level < len(SHIFTS) else time_of(place, len(place) - TIME_BYTES)
    return number << shift, ((number + 1) << shift) - 1


def _block_place(place: bytes, number: int) -> bytes:
    return place + number.to_bytes(4, "big")


def _interval(cuts: tuple[int, ...], moment: int) -> int:
    for i, cut in enumerate(cuts):
        if moment <= cut:
            return i
    return len(cuts)


@dataclass(frozen=True, slots=True)
class _Cut:
    """Logs, one after the other, cut into blocks. `blocks`: the block of each record, −1 where it
    stays; `stays` and `ends`: per log.
    """

    blocks: Ints
    firsts: Ints
    stays: Ints
    ends: Ints

    def node_of(self, blocks: Ints) -> Ints:
        """The log of each block."""
        return np.searchsorted(self.firsts, blocks, side="right") - 1


def _cut(counts: Sequence[int], length: int) -> _Cut:
    """Blocks of `length` records, numbered so that they ascend; what is left of a log stays."""
    sizes = np.array(counts, dtype=np.int64)
    ends = np.cumsum(sizes)
    firsts = ends - sizes
    stays = firsts + sizes // length * length
    nodes = np.repeat(np.arange(len(sizes)), sizes)
    rows = np.arange(len(nodes))
    blocks = np.where(rows < stays[nodes], firsts[nodes] + (rows - firsts[nodes]) // length, -1)
    return _Cut(blocks, firsts, stays, ends)


def _without_cancelled(records: Records, blocks: Ints) -> tuple[Records, Ints]:
    """Blocks in which something is taken back hold every event once, or not at all; the others stay
    as they are.
    """
    taking = np.unique(blocks[records.weight < 0])
    if len(taking) == 0:
        return records, blocks
    alone = len(records) + np.arange(len(records)) + int(blocks.max())
    merged, owners = records.merged_within(np.where(np.isin(blocks, taking), blocks, alone))
    return merged, np.where(owners < alone[0], owners, blocks[np.maximum(owners - alone[0], 0)])


def _starts(*columns: Ints) -> Ints:
    """Where a new combination of values begins in sorted columns."""
    changes = np.zeros(len(columns[0]), dtype=bool)
    changes[:1] = True
    for column in columns:
        changes[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(changes)
