"""The stored form of tiles: nodes, their state keys, and the packed partials inside them.

A node is stored as

    count      4 bytes, big-endian: number of records in the buffer
    length     4 bytes, big-endian: number of bytes of the summaries
    summaries  msgpack map: child number -> one packed partial per aggregator, nil where not kept
    records    the buffered records: structs, then heap (`aggregates.records`)

State keys: the tag of the roots and the key for a root; the tag of the nodes, the key, the level
(one byte) and the ordered number of the time span (8 bytes) for a node below; the key of its parent
and 4 bytes for a block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any

import msgspec

from fennel_core.aggregates.aggregation import Aggregator, AnyEvents, Packed
from fennel_core.aggregates.records import PackedRecords
from fennel_core.operators.rows import TIME_BYTES, prefixes, time_bytes, time_of

ROOTS = b"a"
NODES = b"n"
SHIFTS = (43, 39, 35, 31, 27, 23, 19, 15)
"""Children of level i span 2^SHIFTS[i] µs each."""

_HEADER = Struct(">II")
_encode_summaries = msgspec.msgpack.Encoder().encode
_decode_summaries = msgspec.msgpack.Decoder(dict[int, list[Any]]).decode

Partials = list[Any]
"""One partial per aggregator."""
PackedPartials = list[Packed]
"""One packed partial per aggregator; None where the partial was too large to keep."""
Summaries = dict[int, PackedPartials]
"""The partials of a node's children by child number."""

NO_SUMMARIES = b"\x80"
"""The stored form of the summaries of a node without children: an empty msgpack map."""


@dataclass(frozen=True, slots=True)
class TileNode:
    """One stored node. `count` is the number of buffered records; `packed_summaries` stay packed
    until they are needed, because most writes only append to the buffer.
    """

    count: int
    packed_summaries: bytes
    records: PackedRecords

    @classmethod
    def parse(cls, stored: bytes | None, struct_bytes: int) -> TileNode:
        """Return the node in `stored`, whose records have `struct_bytes` each; None: no node."""
        if stored is None:
            return EMPTY_NODE
        count, length = _HEADER.unpack_from(stored)
        structs = _HEADER.size + length
        heap = structs + count * struct_bytes
        assert heap <= len(stored), "a node holds the records it counts"
        return cls(
            count,
            stored[_HEADER.size : structs],
            PackedRecords(stored[structs:heap], stored[heap:]),
        )

    def stored(self) -> bytes:
        """Return the bytes to store, the inverse of `parse`."""
        header = _HEADER.pack(self.count, len(self.packed_summaries))
        return b"".join((header, self.packed_summaries, *self.records))

    def summaries(self) -> Summaries:
        return _decode_summaries(self.packed_summaries)


EMPTY_NODE = TileNode(0, NO_SUMMARIES, PackedRecords(b"", b""))


def append_records(
    stored: bytes | None, struct_bytes: int, count: int, records: PackedRecords
) -> tuple[int, bytes]:
    """Append `count` records to the buffer of a stored node; return its new count and form.

    Splices bytes instead of building nodes, because this runs once per key of every batch.
    """
    structs, heap = records
    if stored is None:
        return count, b"".join(
            (_HEADER.pack(count, len(NO_SUMMARIES)), NO_SUMMARIES, structs, heap)
        )
    old_count, length = _HEADER.unpack_from(stored)
    heap_start = _HEADER.size + length + old_count * struct_bytes
    assert heap_start <= len(stored), "a node holds the records it counts"
    total = old_count + count
    before, old_heap = stored[_HEADER.size : heap_start], stored[heap_start:]
    return total, b"".join((_HEADER.pack(total, length), before, structs, old_heap, heap))


def pack_summaries(summaries: Summaries) -> bytes:
    """Return summaries in the form in which a node stores them."""
    return _encode_summaries(summaries)


class PartialsCodec:
    """Partials of all aggregators of a job at once, and their packed form."""

    def __init__(self, aggregators: Sequence[Aggregator[Any]]) -> None:
        self._aggregators = tuple(aggregators)

    def exhaustive(self) -> PartialsCodec:
        """Return the codec whose partials keep every element (never INCOMPLETE)."""
        return PartialsCodec([aggregator.exhaustive() for aggregator in self._aggregators])

    def empty(self) -> Partials:
        """Return the partials of no events."""
        return [aggregator.empty for aggregator in self._aggregators]

    def update(self, events: AnyEvents) -> Iterator[tuple[Any, ...]]:
        """Return the partials of each segment of `events`."""
        return zip(*(aggregator.update(events) for aggregator in self._aggregators), strict=True)

    def pack(self, partials: Sequence[Any]) -> PackedPartials:
        return [
            aggregator.pack(partial)
            for aggregator, partial in zip(self._aggregators, partials, strict=True)
        ]

    def add(self, packed: PackedPartials | None, partials: Sequence[Any]) -> PackedPartials:
        """Return packed partials with `partials` merged in. One that was not kept stays None."""
        if packed is None:
            return self.pack(partials)
        return [
            None if old is None else a.pack(a.merge(a.unpack(old), new))
            for a, old, new in zip(self._aggregators, packed, partials, strict=True)
        ]

    def merge_packed(self, total: Partials, packed: PackedPartials) -> None:
        """Merge packed partials, all of them kept, into `total`, which began as `empty`."""
        for i, aggregator in enumerate(self._aggregators):
            total[i] = aggregator.accumulate(total[i], aggregator.unpack(packed[i]))

    def merge(self, total: Partials, partials: Sequence[Any]) -> None:
        """Merge `partials` into `total`, which began as `empty`."""
        for i, aggregator in enumerate(self._aggregators):
            total[i] = aggregator.accumulate(total[i], partials[i])


def child_keys(
    tag: bytes, keys: Sequence[bytes], level: int, children: Sequence[int]
) -> list[bytes]:
    """Return the state keys of children of nodes of `level`, one per key and child number."""
    level_byte = bytes([level + 1])
    return [
        prefix + level_byte + time_bytes(child)
        for prefix, child in zip(prefixes(tag, keys), children, strict=True)
    ]


def block_key(parent: bytes, number: int) -> bytes:
    """Return the state key of a block of a node of the last level."""
    return parent + number.to_bytes(4, "big")


def child_span(parent: bytes, level: int, child: int) -> tuple[int, int]:
    """Return the first and last time of a child. A block spans the same time as its parent."""
    shift = SHIFTS[min(level, len(SHIFTS) - 1)]
    number = child if level < len(SHIFTS) else time_of(parent, len(parent) - TIME_BYTES)
    return number << shift, ((number + 1) << shift) - 1
