"""What a message of a dataset's topic changes, as events.

Theory. A topic carries signed versions (`vocab.versions`), and a retraction and its replacement are
in one message. So an event adds a version, withdraws one, or does both to a key, and depends on
that message alone: how messages are brought together in batches changes nothing.

    added                retracted            event
    a row                none or a tombstone  `c`: after = the row
    a row                a row                `u`: before = the old row, after = the new one
    a tombstone          none or a tombstone  `d`: before = the key, other columns null
    a tombstone          a row                `d`: before = the old row
    none                 a row                `d`, a retraction: before = the old row
    none                 a tombstone          `d`, a retraction: before = the key
    the same             the same             none: nothing changes

Which retraction belongs to which addition of its key: the one of the same event time and position,
else of the same event time, else any. An event names the version that it withdraws: so a reader
that keeps the versions of a key knows which of them are valid, whatever pairs there are.

Events are in the order of messages. In a message, retractions come first and then additions in
order of event time: so the last event of a key is about its latest version in the message. Without
keys, each version is an event, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
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
SAME_VERSION: Final = (*MESSAGE, "key", "time", POS)


def events_of(versions: pl.DataFrame, schema: Schema) -> pl.DataFrame:
    """Return the events of versions, which have the columns of `vocab.versions` and `MESSAGE`.

    Versions are in order of messages, and a message is there as a whole. An event has `op` (`c`,
    `u` or `d`), `before` and `after`, the versions that are `added` and `retracted`: each a number
    of a row of `versions`, or null.
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
    if not schema.keyed:
        return _named(
            numbered.select(
                pl.when(pl.col(SIGN) > 0).then("row").alias("added"),
                pl.when(pl.col(SIGN) < 0).then("row").alias("retracted"),
                pl.lit(None, pl.Boolean).alias("added_gone"),
                pl.lit(value=False).alias("retracted_gone"),
            )
        )
    added, retracted = numbered.filter(pl.col(SIGN) > 0), numbered.filter(pl.col(SIGN) < 0)
    if not retracted.is_empty():
        content = pl.Series("content", encode_rows(versions, schema.names), dtype=pl.Binary)
        same = _pairs(
            added.with_columns(content=content.gather(added["row"])),
            retracted.with_columns(content=content.gather(retracted["row"])),
            (*SAME_VERSION, IS_TOMBSTONE, "content"),
        )
        added, retracted = _others(added, retracted, same)
    pairs = []
    for group in (SAME_VERSION, (*MESSAGE, "key", "time"), (*MESSAGE, "key")):
        if retracted.is_empty():
            break
        pairs.append(_pairs(added, retracted, group))
        added, retracted = _others(added, retracted, pairs[-1])
    alone = added.select(pl.col("row").alias("added"), pl.lit(None, pl.Int64).alias("retracted"))
    gone = retracted.select(pl.lit(None, pl.Int64).alias("added"), pl.col("row").alias("retracted"))
    return _named(_ordered(pl.concat([*pairs, alone, gone]), numbered))


def _pairs(added: pl.DataFrame, retracted: pl.DataFrame, group: Sequence[str]) -> pl.DataFrame:
    """Bring the n-th addition of a group, in order of time, together with its n-th retraction."""
    plus, minus = (
        side.sort("time", POS, "row").select(
            *group, pl.int_range(pl.len()).over(group).alias("rank"), pl.col("row").alias(name)
        )
        for side, name in ((added, "added"), (retracted, "retracted"))
    )
    return plus.join(minus, on=[*group, "rank"], nulls_equal=True).select("added", "retracted")


def _others(
    added: pl.DataFrame, retracted: pl.DataFrame, pairs: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the additions and retractions that are in no pair."""
    return (
        added.join(pairs, left_on="row", right_on="added", how="anti"),
        retracted.join(pairs, left_on="row", right_on="retracted", how="anti"),
    )


def _ordered(pairs: pl.DataFrame, numbered: pl.DataFrame) -> pl.DataFrame:
    """Return pairs of rows in the order of their events."""
    at = pairs.select(pl.coalesce("added", "retracted")).to_series()
    places = numbered[at].select(*MESSAGE, "time", POS, "row")
    gone = numbered[IS_TOMBSTONE]
    return (
        pl.concat([pairs, places], how="horizontal")
        .sort(*MESSAGE, pl.col("added").is_not_null(), "time", POS, "row")
        .select("added", "retracted")
        .with_columns(
            pl.col("added").map_batches(gone.gather, pl.Boolean).alias("added_gone"),
            pl.col("retracted").map_batches(gone.gather, pl.Boolean).alias("retracted_gone"),
        )
    )


def _named(pairs: pl.DataFrame) -> pl.DataFrame:
    """Return the events of pairs of rows by the table of this module."""
    old = pl.when(~pl.col("retracted_gone")).then("retracted")
    new = pl.when(~pl.col("added_gone").fill_null(value=False)).then("added")
    op = (
        pl.when(pl.col("after").is_null())
        .then(pl.lit("d"))
        .when(pl.col("before").is_null())
        .then(pl.lit("c"))
        .otherwise(pl.lit("u"))
    )
    return pairs.select(
        before=pl.when(new.is_null()).then(pl.coalesce(old, "added", "retracted")).otherwise(old),
        after=new,
        added="added",
        retracted="retracted",
    ).select(op.alias("op"), "before", "after", "added", "retracted")
