"""Query plans as frozen values.

Theory. A plan is a list of levels. A level first evaluates its local nodes in order (aliases and
expressions: no I/O), then sends all its remote nodes (lookups and Python extractors) at once; the
next level starts when all of them have returned. A feature is computed in the earliest level in
which its inputs are available, so the number of levels is the largest number of *remote* nodes on
any path: the minimum number of round trips. Lookups of one level that share dataset, key features
and kind are one node with several fields, because they fetch the same row.

Example: `F.age` is looked up by `F.user`, `F.adult` is an expression of `F.age`, and `G.score` is
user code over `F.adult`. Level 0 has no local node and sends the lookup; level 1 evaluates
`F.adult` and sends the user code; level 2 is empty, and `G.score` is ready.
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
    """Assigns one value field of the fetched row to the feature `output`.

    `default_json` (JSON text) replaces nulls; None keeps them.
    """

    field: str
    output: TypedFeature
    default_json: str | None


@dataclass(frozen=True, slots=True)
class LookupNode:
    """Fetches one row of `dataset` per input row.

    The key is the values of the features `keys`, in the order of the dataset's key fields.
    """

    dataset: DatasetName
    keys: tuple[FeatureRef, ...]
    reads: tuple[FieldRead, ...]


@dataclass(frozen=True, slots=True)
class ListLookupNode:
    """Like `LookupNode`, with a list of keys per row; each output is a parallel list."""

    dataset: DatasetName
    keys: tuple[FeatureRef, ...]
    reads: tuple[FieldRead, ...]


@dataclass(frozen=True, slots=True)
class AliasNode:
    """Copies `source` to `output`; `default_json` (JSON text) replaces nulls, None keeps them."""

    source: FeatureRef
    output: TypedFeature
    default_json: str | None


@dataclass(frozen=True, slots=True)
class ExpressionNode:
    """Computes `output` as `expr` over `inputs`, which it references by full name."""

    expr: Expr
    inputs: tuple[TypedFeature, ...]
    output: TypedFeature


@dataclass(frozen=True, slots=True)
class PythonExtractorNode:
    """Runs user code over `inputs`, in order; it computes `outputs` and may look up `datasets`.

    `outputs` are all features of the extractor. Features that are inputs of the query, or that no
    output needs, are computed and dropped.
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
    """Nodes that run together: `local` in order, then all `remote` concurrently."""

    local: tuple[LocalNode, ...]
    remote: tuple[RemoteNode, ...]


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """The nodes that compute `outputs` from `inputs`.

    `inputs` are those input features that the plan reads, `outputs` the columns of the response in
    the requested order.
    """

    inputs: tuple[TypedFeature, ...]
    levels: tuple[Level, ...]
    outputs: tuple[TypedFeature, ...]
