"""Positions: the total order of accepted rows.

A position is a byte string, compared left to right: 8 bytes of hybrid logical clock (48 bits of
milliseconds, 16 bits of counter), 2 bytes of server id, 4 bytes of row number. A union appends the
branch and an explode the element (4 bytes each), so the position of a derived row stays unique and
keeps the order of its input. Positions break ties of event time everywhere, so content never
depends on the order of arrival. They are stored on topics and in state: changing the layout needs
a new format version.
"""

from __future__ import annotations

from typing import NewType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Hlc = NewType("Hlc", int)
"""Hybrid logical clock: milliseconds since 1970 << 16 | counter."""

LENGTH = 14
COUNTER_BITS = 16
_LAYOUT = np.dtype([("hlc", ">u8"), ("server", ">u2"), ("row", ">u4")])


def next_hlc(last: Hlc, now_ms: int) -> Hlc:
    """Return the clock value after `last` at wall-clock time `now_ms`.

    It always increases, even if the wall clock goes back.
    """
    return Hlc(max(last + 1, now_ms << COUNTER_BITS))


def stamp(hlc: Hlc, server: int, rows: int, first_row: int = 0) -> pa.Array:
    """Return positions of `rows` consecutive rows of one request, each of `LENGTH` bytes."""
    out = np.empty(rows, dtype=_LAYOUT)
    out["hlc"], out["server"] = hlc, server
    out["row"] = np.arange(first_row, first_row + rows, dtype=np.uint32)
    fixed = pa.Array.from_buffers(pa.binary(LENGTH), rows, [None, pa.py_buffer(out.tobytes())])
    return fixed.cast(pa.large_binary())


def hlc_of(position: bytes) -> Hlc:
    """Return the stamp of a position, extended or not."""
    return Hlc(int.from_bytes(position[:8], "big"))


def following(first: bytes, rows: int) -> pa.Array:
    """Return the positions of `rows` consecutive rows of one request, of which `first` is first."""
    assert len(first) == LENGTH, "rows of a request have no extended positions"
    ((hlc, server, row),) = np.frombuffer(first, dtype=_LAYOUT).tolist()
    return stamp(hlc, server, rows, row)


def extend(positions: pa.Array, elements: pa.Array) -> pa.Array:
    """Return each position with a 4-byte element appended.

    The element is the branch of a union or the index within an exploded list.
    """
    raw = np.asarray(elements, dtype=">u4").tobytes()
    suffix = pa.Array.from_buffers(pa.binary(4), len(elements), [None, pa.py_buffer(raw)]).cast(
        pa.large_binary()
    )
    return pc.binary_join_element_wise(positions, suffix, pa.scalar(b"", pa.large_binary()))
