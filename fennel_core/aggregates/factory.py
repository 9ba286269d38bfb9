"""Make the aggregator that computes an aggregation as the client declares it."""

from __future__ import annotations

from typing import Any, assert_never

from fennel_core.aggregates.aggregation import Aggregator
from fennel_core.aggregates.average import AverageAggregator
from fennel_core.aggregates.count import CountAggregator
from fennel_core.aggregates.decay import DecayedSumAggregator
from fennel_core.aggregates.distinct import CountUniqueAggregator, DistinctAggregator
from fennel_core.aggregates.errors import AggregatedColumnMissing
from fennel_core.aggregates.first_last_k import FirstLastKAggregator
from fennel_core.aggregates.min_max import MinMaxAggregator
from fennel_core.aggregates.quantile import QuantileAggregator
from fennel_core.aggregates.stddev import StddevAggregator
from fennel_core.aggregates.sum import SumAggregator
from fennel_core.vocab.dtypes import Dtype
from fennel_core.vocab.schema import Schema
from fennel_core.wire import operators as wire


def make_aggregator(spec: wire.Spec, schema: Schema, *, time: str | None = None) -> Aggregator[Any]:
    """Return the aggregator of `spec` over rows of `schema`.

    `time`: the column that holds the time of a row, where records are stored under other times.
    Raises AggregatedColumnMissing.
    """
    match spec:
        case wire.Count(of=of, unique=unique, dropnull=dropnull):
            if unique:
                assert of is not None, "a unique count names its column"
                return CountUniqueAggregator(of, dropnull=dropnull)
            return CountAggregator(of if dropnull else None)
        case wire.Sum(of=of):
            return SumAggregator(of, _dtype(schema, of))
        case wire.Average(of=of, default=default):
            return AverageAggregator(of, _dtype(schema, of), default)
        case wire.Stddev(of=of, default=default):
            return StddevAggregator(of, _dtype(schema, of), default)
        case wire.Min(of=of, default=default):
            return MinMaxAggregator(of, _dtype(schema, of), default, largest=False)
        case wire.Max(of=of, default=default):
            return MinMaxAggregator(of, _dtype(schema, of), default, largest=True)
        case wire.Quantile(of=of, p=p, default=default):
            return QuantileAggregator(of, _dtype(schema, of), p, default)
        case wire.Distinct(of=of, dropnull=dropnull):
            return DistinctAggregator(of, _dtype(schema, of), dropnull=dropnull)
        case wire.LastK() | wire.FirstK():
            return FirstLastKAggregator(
                spec.of,
                _dtype(schema, spec.of),
                spec.limit,
                newest=isinstance(spec, wire.LastK),
                dedup=spec.dedup,
                dropnull=spec.dropnull,
                time=time,
            )
        case wire.ExpDecay(of=of, half_life_us=half_life_us):
            return DecayedSumAggregator(of, _dtype(schema, of), half_life_us, time=time)
        case unreachable:
            assert_never(unreachable)


def _dtype(schema: Schema, name: str) -> Dtype:
    field = schema.field(name)
    if field is None:
        raise AggregatedColumnMissing(
            f"aggregated column `{name}` is not in the input; its columns are "
            f"{', '.join(schema.names)}"
        )
    return field.dtype
