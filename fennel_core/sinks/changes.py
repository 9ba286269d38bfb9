"""What a message of a dataset's topic changes, as events.

Theory. A topic carries signed versions (`vocab.versions`), and a retraction and its replacement are
in one message. So an event is made of one version, or of a retraction and the addition of the same
key and time in the same message, and depends on that message alone: how messages are brought
together in batches changes nothing.

    added                retracted            event
    a row                none or a tombstone  `c`: after = the row
    a row                a row                `u`: before = the old row, after = the new one
    a tombstone          none or a tombstone  `d`: before = the key, other columns null
    a tombstone          a row                `d`: before = the old row
    none                 a row                `d`: before = the old row
    none                 a tombstone          none: the row before the tombstone is not known here
    the same             the same             none: nothing changes

Events are in the order of messages. In a message, removals come first and then additions in order
of event time: so the last event of a key is about its latest version in the message. Without keys,
each version is an event, in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from fennel_core.operators.rows import encode_rows
from fennel_core.vocab.keys import key_series
from fennel_core.vocab.schema import Schema
from fennel_core.vocab.versions import IS_TOMBSTONE, POS, SIGN

PART: Final = "__part"
OFFSET: Final = "__offset"
"""The partition and the offset of the message that has a version."""
MESSAGE: Final = (PART, OFFSET)


@dataclass(frozen=True, slots=True)
class ChangeEvents:
    """The events of a batch of versions.

    `frame` has, per event, `op` (`c`, `u` or `d`), and `before` and `after`: numbers of rows of the
    batch, or null. `unknown`: retracted tombstones without an event.
    """

    frame: pl.DataFrame
    unknown: int


def events_of(versions: pl.DataFrame, schema: Schema) -> ChangeEvents:
    """Return the events of versions, which have the columns of `vocab.versions` and `MESSAGE`.

    Versions are in order of messages, and a message is there as a whole.
    """
    numbered = versions.select(
        pl.int_range(pl.len(), dtype=pl.Int64).alias("row"),
        (key_series(versions, schema.key_names) if schema.keyed else pl.lit(0)).alias("key"),
        pl.col(schema.timestamp).to_physical().alias("time"),
        POS,
        SIGN,
        IS_TOMBSTONE,
        *MESSAGE,
    )
    added, retracted = numbered.filter(pl.col(SIGN) > 0), numbered.filter(pl.col(SIGN) < 0)
    if retracted.is_empty():
        return _named(_alone(added))
    if not schema.keyed:
        return _named(
            numbered.select(
                pl.when(pl.col(SIGN) > 0).then("row").alias("added"),
                pl.when(pl.col(SIGN) < 0).then("row").alias("retracted"),
                pl.lit(None, pl.Boolean).alias("added_gone"),
                pl.lit(value=False).alias("retracted_gone"),
            )
        )
    content = pl.Series("content", encode_rows(versions, schema.names), dtype=pl.Binary)
    return _named(_paired(added, retracted, content))


def _alone(added: pl.DataFrame) -> pl.DataFrame:
    return added.sort(*MESSAGE, "time", POS, maintain_order=True).select(
        pl.col("row").alias("added"),
        pl.lit(None, pl.Int64).alias("retracted"),
        pl.col(IS_TOMBSTONE).alias("added_gone"),
        pl.lit(None, pl.Boolean).alias("retracted_gone"),
    )


def _paired(added: pl.DataFrame, retracted: pl.DataFrame, content: pl.Series) -> pl.DataFrame:
    """Bring the n-th retraction of a key and time in a message together with its n-th addition."""
    group = (*MESSAGE, "key", "time")
    plus, minus = (
        side.with_columns(content=content.gather(side["row"]))
        .sort(POS, maintain_order=True)
        .with_columns(rank=pl.int_range(pl.len()).over(group))
        for side in (added, retracted)
    )
    pairs = plus.join(
        minus, on=[*group, "rank"], how="full", coalesce=True, nulls_equal=True, suffix="_old"
    )
    same = (
        (pl.col(POS) == pl.col(f"{POS}_old"))
        & (pl.col(IS_TOMBSTONE) == pl.col(f"{IS_TOMBSTONE}_old"))
        & (pl.col("content") == pl.col("content_old"))
    )
    return (
        pairs.filter(~same.fill_null(value=False))
        .with_columns(place=pl.coalesce(POS, f"{POS}_old"))
        .sort(*MESSAGE, pl.col("row").is_not_null(), "time", "place", "rank")
        .select(
            pl.col("row").alias("added"),
            pl.col("row_old").alias("retracted"),
            pl.col(IS_TOMBSTONE).alias("added_gone"),
            pl.col(f"{IS_TOMBSTONE}_old").alias("retracted_gone"),
        )
    )


def _named(pairs: pl.DataFrame) -> ChangeEvents:
    """Return the events of pairs of rows by the table of this module."""
    old = pl.when(~pl.col("retracted_gone")).then("retracted")
    new = pl.when(~pl.col("added_gone").fill_null(value=False)).then("added")
    frame = pairs.select(
        before=pl.when(new.is_null()).then(pl.coalesce(old, "added")).otherwise(old), after=new
    )
    known = frame.filter(pl.col("before").is_not_null() | pl.col("after").is_not_null())
    op = (
        pl.when(pl.col("after").is_null())
        .then(pl.lit("d"))
        .when(pl.col("before").is_null())
        .then(pl.lit("c"))
        .otherwise(pl.lit("u"))
    )
    return ChangeEvents(
        known.select(op.alias("op"), "before", "after"), frame.height - known.height
    )
