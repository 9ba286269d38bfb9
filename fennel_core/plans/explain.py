"""A query plan as text: one line per node, numbered by level in execution order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import assert_never

from fennel_core.expressions.references import references
from fennel_core.plans.plan_nodes import (
    AliasNode,
    ExpressionNode,
    FieldRead,
    ListLookupNode,
    LocalNode,
    LookupNode,
    PythonExtractorNode,
    QueryPlan,
    RemoteNode,
)
from fennel_core.vocab.dtypes import show


def explain(plan: QueryPlan) -> str:
    """Return the plan as text: its inputs, the nodes of each level, and its outputs."""
    return "\n".join(_lines(plan)) + "\n"


def _lines(plan: QueryPlan) -> Iterator[str]:
    yield "inputs: " + (", ".join(f"{i.ref.fqn}: {show(i.dtype)}" for i in plan.inputs) or "none")
    for number, level in enumerate(plan.levels):
        for local in level.local:
            yield f"  {number} local   {_local(local)}"
        for remote in level.remote:
            yield f"  {number} remote  {_remote(remote)}"
    yield "outputs: " + ", ".join(f"{o.ref.fqn}: {show(o.dtype)}" for o in plan.outputs)


def _local(node: LocalNode) -> str:
    match node:
        case AliasNode(source, output, default_json):
            return f"{output.ref.fqn} = {source.fqn}{_default(default_json)}"
        case ExpressionNode(expr, _, output):
            return (
                f"{output.ref.fqn} = expression of "
                f"{', '.join(sorted(references(expr))) or 'constants'}"
            )
        case unreachable:
            assert_never(unreachable)


def _remote(node: RemoteNode) -> str:
    match node:
        case LookupNode(dataset, keys, reads):
            return f"{dataset}[{', '.join(k.fqn for k in keys)}] -> {_fields(reads)}"
        case ListLookupNode(dataset, keys, reads):
            return f"{dataset}[each of {', '.join(k.fqn for k in keys)}] -> {_fields(reads)}"
        case PythonExtractorNode():
            inputs = ", ".join(i.ref.fqn for i in node.inputs)
            using = f" using {', '.join(node.datasets)}" if node.datasets else ""
            return (
                f"{node.featureset}.{node.name}({inputs}){using} -> "
                f"{', '.join(o.ref.fqn for o in node.outputs)}"
            )
        case unreachable:
            assert_never(unreachable)


def _fields(reads: Sequence[FieldRead]) -> str:
    return ", ".join(map(_field_read, reads))


def _field_read(read: FieldRead) -> str:
    return f"{read.output.ref.fqn} = {read.field}{_default(read.default_json)}"


def _default(default_json: str | None) -> str:
    return "" if default_json is None else f" or {default_json}"
