"""A plan as text for people: one line per step, levels numbered in the order they run."""

from __future__ import annotations

from collections.abc import Iterator
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
    """What is given, the steps of each level, and what is answered."""
    return "\n".join(_lines(plan)) + "\n"


def _lines(plan: QueryPlan) -> Iterator[str]:
    yield "given: " + (", ".join(f"{i.ref.fqn}: {show(i.dtype)}" for i in plan.inputs) or "nothing")
    for number, level in enumerate(plan.levels):
        for local in level.local:
            yield f"  {number} here    {_local(local)}"
        for remote in level.remote:
            yield f"  {number} away    {_remote(remote)}"
    yield "answer: " + ", ".join(f"{o.ref.fqn}: {show(o.dtype)}" for o in plan.outputs)


def _local(step: LocalNode) -> str:
    match step:
        case AliasNode(source, output, default_json):
            return f"{output.ref.fqn} = {source.fqn}{_or(default_json)}"
        case ExpressionNode(expr, _, output):
            return (
                f"{output.ref.fqn} = expression of "
                f"{', '.join(sorted(references(expr))) or 'nothing'}"
            )
        case unreachable:
            assert_never(unreachable)


def _remote(step: RemoteNode) -> str:
    match step:
        case LookupNode(dataset, keys, reads):
            return f"{dataset}[{', '.join(k.fqn for k in keys)}] -> {', '.join(map(_read, reads))}"
        case ListLookupNode(dataset, keys, reads):
            return (
                f"{dataset}[each of {', '.join(k.fqn for k in keys)}] -> "
                f"{', '.join(map(_read, reads))}"
            )
        case PythonExtractorNode():
            given = ", ".join(i.ref.fqn for i in step.inputs)
            using = f" using {', '.join(step.datasets)}" if step.datasets else ""
            return (
                f"{step.featureset}.{step.name}({given}){using} -> "
                f"{', '.join(o.ref.fqn for o in step.outputs)}"
            )
        case unreachable:
            assert_never(unreachable)


def _read(read: FieldRead) -> str:
    return f"{read.output.ref.fqn} = {read.field}{_or(read.default_json)}"


def _or(default_json: str | None) -> str:
    return "" if default_json is None else f" or {default_json}"
