"""From an aggregation as the client declares it to the six verbs that compute it."""

from __future__ import annotations

from typing import Any, assert_never

from fennel_core.aggregates.average import Average
from fennel_core.aggregates.count import Count
from fennel_core.aggregates.decay import DecayedSum
from fennel_core.aggregates.distinct import CountUnique, Distinct
from fennel_core.aggregates.ends import EndK
from fennel_core.aggregates.extremes import Extreme
from fennel_core.aggregates.quantile import Quantile
from fennel_core.aggregates.stddev import Stddev
from fennel_core.aggregates.sum import Sum
from fennel_core.aggregates.verbs import Aggregation
from fennel_core.vocab.dtypes import Dtype
from fennel_core.vocab.schema import Schema
from fennel_core.wire import operators as wire


def make(spec: wire.Spec, schema: Schema, *, time: str | None = None) -> Aggregation[Any]:
    """The aggregation of `spec` over rows of `schema`; ValueError when its column is not there.

    `time`: the column that holds the time of a row, where records are filed under other times.
    """
    match spec:
        case wire.Count(of=of, unique=unique, dropnull=dropnull):
            if unique:
                assert of is not None, "a unique count names its column"
                return CountUnique(of, dropnull=dropnull)
            return Count(of if dropnull else None)
        case wire.Sum(of=of):
            return Sum(of, _dtype(schema, of))
        case wire.Average(of=of, default=default):
            return Average(of, _dtype(schema, of), default)
        case wire.Stddev(of=of, default=default):
            return Stddev(of, _dtype(schema, of), default)
        case wire.Min(of=of, default=default):
            return Extreme(of, _dtype(schema, of), default, largest=False)
        case wire.Max(of=of, default=default):
            return Extreme(of, _dtype(schema, of), default, largest=True)
        case wire.Quantile(of=of, p=p, default=default):
            return Quantile(of, _dtype(schema, of), p, default)
        case wire.Distinct(of=of, dropnull=dropnull):
            return Distinct(of, _dtype(schema, of), dropnull=dropnull)
        case wire.LastK(of=of, limit=limit, dedup=dedup, dropnull=dropnull):
            return EndK(
                of,
                _dtype(schema, of),
                limit,
                newest=True,
                dedup=dedup,
                dropnull=dropnull,
                time=time,
            )
        case wire.FirstK(of=of, limit=limit, dedup=dedup, dropnull=dropnull):
            return EndK(
                of,
                _dtype(schema, of),
                limit,
                newest=False,
                dedup=dedup,
                dropnull=dropnull,
                time=time,
            )
        case wire.ExpDecay(of=of, half_life_us=half_life_us):
            return DecayedSum(of, _dtype(schema, of), half_life_us)
        case unreachable:
            assert_never(unreachable)


def _dtype(schema: Schema, name: str) -> Dtype:
    field = schema.field(name)
    if field is None:
        raise ValueError(
            f"column `{name}` is aggregated but is not in the input: it has "
            f"{', '.join(schema.names)}"
        )
    return field.dtype
