"""What a DataFrame of a dataset contains: its rows, computed from versions.

Theory. A read is of one of three kinds. Each names the columns that it needs of the versions, and
which versions must be computed together:

    ChangelogRead   every signed version                         each version alone
    ContentRead     the dataset as of a time                     the versions of a key; without
                                                                 keys a row and its retractions
    AggregateRead   a terminal aggregate as of a time            the events of a key

The last is computed by the steps that serve training data (`offline`), and so equals a lookup of
each key at that time. Columns that are not wanted are not read, and rows that differ in nothing
else stay as many as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import polars as pl

from fennel_core.connections.erasures import ErasedKeys
from fennel_core.history import asof
from fennel_core.history.conditions import ValueRange
from fennel_core.offline.lookup_groups import answerer
from fennel_core.offline.scratch import ScratchStore
from fennel_core.offline.sources import FOUND, AggregateSource
from fennel_core.offline.timeline import (
    KEY,
    REQUEST,
    TIME,
    in_order,
    request_rows,
    version_rows,
)
from fennel_core.operators.rows import MAX_TIME, frame_columns
from fennel_core.operators.spec import AggregateSpec
from fennel_core.vocab.ids import Micros
from fennel_core.vocab.keys import key_series
from fennel_core.vocab.schema import Schema
from fennel_core.vocab.versions import IS_TOMBSTONE, META, POS, SIGN, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

ALWAYS: Final = Micros(MAX_TIME)
"""The time that every row is at or before."""


@dataclass(frozen=True, slots=True)
class ChangelogRead:
    """Every version that was added or retracted, less erased keys."""

    schema: Schema
    wanted: tuple[str, ...]
    erased: tuple[ErasedKeys, ...] = ()

    @property
    def available(self) -> pa.Schema:
        """The columns that a read may have."""
        return arrow_schema(self.schema)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read of versions."""
        needed = {*self.wanted, *_erasable(self.erased)}
        return tuple(name for name in self.available.names if name in needed)

    @property
    def within(self) -> tuple[ValueRange, ...]:
        """What all rows satisfy that may count."""
        return ()

    def rows(self, versions: pl.DataFrame) -> pl.DataFrame:
        """Return the rows of some versions."""
        return asof.without_erased(versions, self.erased).select(self.wanted)


@dataclass(frozen=True, slots=True)
class ContentRead:
    """The rows of a dataset without keys that are at `as_of` or before, or the latest row of each
    key at that time.
    """

    schema: Schema
    wanted: tuple[str, ...]
    as_of: Micros
    erased: tuple[ErasedKeys, ...] = ()

    @property
    def available(self) -> pa.Schema:
        """The columns that a read may have."""
        return self.schema.arrow()

    @property
    def narrow(self) -> Schema:
        """The schema without values that are not read; it keeps keys and timestamp."""
        needed = {*self.wanted, *_erasable(self.erased)}
        values = tuple(field for field in self.schema.values if field.name in needed)
        return replace(self.schema, values=values)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read of versions."""
        return (*self.narrow.names, *META)

    @property
    def within(self) -> tuple[ValueRange, ...]:
        """What all rows satisfy that may count."""
        return _up_to(self.schema.timestamp, self.as_of)

    def rows(self, versions: pl.DataFrame) -> pl.DataFrame:
        """Return the rows of some versions, which have all that was retracted of them."""
        content = asof.content(versions, self.narrow, self.as_of, self.erased)
        return content.select(self.wanted)

    def rows_elsewhere(
        self, retracted: pl.Series, batches: Iterable[pl.DataFrame]
    ) -> Iterator[pl.DataFrame]:
        """Yield the rows of batches of versions that are at none of the positions `retracted`."""
        for batch in batches:
            yield self.rows(batch.filter(~batch[POS].is_in(retracted.implode())))

    def rows_at(self, retracted: pl.Series, batches: Iterable[pl.DataFrame]) -> pl.DataFrame:
        """Return the rows at the positions `retracted`, of all versions."""
        found = [batch.filter(batch[POS].is_in(retracted.implode())) for batch in batches]
        return self.rows(pl.concat([no_versions(self), *found]))


@dataclass(frozen=True, slots=True)
class AggregateRead:
    """The row of each key of a terminal aggregation, as a lookup at `as_of` returns it."""

    spec: AggregateSpec
    wanted: tuple[str, ...]
    as_of: Micros
    erased: tuple[ErasedKeys, ...] = ()

    @property
    def schema(self) -> Schema:
        """The schema of the rows that are aggregated."""
        return self.spec.input

    @property
    def available(self) -> pa.Schema:
        """The columns that a read may have."""
        return self.spec.output.arrow()

    @property
    def source(self) -> AggregateSource:
        """What is computed: the columns that are wanted besides the keys, and at least one, which
        finds the keys that have a row.
        """
        output = self.spec.output
        computed = tuple(name for name in self.wanted if name not in output.key_names)
        return AggregateSource(self.spec, computed or output.value_names[:1])

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read of versions."""
        source = self.source
        return (*dict.fromkeys([*source.keys, source.time, *source.version_columns]), *META)

    @property
    def within(self) -> tuple[ValueRange, ...]:
        """What all rows satisfy that may count."""
        return _up_to(self.source.time, self.as_of)

    def rows(
        self, versions: pl.DataFrame, open_scratch: Callable[[], ScratchStore]
    ) -> Iterator[pl.DataFrame]:
        """Yield the rows of keys, of which `versions` has all events up to `as_of`."""
        source = self.source
        keys = versions.select(source.keys).unique(maintain_order=True)
        keys = asof.without_erased(keys, self.erased)
        requests = keys.select(
            key_series(keys, source.keys).alias(KEY),
            pl.lit(self.as_of, dtype=pl.Int64).alias(TIME),
            *(pl.col(name).alias(_travelling(name)) for name in source.keys),
        )
        events = version_rows(versions, 0, source.keys, source.time, source.version_columns)
        answers = answerer(source, 0, open_scratch)
        for chunk in in_order([events, request_rows(requests)], 1):
            found = answers.answer(chunk.seen_by(0))
            _, asked = chunk.rows_of(REQUEST)
            own = asked.select(pl.col(_travelling(name)).alias(name) for name in source.keys)
            rows = pl.concat([own, found], how="horizontal").filter(FOUND)
            yield rows.select(self.wanted)


DatasetRead = ChangelogRead | ContentRead | AggregateRead


def no_versions(read: DatasetRead) -> pl.DataFrame:
    """Return no versions, with the columns that the read needs."""
    meta = {POS: pl.Binary(), SIGN: pl.Int8(), IS_TOMBSTONE: pl.Boolean()}
    types = {**frame_columns(read.schema), **meta}
    return pl.DataFrame(schema={name: types[name] for name in read.columns})


def _travelling(key: str) -> str:
    """Return the name that a key column of a request has, which no version has."""
    return f"key.{key}"


def _erasable(erased: Sequence[ErasedKeys]) -> set[str]:
    return {name for each in erased for name in each.columns}


def _up_to(time: str, as_of: Micros) -> tuple[ValueRange, ...]:
    return () if as_of == ALWAYS else (ValueRange(time, high=as_of),)
