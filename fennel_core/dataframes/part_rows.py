"""Compute the rows of one part of a read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol, assert_never

import polars as pl

from fennel_core.dataframes.contents import (
    AggregateRead,
    ChangelogRead,
    ContentRead,
    DatasetRead,
    no_versions,
)
from fennel_core.dataframes.parts import ReadPart
from fennel_core.history.conditions import ValueRange
from fennel_core.history.parquet import RowFilter
from fennel_core.history.topic_slices import TopicSlice, version_batches
from fennel_core.offline.scratch import ScratchStore, open_spill
from fennel_core.settings.model import Settings
from fennel_core.vocab.versions import POS, SIGN


class VersionStore(Protocol):
    """Where versions are; it is pickled to the tasks of Spark."""

    def batches(
        self, part: TopicSlice, columns: Sequence[str], rows: RowFilter
    ) -> Iterator[pl.DataFrame]:
        """Yield columns of the versions of a slice that `rows` selects."""
        ...


@dataclass(frozen=True, slots=True)
class PlatformVersions:
    """Versions in the platform's own S3 and Kafka."""

    settings: Settings

    def batches(
        self, part: TopicSlice, columns: Sequence[str], rows: RowFilter
    ) -> Iterator[pl.DataFrame]:
        """See `VersionStore.batches`."""
        return version_batches(self.settings, part, columns, rows)


def rows_of_part(store: VersionStore, read: DatasetRead, part: ReadPart) -> Iterator[pl.DataFrame]:
    """Yield the rows of a part, in batches with the columns `read.wanted`."""
    match read:
        case ChangelogRead():
            yield from map(read.rows, store.batches(part.own, read.columns, part.conditions))
        case ContentRead() if read.schema.keyed:
            yield read.rows(_all_versions(store, read, part))
        case ContentRead():
            yield from _event_rows(store, read, part)
        case AggregateRead():
            yield from _aggregate_rows(read, _all_versions(store, read, part))
        case unreachable:
            assert_never(unreachable)


def _all_versions(store: VersionStore, read: DatasetRead, part: ReadPart) -> pl.DataFrame:
    batches = store.batches(part.own, read.columns, part.conditions)
    return pl.concat([no_versions(read), *batches])


def _event_rows(store: VersionStore, read: ContentRead, part: ReadPart) -> Iterator[pl.DataFrame]:
    """Yield rows batch by batch: only those at positions with retractions are held together.

    Row groups without a retraction are not opened to find these positions.
    """
    retractions = part.conditions.also(ValueRange(SIGN, high=-1))
    found = store.batches(part.whole, (POS,), retractions)
    retracted = pl.concat([pl.DataFrame(schema={POS: pl.Binary()}), *found])[POS].unique()
    own = store.batches(part.own, read.columns, part.conditions)
    if retracted.is_empty():
        yield from map(read.rows, own)
        return
    yield from read.rows_elsewhere(retracted, own)
    if part.first:
        every = store.batches(part.whole, read.columns, part.conditions)
        yield read.rows_at(retracted, every)


def _aggregate_rows(read: AggregateRead, versions: pl.DataFrame) -> Iterator[pl.DataFrame]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="fennel-dataframe-")))

        def open_scratch() -> ScratchStore:
            store = ScratchStore(lambda: open_spill(folder))
            stack.callback(store.clear)
            return store

        yield from read.rows(versions, open_scratch)
