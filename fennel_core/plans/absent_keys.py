"""The row that a lookup returns for an absent key.

Theory. A dataset that ends in an aggregation has, for a key without rows, the aggregation of the
empty set: zero for counts and sums, an empty list, the declared default for averages and similar.
The reference server returns these values (with `found` false). The engine cannot, because it stores
nothing for such a key. In every other dataset each value is null. Values have the physical form of
rows (`operators.step.Served`): temporals as integers, decimals as text.

The default of a lookup *feature* takes precedence over zero or an empty list, but not over an
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
    """The value of one field for an absent key.

    `declared`: the aggregation declares it as its default, so it overrides a feature's default.
    """

    value: PhysicalValue
    declared: bool


NULL = AbsentValue(None, declared=False)


def absent_rows(request: SyncRequest) -> Mapping[DatasetName, tuple[AbsentValue, ...]]:
    """Return, per dataset of a merged commit, one `AbsentValue` per value field in schema order."""
    pipelines = {p.dataset: p.name for p in request.pipelines if not p.metadata.deleted}
    specs = {
        op.dataset: {spec.name: spec for spec in op.kind.specs}
        for op in request.operators
        if op.is_root
        and isinstance(op.kind, ops.Aggregate)
        and pipelines.get(op.dataset) == op.pipeline
    }
    return {d.name: _absent_row(d, specs.get(d.name, {})) for d in request.datasets}


def _absent_row(dataset: Dataset, specs: Mapping[str, ops.Spec]) -> tuple[AbsentValue, ...]:
    return tuple(
        _aggregate_of_nothing(specs[f.name], f.dtype) if f.name in specs else NULL
        for f in dataset.schema.values
    )


def _aggregate_of_nothing(spec: ops.Spec, dtype: Dtype) -> AbsentValue:
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
