"""What lookups read from: the rows that a serving job is computed from, as history has them.

A lookup is served by a job. If that is a table, its input is the dataset's own topic, and a lookup
as of T finds the latest version (`asof_join`). If it is a terminal aggregation, its input is the
topic of the rows that it aggregates, and the production step computes the result (`tile_lookups`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from fennel_core.aggregates.factory import make_aggregator
from fennel_core.aggregates.records import POSITION
from fennel_core.offline.errors import LookupNotOffline
from fennel_core.operators.spec import AggregateSpec, StepSpec, TableSpec, has_validity
from fennel_core.query.program import TIMESTAMP_PLACE
from fennel_core.vocab.schema import Schema

FOUND: Final = "__found"


@dataclass(frozen=True, slots=True)
class TableSource:
    """A keyed dataset. `columns` are those that lookups read."""

    schema: Schema
    columns: tuple[str, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        return self.schema.key_names

    @property
    def time(self) -> str:
        return self.schema.timestamp

    @property
    def version_columns(self) -> tuple[str, ...]:
        """The columns that a timeline needs."""
        return self.columns


@dataclass(frozen=True, slots=True)
class AggregateSource:
    """The input of a terminal aggregation. `columns` are those of the result that lookups read."""

    spec: AggregateSpec
    columns: tuple[str, ...]

    @property
    def schema(self) -> Schema:
        """The schema of the rows in history."""
        return self.spec.input

    @property
    def keys(self) -> tuple[str, ...]:
        return self.spec.keys

    @property
    def time(self) -> str:
        """The column by which a row counts from some time on."""
        return self.spec.along or self.spec.input.timestamp

    @property
    def timed(self) -> bool:
        """Whether the timestamp of the result is read, which depends on every aggregation."""
        return self.spec.output.timestamp in self.columns

    @property
    def needed(self) -> AggregateSpec:
        """The spec with the aggregations that are read."""
        if self.timed:
            return self.spec
        output = self.spec.output
        values = tuple(field for field in output.values if field.name in self.columns)
        specs = tuple(one for one in self.spec.specs if one.name in self.columns)
        return replace(self.spec, specs=specs, output=replace(output, values=values))

    @property
    def version_columns(self) -> tuple[str, ...]:
        if has_validity(self.spec.input):
            return self.spec.input.names
        aggregated = (
            name
            for one in self.needed.specs
            for name in make_aggregator(one, self.spec.input).prepare()
        )
        return tuple(dict.fromkeys([*self.keys, self.time, *sorted({*aggregated} - {POSITION})]))


LookupSource = TableSource | AggregateSource


def source_of(spec: StepSpec, places: Sequence[int], job: str) -> LookupSource:
    """Return the source of lookups in a job; `places` are the items of its rows that are read.

    Raises `LookupNotOffline` for a job that serves no lookups.
    """
    match spec:
        case TableSpec(schema):
            return TableSource(schema, _columns(schema, places))
        case AggregateSpec(terminal=True, output=output):
            return AggregateSource(spec, _columns(output, places))
        case _:
            raise LookupNotOffline(
                f"job `{job}` is a {type(spec).__name__}, which serves no lookups. Report this: a "
                "dataset names it as the job of its lookups"
            )


def column_at(schema: Schema, place: int) -> str:
    """Return the name of item `place` of a row `[timestamp, value, …]`."""
    if place == TIMESTAMP_PLACE:
        return schema.timestamp
    return schema.value_names[place - 1]


def _columns(schema: Schema, places: Sequence[int]) -> tuple[str, ...]:
    return tuple(column_at(schema, place) for place in sorted(set(places)))
