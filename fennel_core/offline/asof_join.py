"""Join the requests of a timeline to the latest versions of one keyed dataset.

Theory. In the order of a timeline the version that a request finds is the last one before it that
has its key: a running maximum over row numbers, without a loop over rows. Only versions that were
not retracted count. A retraction has the time and position of what it retracts, so the two are
neighbours, and retractions are applied to the versions of one position at a time.

Between two chunks at most this is remembered: the last version of the last key, and the versions of
the last position, which the next chunk may still retract. Equal versions are added up, so neither
grows with the number of versions of a key, nor with that of the corrections of a position as long
as a retraction is near what it retracts.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from fennel_core.offline.sources import FOUND, TableSource
from fennel_core.offline.timeline import (
    KEY,
    ORDER,
    PLACE,
    REQUEST,
    SOURCE,
    TIME,
    SeenVersions,
    version_column,
)
from fennel_core.operators.rows import encode_rows
from fennel_core.vocab.versions import IS_TOMBSTONE, POS, SIGN

_ROW: Final = "__row"


class AsOfJoin:
    """Answers the requests of one timeline, chunk by chunk, from dataset number `number`."""

    def __init__(self, source: TableSource, number: int) -> None:
        self._names = source.columns
        self._columns = [version_column(number, name) for name in source.columns]
        self._carried: SeenVersions | None = None

    @property
    def carried_rows(self) -> int:
        """The number of versions that are remembered for the next chunk."""
        return 0 if self._carried is None else self._carried.own.height

    def answer(self, seen: SeenVersions) -> pl.DataFrame:
        """Return, per request of a chunk in order, the dataset's columns and `FOUND`."""
        carried = self._carried
        rows, own = self._with_carried(seen)
        settled, unsettled = _split(rows)
        settled = self._without_retracted(settled, own)
        latest, first = _latest_versions(settled)
        last = _last_of_key(settled, rows, latest, first)
        kept = pl.concat([last, self._added_up(unsettled, own)])
        self._carried = SeenVersions(kept, own[kept[PLACE]])
        requests = np.flatnonzero((settled[SOURCE] == REQUEST).to_numpy())
        found = latest[requests] >= first[requests]
        versions = np.where(found, latest[requests], 0)
        found &= ~settled[IS_TOMBSTONE].fill_null(value=False).to_numpy()[versions]
        is_found = pl.Series(FOUND, found, dtype=pl.Boolean)
        nothing = pl.Series([None], dtype=pl.UInt32)
        places = (
            settled[PLACE]
            .gather(versions)
            .zip_with(is_found, nothing.new_from_index(0, len(versions)))
        )
        return self._gathered(carried, seen.own, places).with_columns(is_found)

    def _gathered(
        self, carried: SeenVersions | None, own: pl.DataFrame, places: pl.Series
    ) -> pl.DataFrame:
        """Return the columns of what requests have found, the first ones what was carried.

        `own` may be large, and is read as it is: joined to what was carried, it would be in pieces.
        """
        count = 0 if carried is None else carried.own.height
        before = (places < count).arg_true()
        first = 0 if before.is_empty() else int(before[-1]) + 1
        parts = [(own, places[first:] - count)]
        if carried is not None and first:
            parts.insert(0, (carried.own, places[:first]))
        return pl.concat(
            part.select(
                pl.col(column).gather(found).alias(name)
                for column, name in zip(self._columns, self._names, strict=True)
            )
            for part, found in parts
        )

    def _with_carried(self, seen: SeenVersions) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return the rows of a chunk behind those carried to it, and the columns of both."""
        order = seen.order.with_columns(pl.col(SIGN).cast(pl.Int64))  # signs are added up
        own = seen.own.select(self._columns)
        if self._carried is None:
            return order, own
        count = self._carried.own.height
        carried = self._carried.order.with_columns(
            pl.int_range(pl.len(), dtype=pl.UInt32).alias(PLACE)
        )
        behind = order.with_columns(pl.col(PLACE) + count)
        return pl.concat([carried, behind]), pl.concat([self._carried.own, own])

    def _without_retracted(self, rows: pl.DataFrame, own: pl.DataFrame) -> pl.DataFrame:
        if not (rows[SIGN] < 0).any():
            return rows
        requests = rows.filter(pl.col(SOURCE) == REQUEST)
        versions = self._netted(rows.filter(pl.col(SOURCE) != REQUEST), own)
        return pl.concat([versions.filter(pl.col(SIGN) > 0), requests]).sort(
            ORDER, maintain_order=True
        )

    def _netted(self, versions: pl.DataFrame, own: pl.DataFrame) -> pl.DataFrame:
        """Return one row per different version with the sum of its signs, none where that is 0.

        Only versions at a position with a retraction are compared, because comparing needs
        encoding.
        """
        retracted = versions.filter(pl.col(SIGN) < 0).select(POS).unique()
        if retracted.is_empty():
            return versions
        return pl.concat(
            [
                versions.join(retracted, on=POS, how="anti"),
                self._added_up(versions.join(retracted, on=POS, how="semi"), own),
            ]
        )

    def _added_up(self, versions: pl.DataFrame, own: pl.DataFrame) -> pl.DataFrame:
        """Return one row per different version with the sum of its signs, none where that is 0."""
        if versions.height < 2:
            return versions
        contents = own[versions[PLACE]].with_columns(versions[IS_TOMBSTONE])
        rows = encode_rows(contents, [*self._columns, IS_TOMBSTONE])
        return (
            versions.with_columns(pl.Series(_ROW, rows, dtype=pl.Binary))
            .group_by(KEY, TIME, POS, _ROW)
            .agg(pl.exclude(SIGN).first(), pl.col(SIGN).sum())
            .filter(pl.col(SIGN) != 0)
            .select(versions.columns)
        )


def _split(rows: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the rows whose versions are complete, and the versions of the last position if the
    rows end with it.
    """
    if rows.is_empty() or rows.item(-1, SOURCE) == REQUEST:
        return rows, rows.clear()
    same = rows.select(
        pl.all_horizontal(
            (pl.col(name) == pl.col(name).last()).fill_null(value=False)
            for name in (KEY, TIME, POS)
        )
    ).to_series()
    count = int(same.sum())
    return rows[:-count], rows[-count:]


def _latest_versions(rows: pl.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Return, per row, the number of the last version up to it, and that of the first row of its
    key. The former is smaller than the latter, or -1, if the key has no version yet.
    """
    numbers = np.arange(rows.height)
    is_version = (rows[SOURCE] != REQUEST).to_numpy()
    begins = (rows[KEY] != rows[KEY].shift(1)).fill_null(value=True).to_numpy()
    latest = np.maximum.accumulate(np.where(is_version, numbers, -1))
    return latest, np.maximum.accumulate(np.where(begins, numbers, 0))


def _last_of_key(
    settled: pl.DataFrame, rows: pl.DataFrame, latest: np.ndarray, first: np.ndarray
) -> pl.DataFrame:
    """Return the last version of the last key of `rows`, or no row."""
    if settled.is_empty() or settled.item(-1, KEY) != rows.item(-1, KEY) or latest[-1] < first[-1]:
        return settled.clear()
    return settled.slice(int(latest[-1]), 1)
