"""Add records to the tiles of their keys (`tiles.py` has the theory and an example).

All keys of a batch are written at once, level by level: NumPy works over the records, Python over
the children that were touched. A flush moves blocks of exactly one record more than a buffer may
hold, so the bytes of a tree are a function of the order of its key's records and not of the batches
in which they arrived. The live path and a backfill therefore reach the same state hash.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fennel_core.aggregates.aggregation import Events
from fennel_core.aggregates.exact import Ints
from fennel_core.aggregates.records import RecordLayout, Records, load_records
from fennel_core.operators.aggregate.tile_codec import (
    NO_SUMMARIES,
    SHIFTS,
    PartialsCodec,
    TileNode,
    append_records,
    block_key,
    child_keys,
    pack_summaries,
)
from fennel_core.operators.rows import prefixes
from fennel_core.operators.step import StateReader

BUFFER_RECORDS = 256
"""Records a buffer may hold before it is flushed: the events a reader scans at the edge of a slice,
and the records a batch rewrites per key it touches.
"""
BLOCK_RECORDS = 2048
"""Records a buffer of the last level may hold before it is cut into blocks."""


@dataclass(frozen=True, slots=True)
class _Segments:
    """Records sorted by node: those of the node at `state_keys[i]`, which belongs to `keys[i]`,
    begin at `starts[i]`.
    """

    state_keys: list[bytes]
    keys: list[bytes]
    records: Records
    starts: Ints


@dataclass(frozen=True, slots=True)
class _FullNode:
    """A node whose buffer exceeds its limit and that is not written yet."""

    state_key: bytes
    key: bytes
    node: TileNode


class TileWriter:
    """Writes the trees under the table tags `tags`: (roots, nodes)."""

    def __init__(
        self, layout: RecordLayout, partials: PartialsCodec, tags: tuple[bytes, bytes]
    ) -> None:
        self._layout = layout
        self._partials = partials
        self._root_tag, self._node_tag = tags
        self._struct_bytes = layout.struct.itemsize

    def add(
        self, reads: StateReader, keys: Sequence[bytes], records: Records, starts: Ints
    ) -> dict[bytes, bytes]:
        """Return the puts that add `records`, which belong to `keys[i]` from `starts[i]` on."""
        puts: dict[bytes, bytes] = {}
        segments = _Segments(prefixes(self._root_tag, keys), list(keys), records, starts)
        for level in range(len(SHIFTS)):
            full = self._append(reads, segments, puts, BUFFER_RECORDS)
            if not full:
                return puts
            segments = self._flush(full, level, puts)
        for leaf in self._append(reads, segments, puts, BLOCK_RECORDS):
            self._cut_blocks(leaf, puts)
        return puts

    def _append(
        self, reads: StateReader, segments: _Segments, puts: dict[bytes, bytes], limit: int
    ) -> list[_FullNode]:
        """Append each segment to its node's buffer. Nodes whose buffer now exceeds `limit` are
        returned and not written.
        """
        edges = [*segments.starts.tolist(), len(segments.records)]
        added = segments.records.slices(edges[:-1], edges[1:])
        stored = reads.get_many(segments.state_keys)
        full: list[_FullNode] = []
        for i, (state_key, old, pack) in enumerate(
            zip(segments.state_keys, stored, added, strict=True)
        ):
            count, stored_node = append_records(
                old, self._struct_bytes, edges[i + 1] - edges[i], pack
            )
            if count > limit:
                node = TileNode.parse(stored_node, self._struct_bytes)
                full.append(_FullNode(state_key, segments.keys[i], node))
            else:
                puts[state_key] = stored_node
        return full

    def _flush(self, full: list[_FullNode], level: int, puts: dict[bytes, bytes]) -> _Segments:
        """Flush the full blocks of buffers to the children; the rest of each buffer stays. Returns
        the records to append to the children.
        """
        records = load_records(self._layout, [parent.node.records for parent in full])
        cut = _cut([parent.node.count for parent in full], BUFFER_RECORDS + 1)
        rests = records.slices(cut.rest_starts.tolist(), cut.ends.tolist())
        moved = cut.blocks >= 0
        records, blocks = _without_cancelled(records.take(np.flatnonzero(moved)), cut.blocks[moved])
        parents, children = cut.node_of(blocks), records.ts >> SHIFTS[level]
        order = np.lexsort((blocks, children, parents))
        records, blocks = records.take(order), blocks[order]
        parents, children = parents[order], children[order]
        summaries = [parent.node.summaries() for parent in full]
        pieces = starts_of_runs(parents, children, blocks)
        if len(pieces):
            updates = self._partials.update(Events.of(records, pieces))
            for parent, child, partials in zip(
                parents[pieces].tolist(), children[pieces].tolist(), updates, strict=True
            ):
                of_parent = summaries[parent]
                of_parent[child] = self._partials.add(of_parent.get(child), partials)
        for parent_node, summary, rest, count in zip(
            full, summaries, rests, (cut.ends - cut.rest_starts).tolist(), strict=True
        ):
            # Sorted, because the stored bytes must not depend on the order of arrival of children.
            packed = pack_summaries(dict(sorted(summary.items())))
            puts[parent_node.state_key] = TileNode(count, packed, rest).stored()
        starts = starts_of_runs(parents, children)
        keys = [full[parent].key for parent in parents[starts].tolist()]
        state_keys = child_keys(self._node_tag, keys, level, children[starts].tolist())
        return _Segments(state_keys, keys, records, starts)

    def _cut_blocks(self, leaf: _FullNode, puts: dict[bytes, bytes]) -> None:
        """Turn the full stretches of the buffer of a node of the last level into blocks."""
        node = leaf.node
        records = load_records(self._layout, [node.records])
        length = BLOCK_RECORDS + 1
        edges = [*range(0, node.count + 1, length), node.count]
        packs = records.slices(edges[:-1], edges[1:])
        events = Events.of(records.take(np.arange(edges[-2])), np.array(edges[:-2], dtype=np.int64))
        summaries = node.summaries()
        # The last pack is the rest, which stays in the buffer and has no partials.
        for pack, partials in zip(packs, self._partials.update(events), strict=False):
            number = len(summaries)
            summaries[number] = self._partials.pack(partials)
            puts[block_key(leaf.state_key, number)] = TileNode(length, NO_SUMMARIES, pack).stored()
        rest = TileNode(node.count - edges[-2], pack_summaries(summaries), packs[-1])
        puts[leaf.state_key] = rest.stored()


@dataclass(frozen=True, slots=True)
class _Cut:
    """Consecutive buffers cut into blocks. `blocks`: the block of each record, -1 where it stays;
    `firsts`, `rest_starts`, `ends`: per buffer, its first record, the first that stays, its end.
    """

    blocks: Ints
    firsts: Ints
    rest_starts: Ints
    ends: Ints

    def node_of(self, blocks: Ints) -> Ints:
        """Return the number of the buffer of each block."""
        return np.searchsorted(self.firsts, blocks, side="right") - 1


def _cut(counts: Sequence[int], length: int) -> _Cut:
    """Cut buffers of `counts` records into blocks of `length` records, numbered in ascending order.
    The remainder of each buffer stays.
    """
    sizes = np.array(counts, dtype=np.int64)
    ends = np.cumsum(sizes)
    firsts = ends - sizes
    rest_starts = firsts + sizes // length * length
    nodes = np.repeat(np.arange(len(sizes)), sizes)
    rows = np.arange(len(nodes))
    inside = firsts[nodes] + (rows - firsts[nodes]) // length
    return _Cut(np.where(rows < rest_starts[nodes], inside, -1), firsts, rest_starts, ends)


def _without_cancelled(records: Records, blocks: Ints) -> tuple[Records, Ints]:
    """Return the records without events that cancel out within their block.

    In a block that contains a retraction every event remains once or not at all; other blocks stay
    as they are.
    """
    retracting = np.unique(blocks[records.weight < 0])
    if len(retracting) == 0:
        return records, blocks
    # Records of the other blocks get an owner each, so that nothing is merged there.
    alone = len(records) + np.arange(len(records)) + int(blocks.max())
    merged, owners = records.merged_within(np.where(np.isin(blocks, retracting), blocks, alone))
    return merged, np.where(owners < alone[0], owners, blocks[np.maximum(owners - alone[0], 0)])


def starts_of_runs(*columns: Ints) -> Ints:
    """Return where a new combination of values begins in sorted columns."""
    changes = np.zeros(len(columns[0]), dtype=bool)
    changes[:1] = True
    for column in columns:
        changes[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(changes)
