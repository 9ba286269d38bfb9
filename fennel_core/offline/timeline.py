"""The timeline: versions of several datasets and requests for them, in one order.

Theory. The row of a key as of time T is a function of the versions of that key at or before T. So
in the order (key, time, source, position), with requests after the versions of their time, each
request follows everything it depends on, and a reader needs one pass and remembers one key. A sort
by key is what a shuffle does anyway, and one that spills to disk bounds memory for every key,
however many versions or requests it has. Nothing here depends on where a timeline is cut into
chunks.

Example. Dataset 0 has versions of key `a` at times 1 and 5; there are requests for `a` at 5 and for
`b` at 9. The timeline, with `R` for requests:

    (a, 1, 0) (a, 5, 0) (a, 5, R) (b, 9, R)

The second row is the answer of the third, and the fourth has none: a new key begins before it.

Columns: `KEY` (key bytes), `TIME` (microseconds), `SOURCE` (number of the dataset, `REQUEST` or
`PASS_THROUGH`), the columns of `vocab.versions.META`, for requests what travels with them, and for
dataset n its own columns as `version_column(n, name)`. A column that a row does not have is null,
or is not there at all: a `TimelineChunk` keeps the rows of each kind apart, and their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl
from polars import selectors as cs

from fennel_core.offline.rows import ROW
from fennel_core.vocab.keys import key_series
from fennel_core.vocab.versions import IS_TOMBSTONE, META, POS, SIGN

KEY: Final = "__key"
TIME: Final = "__time"
SOURCE: Final = "__source"
REQUEST: Final = 127
"""The `SOURCE` of a request: above every number of a dataset, so that requests come last."""
PASS_THROUGH: Final = 126
"""The `SOURCE` of a row that asks for nothing and only travels with the others."""
ORDER: Final = (KEY, TIME, SOURCE, POS)
PLACE: Final = "__place"
_ORDERED: Final = (KEY, TIME, SOURCE, *META)
CHUNK_ROWS: Final = 50_000
"""Rows of a chunk: enough to be vectorized, and few enough for many of them to fit in memory."""


def version_column(source: int, name: str) -> str:
    """Return the name that a column of dataset number `source` has in a timeline."""
    return f"{source}.{name}"


def version_rows(
    versions: pl.DataFrame, source: int, keys: Sequence[str], time: str, columns: Sequence[str]
) -> pl.DataFrame:
    """Return versions as rows of a timeline.

    `versions` has the columns of `vocab.versions`; `keys` are its key columns, `time` the column
    whose time counts, `columns` those to keep.
    """
    assert source < PASS_THROUGH, "more datasets than numbers"
    return versions.select(
        key_series(versions, keys).alias(KEY),
        pl.col(time).cast(pl.Int64).alias(TIME),
        pl.lit(source, dtype=pl.Int8).alias(SOURCE),
        *META,
        *(pl.col(name).alias(version_column(source, name)) for name in columns),
    )


def request_rows(requests: pl.DataFrame) -> pl.DataFrame:
    """Return requests, which have `KEY`, `TIME` and what travels with them, as rows of a
    timeline.
    """
    return _without_version(requests, REQUEST)


def pass_through_rows(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows of a query as rows of a timeline that asks nothing for them.

    Their keys are distinct, so a shuffle spreads them, and no key of a dataset: key bytes are a
    msgpack array, which does not begin with a digit.
    """
    return _without_version(
        rows.with_columns(
            pl.col(ROW).cast(pl.String).cast(pl.Binary).alias(KEY),
            pl.lit(0, dtype=pl.Int64).alias(TIME),
        ),
        PASS_THROUGH,
    )


def _without_version(rows: pl.DataFrame, source: int) -> pl.DataFrame:
    return rows.with_columns(
        pl.lit(source, dtype=pl.Int8).alias(SOURCE),
        pl.lit(None, dtype=pl.Binary).alias(POS),
        pl.lit(None, dtype=pl.Int8).alias(SIGN),
        pl.lit(None, dtype=pl.Boolean).alias(IS_TOMBSTONE),
    )


def in_order(
    parts: Sequence[pl.DataFrame], sources: int, chunk_rows: int = CHUNK_ROWS
) -> Iterator[TimelineChunk]:
    """Yield the timeline of `parts` in chunks, at least one, sorted in memory; `sources`: the
    number of datasets.
    """
    timeline = pl.concat(parts, how="diagonal").sort(ORDER, maintain_order=True)
    for first in range(0, max(timeline.height, 1), chunk_rows):
        yield TimelineChunk.of(timeline[first : first + chunk_rows], sources)


@dataclass(frozen=True, slots=True)
class SeenVersions:
    """The versions of one dataset, and the requests for them.

    `order` has both in order, with `KEY`, `TIME`, `SOURCE`, `META` and `PLACE`: of a version the
    place in `own`, which has the columns of its dataset; of a request null.
    """

    order: pl.DataFrame
    own: pl.DataFrame

    def frame(self) -> pl.DataFrame:
        """Return both with the columns of the dataset, which are null for requests."""
        places = self.order[PLACE]
        return self.order.drop(PLACE).hstack(self.own.select(pl.all().gather(places)))


@dataclass(frozen=True, slots=True)
class TimelineChunk:
    """Some rows of a timeline, those of each kind with their own columns.

    `order` has `KEY`, `TIME`, `SOURCE`, `META` and `PLACE`, the number of a row among those of its
    kind: `rows`, which are requests and rows that pass through, or `versions` of a dataset.
    """

    order: pl.DataFrame
    rows: pl.DataFrame
    versions: Mapping[int, pl.DataFrame]

    @classmethod
    def of(cls, frame: pl.DataFrame, sources: int) -> TimelineChunk:
        """Return a chunk of a frame with all columns; `sources`: the number of datasets."""
        order = frame.select(*_ORDERED, pl.int_range(pl.len(), dtype=pl.UInt32).alias(PLACE))
        versions = {
            number: frame.select(cs.starts_with(version_column(number, "")))
            for number in range(sources)
        }
        own = [name for of in versions.values() for name in of.columns]
        return cls(order, frame.drop(*_ORDERED, *own), versions)

    def seen_by(self, number: int) -> SeenVersions:
        """Return the versions of one dataset and the requests."""
        order = self.order.filter((pl.col(SOURCE) == number) | (pl.col(SOURCE) == REQUEST))
        place = pl.when(pl.col(SOURCE) == number).then(PLACE).alias(PLACE)
        return SeenVersions(order.with_columns(place), self.versions[number])

    def rows_of(self, source: int) -> tuple[pl.Series, pl.DataFrame]:
        """Return the keys and the rows of requests (`REQUEST`), or those that pass through."""
        order = self.order.filter(pl.col(SOURCE) == source)
        return order[KEY], self.rows[order[PLACE]]
