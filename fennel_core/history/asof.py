"""Compute the content of a dataset as of a time, from its signed versions.

Theory. A retraction has the timestamp and position of the version that it retracts. So a filter
"at or before T" keeps both of a pair or neither, and applying retractions commutes with choosing a
time. The remaining versions are a bag of events. For a keyed dataset the content is the latest
version per key, by (timestamp, position); if that is a tombstone, the key is absent. Erased keys
are absent at every time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from fennel_core.connections.erasures import ErasedKeys
from fennel_core.operators.rows import encode_rows
from fennel_core.vocab.ids import Micros
from fennel_core.vocab.keys import key_bytes
from fennel_core.vocab.schema import Schema
from fennel_core.vocab.versions import IS_TOMBSTONE, META, POS, SIGN

_ROW: Final = "__row"


def content(
    versions: pl.DataFrame, schema: Schema, as_of: Micros, erased: Sequence[ErasedKeys] = ()
) -> pl.DataFrame:
    """Return the rows of the dataset at `as_of` (inclusive), in no particular order.

    `versions` has the columns of `vocab.versions` and all versions of each key in it. The result
    has the dataset's columns. `schema` may lack columns of the dataset: rows that differ in these
    only are as many as they are.
    """
    past = versions.select(*schema.names, *META).filter(
        pl.col(schema.timestamp).to_physical() <= as_of
    )
    left = _consolidated(past, schema)
    if schema.keyed:
        latest = left.sort(schema.timestamp, POS).unique(
            schema.key_names, keep="last", maintain_order=True
        )
        left = latest.filter(~pl.col(IS_TOMBSTONE))
    return without_erased(left, erased).select(schema.names)


def without_erased(rows: pl.DataFrame, erased: Sequence[ErasedKeys]) -> pl.DataFrame:
    """Return the rows that are not erased. Erasures of columns that they lack are ignored."""
    for each in erased:
        if set(each.columns) <= set(rows.columns) and not rows.is_empty():
            rows = rows.filter(
                pl.Series(
                    [key not in each.keys for key in key_bytes(rows, each.columns)],
                    dtype=pl.Boolean,
                )
            )
    return rows


def _consolidated(versions: pl.DataFrame, schema: Schema) -> pl.DataFrame:
    """Return the versions that were not retracted.

    Only rows at a position with a retraction are compared, because comparing needs encoding.
    """
    retracted = versions.filter(pl.col(SIGN) < 0).select(POS).unique()
    if retracted.is_empty():
        return versions
    compared = versions.join(retracted, on=POS, how="semi")
    rows = pl.Series(_ROW, encode_rows(compared, (*schema.names, IS_TOMBSTONE)), dtype=pl.Binary)
    net = (
        compared.with_columns(rows)
        .group_by(POS, _ROW)
        .agg(pl.exclude(SIGN).first(), pl.col(SIGN).cast(pl.Int64).sum())
    )
    left = net.filter(pl.col(SIGN) > 0)
    copies = left.select(pl.int_ranges(SIGN).alias(_ROW)).to_series()
    kept = (
        left.with_columns(pl.lit(1, dtype=pl.Int8).alias(SIGN), copies)
        .explode(_ROW)
        .select(versions.columns)
    )
    return pl.concat([versions.join(retracted, on=POS, how="anti"), kept])
