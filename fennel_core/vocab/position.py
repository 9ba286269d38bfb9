"""Positions: the total order of accepted rows.

Theory. A position is bytes compared left to right: 8 bytes of hybrid logical clock (48 bits of
milliseconds, 16 bits of counter), 2 of server id, 4 of row number; a union appends the branch and
an explode the element (4 bytes each), so a derived row's position stays unique and keeps its
input's order. It breaks ties of event time everywhere, so content never depends on arrival. The
format is at rest on topics and in state: changing it needs a new format version.
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
    """The stamp after `last` when the wall clock reads `now_ms`: never backwards, whatever the wall
    clock does.
    """
    return Hlc(max(last + 1, now_ms << COUNTER_BITS))


def stamp(hlc: Hlc, server: int, rows: int, first_row: int = 0) -> pa.Array:
    """Positions of `rows` consecutive rows of one request: large_binary of length `LENGTH` each."""
    out = np.empty(rows, dtype=_LAYOUT)
    out["hlc"], out["server"] = hlc, server
    out["row"] = np.arange(first_row, first_row + rows, dtype=np.uint32)
    fixed = pa.Array.from_buffers(pa.binary(LENGTH), rows, [None, pa.py_buffer(out.tobytes())])
    return fixed.cast(pa.large_binary())


def extend(positions: pa.Array, elements: pa.Array) -> pa.Array:
    """Each position with a 4-byte element appended (the branch of a union, the element of an
    explode).
    """
    raw = np.asarray(elements, dtype=">u4").tobytes()
    suffix = pa.Array.from_buffers(pa.binary(4), len(elements), [None, pa.py_buffer(raw)]).cast(
        pa.large_binary()
    )
    return pc.binary_join_element_wise(positions, suffix, pa.scalar(b"", pa.large_binary()))
