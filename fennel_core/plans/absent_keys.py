"""What a lookup answers for a key that is not there.

Theory. A dataset that ends in an aggregation holds, for a key it never saw, the aggregation of
nothing: zero for counts and sums, an empty list, the declared default for averages and the like.
The reference server answers so (with `found` false), and the engine cannot: it keeps nothing about
such a key. For every other dataset each value is null. Values are in the physical form of rows
(`operators.step.Served`): temporals as integers, decimals as text.

A lookup *feature* with a default of its own prefers that to zero or an empty list, but not to an
aggregation's declared default, which is the more specific of the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal as Exact
from typing import assert_never

from fennel_core.vocab.dtypes import Decimal, Dtype, Float, base
from fennel_core.vocab.ids import DatasetName
from fennel_core.wire import operators as ops
from fennel_core.wire.entities import Dataset, SyncRequest

PhysicalValue = int | float | str | tuple[()] | None


@dataclass(frozen=True, slots=True)
class AbsentValue:
    """The value of one field of an absent key. `declared`: the definition names it, so it wins over
    a feature's default.
    """

    value: PhysicalValue
    declared: bool


NULL = AbsentValue(None, declared=False)


def absent_rows(request: SyncRequest) -> Mapping[DatasetName, tuple[AbsentValue, ...]]:
    """For each dataset of a merged commit: one `AbsentValue` per value field, in schema order."""
    pipelines = {p.dataset: p.name for p in request.pipelines if not p.metadata.deleted}
    specs = {
        op.dataset: {spec.name: spec for spec in op.kind.specs}
        for op in request.operators
        if op.is_root
        and isinstance(op.kind, ops.Aggregate)
        and pipelines.get(op.dataset) == op.pipeline
    }
    return {d.name: _absent(d, specs.get(d.name, {})) for d in request.datasets}


def _absent(dataset: Dataset, specs: Mapping[str, ops.Spec]) -> tuple[AbsentValue, ...]:
    return tuple(
        _empty(specs[f.name], f.dtype) if f.name in specs else NULL for f in dataset.schema.values
    )


def _empty(spec: ops.Spec, dtype: Dtype) -> AbsentValue:
    match spec:
        case ops.Sum() | ops.Count() | ops.ExpDecay():
            return AbsentValue(_number(0, dtype), declared=False)
        case ops.LastK() | ops.FirstK() | ops.Distinct():
            return AbsentValue((), declared=False)
        case ops.Average(default=default) | ops.Min(default=default) | ops.Max(default=default):
            return NULL if default is None else AbsentValue(_number(default, dtype), declared=True)
        case ops.Stddev(default=default) | ops.Quantile(default=default):
            return NULL if default is None else AbsentValue(_number(default, dtype), declared=True)
        case unreachable:
            assert_never(unreachable)


def _number(value: float, dtype: Dtype) -> int | float | str:
    match base(dtype):
        case Decimal(scale):
            return str(Exact(str(value)).quantize(Exact(1).scaleb(-scale)))
        case Float():
            return float(value)
        case _:
            return int(value)
