"""The groups of erased keys, which are not compared: history may have lost their rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from fennel_core.connections.erasures import ErasedKeys


def keys_not_erased(
    known: frozenset[bytes], columns: Sequence[str], erased: Iterable[ErasedKeys]
) -> frozenset[bytes]:
    """Return the keys, of `columns`, that are not erased: only these can be compared."""
    gone = set()
    for each in erased:
        if set(each.columns) <= set(columns):
            places = [columns.index(name) for name in each.columns]
            for key in known:
                values = msgspec.msgpack.decode(key)
                if msgspec.msgpack.encode([values[place] for place in places]) in each.keys:
                    gone.add(key)
    return known - gone
