"""The content of a dataset as of a time, from its signed versions.

Theory. A retraction carries the timestamp and position of what it takes back, so "at or before T"
keeps both of a pair or neither, and taking back commutes with choosing a time. What is left is a
bag of events, or of versions of which the latest per key, by (timestamp, position), is the content;
a tombstone that is the latest means that the key is not there. Erased keys are not there at any
time.
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
    """Rows of the dataset at `as_of` (inclusive), with the dataset's columns, in no particular
    order.

    `versions`: columns of `vocab.versions`, all versions of each key that is in it.
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
    for each in erased:
        if set(each.columns) <= set(schema.names) and not left.is_empty():
            left = left.filter(
                pl.Series(
                    [key not in each.keys for key in key_bytes(left, each.columns)],
                    dtype=pl.Boolean,
                )
            )
    return left.select(schema.names)


def _consolidated(versions: pl.DataFrame, schema: Schema) -> pl.DataFrame:
    """The versions that were added and not taken back. Only rows at a position where something was
    taken back are compared.
    """
    touched = versions.filter(pl.col(SIGN) < 0).select(POS).unique()
    if touched.is_empty():
        return versions
    compared = versions.join(touched, on=POS, how="semi")
    rows = pl.Series(_ROW, encode_rows(compared, (*schema.names, IS_TOMBSTONE)), dtype=pl.Binary)
    net = (
        compared.with_columns(rows)
        .group_by(POS, _ROW)
        .agg(pl.exclude(SIGN).first(), pl.col(SIGN).cast(pl.Int64).sum())
    )
    kept = (
        net.filter(pl.col(SIGN) > 0)
        .with_columns(pl.col(SIGN).cast(pl.Int8))
        .select(versions.columns)
    )
    return pl.concat([versions.join(touched, on=POS, how="anti"), kept])
