"""Select the typed rows of a source: bounds of event time, sampling, erased keys.

Each is a function of the row and the definition, so it gives the same result whenever a row is
typed. Rows with *erased* keys are never accepted. *Sampling* hashes the key bytes of the named
columns, so every server keeps or drops a key as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import numpy as np
import polars as pl

from fennel_core.connections.erasures import ErasedKeys
from fennel_core.vocab.keys import key_bytes
from fennel_core.wire.connectors import Sampling, Source

HASH_SPACE = 1 << 32


def within_bounds(times_us: pl.Series, source: Source) -> pl.Series | None:
    """Return a mask of event times (µs) within `since` and `until`, both inclusive.

    None: the source has no bounds.
    """
    if source.since_us is None and source.until_us is None:
        return None
    low = source.since_us if source.since_us is not None else times_us.min()
    high = source.until_us if source.until_us is not None else times_us.max()
    return times_us.is_between(low, high)


def not_erased(rows: pl.DataFrame, erased: Sequence[ErasedKeys]) -> pl.Series | None:
    """Return a mask of rows without an erased key; None when no row has one."""
    erased_rows = np.zeros(len(rows), dtype=np.bool_)
    for each in erased:
        # An older version of the dataset may have had other keys.
        if set(each.columns) <= set(rows.columns):
            erased_rows |= np.fromiter(
                map(each.keys.__contains__, key_bytes(rows, each.columns)),
                dtype=np.bool_,
                count=len(rows),
            )
    return pl.Series(~erased_rows) if erased_rows.any() else None


def sampled(rows: pl.DataFrame, sampling: Sampling | None) -> pl.Series | None:
    """Return a mask of the rows in the sample; None when it keeps all rows."""
    if sampling is None or sampling.rate >= 1.0:
        return None
    keys: Sequence[bytes] = key_bytes(rows, sampling.columns)
    # The comparison below uses the high bits: the low ones choose the partition.
    hashes = np.fromiter(map(crc32, keys), dtype=np.uint64, count=len(keys))
    return pl.Series(hashes < np.uint64(sampling.rate * HASH_SPACE))
