"""Physical plans as frozen values.

Theory. A plan is a list of levels. A level first evaluates its local steps in order (aliases and
expressions: no IO), then sends all its remote steps (lookups and Python extractors) out together;
the next level begins when all of them have answered. A feature is computed in the earliest level in
which its inputs are there, so the number of levels is the largest number of *remote* steps on any
path: the round trips that no planner could avoid. Lookups of one level that share dataset, key
features and kind are one step with several reads, because they are one row fetched once.
"""

from __future__ import annotations

from dataclasses import dataclass

from fennel_core.vocab.dtypes import Dtype
from fennel_core.vocab.ids import DatasetName
from fennel_core.wire.entities import FeatureRef
from fennel_core.wire.expr import Expr
from fennel_core.wire.pycode import PyCode


@dataclass(frozen=True, slots=True)
class TypedFeature:
    """A feature and its declared type."""

    ref: FeatureRef
    dtype: Dtype


@dataclass(frozen=True, slots=True)
class FieldRead:
    """One value field of the fetched row becomes `output`; `default_json` (JSON text) fills nulls,
    None leaves them.
    """

    field: str
    output: TypedFeature
    default_json: str | None


@dataclass(frozen=True, slots=True)
class LookupNode:
    """Fetch the row of `dataset` under each row's key: the features `keys`, in the order of the
    dataset's key fields.
    """

    dataset: DatasetName
    keys: tuple[FeatureRef, ...]
    reads: tuple[FieldRead, ...]


@dataclass(frozen=True, slots=True)
class ListLookupNode:
    """As `LookupNode`, with a list of keys per row; each read becomes a list, parallel to the
    keys.
    """

    dataset: DatasetName
    keys: tuple[FeatureRef, ...]
    reads: tuple[FieldRead, ...]


@dataclass(frozen=True, slots=True)
class AliasNode:
    """`output` is `source`; `default_json` (JSON text) fills nulls, None leaves them."""

    source: FeatureRef
    output: TypedFeature
    default_json: str | None


@dataclass(frozen=True, slots=True)
class ExpressionNode:
    """`output` is `expr` over `inputs`, which the expression names by their full names."""

    expr: Expr
    inputs: tuple[TypedFeature, ...]
    output: TypedFeature


@dataclass(frozen=True, slots=True)
class PythonExtractorNode:
    """User code over `inputs` in order; it provides `outputs` and may look up `datasets`.

    `outputs` are all features of the extractor; those that were given, or that nobody asked for,
    are computed and dropped.
    """

    name: str
    featureset: str
    code: PyCode
    inputs: tuple[TypedFeature, ...]
    outputs: tuple[TypedFeature, ...]
    datasets: tuple[DatasetName, ...]


LocalNode = AliasNode | ExpressionNode
RemoteNode = LookupNode | ListLookupNode | PythonExtractorNode


@dataclass(frozen=True, slots=True)
class Level:
    local: tuple[LocalNode, ...]
    remote: tuple[RemoteNode, ...]


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """`inputs` are the given features the plan really reads, `outputs` what the answer holds, in
    the order asked for.
    """

    inputs: tuple[TypedFeature, ...]
    levels: tuple[Level, ...]
    outputs: tuple[TypedFeature, ...]
