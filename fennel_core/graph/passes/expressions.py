"""Check that every expression has the type that its place requires.

A filter is a bool; an assigned column fits its declared type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fennel_core.expressions.errors import InvalidExpression
from fennel_core.expressions.infer import expect_declared, infer
from fennel_core.graph.derived_schemas import derive_known_schemas
from fennel_core.graph.entity_graph import Graph
from fennel_core.graph.passes.schemas import is_complete
from fennel_core.vocab.dtypes import Bool, Dtype, show
from fennel_core.vocab.problems import Problem
from fennel_core.vocab.schema import Schema
from fennel_core.wire.connectors import EvalExpr, Source
from fennel_core.wire.entities import Dataset, ExprExtractor, Extractor, FeatureRef, Pipeline
from fennel_core.wire.expr import Expr
from fennel_core.wire.operators import AssignExpr, FilterExpr


def check_expressions(graph: Graph, before: Graph | None) -> Iterator[Problem]:
    """Yield one problem per expression without a type or with the wrong one.

    Covers pipelines, sources and extractors.
    """
    del before
    for pipeline in graph.pipelines:
        if is_complete(graph, pipeline):
            yield from _pipeline(graph, pipeline)
    for dataset in graph.datasets:
        for source in graph.sources_of(dataset.name):
            yield from _source(dataset, source)
    for extractor in graph.extractors:
        yield from _extractor(graph, extractor)


def _types(schema: Schema) -> dict[str, Dtype]:
    return {field.name: field.dtype for field in schema.fields}


def _declared(expr: Expr, declared: Dtype, columns: Mapping[str, Dtype]) -> str | None:
    try:
        expect_declared(infer(expr, columns), declared)
    except InvalidExpression as error:
        return str(error)
    return None


def _condition(expr: Expr, columns: Mapping[str, Dtype]) -> str | None:
    try:
        found = infer(expr, columns)
    except InvalidExpression as error:
        return str(error)
    return (
        None
        if found == Bool()
        else f"Filter expression must return type bool, found {show(found)}."
    )


def _pipeline(graph: Graph, pipeline: Pipeline) -> Iterator[Problem]:
    # Operators without a schema are reported by `check_operator_schemas`.
    schemas = derive_known_schemas(graph, pipeline).known
    name = f"{pipeline.dataset}.{pipeline.name}"
    for operator in graph.operators_of(pipeline):
        if not all(operand in schemas for operand in operator.inputs):
            continue
        if isinstance(operator.kind, FilterExpr):
            text = _condition(operator.kind.expr, _types(schemas[operator.kind.operand]))
            if text:
                yield Problem("expression", name, f"pipeline `{name}`: {text}")
        if isinstance(operator.kind, AssignExpr):
            columns = _types(schemas[operator.kind.operand])
            for column, expr, dtype in operator.kind.columns:
                text = _declared(expr, dtype, columns)
                if text:
                    yield Problem(
                        "expression", name, f"pipeline `{name}`: column `{column}`: {text}"
                    )


def _source(dataset: Dataset, source: Source) -> Iterator[Problem]:
    """Check the expressions of a source.

    They see the dataset's fields that preproc does not assign, and the payload columns that they
    declare.
    """
    assigned = {field for field, _ in source.preproc}
    fields = {name: dtype for name, dtype in _types(dataset.schema).items() if name not in assigned}
    for field, value in source.preproc:
        target = dataset.schema.field(field)
        if isinstance(value, EvalExpr) and target is not None:
            text = _declared(
                value.expr, target.dtype, {**fields, **{f.name: f.dtype for f in value.schema}}
            )
            if text:
                yield Problem(
                    "expression",
                    dataset.name,
                    f"Dataset `{dataset.name}`: preproc of `{field}`: {text}",
                )
    if isinstance(source.where, EvalExpr):
        text = _condition(
            source.where.expr,
            {**_types(dataset.schema), **{f.name: f.dtype for f in source.where.schema}},
        )
        if text:
            yield Problem(
                "expression", dataset.name, f"Dataset `{dataset.name}`: where of its source: {text}"
            )


def _extractor(graph: Graph, extractor: Extractor) -> Iterator[Problem]:
    if not isinstance(extractor.kind, ExprExtractor) or len(extractor.outputs) != 1:
        return
    output = graph.feature(FeatureRef(extractor.featureset, extractor.outputs[0]))
    if output is None or any(graph.feature(ref) is None for ref in extractor.inputs):
        return  # reported by `resolve_references`
    columns = {
        feature.ref.name: feature.dtype for feature in graph.features_of(extractor.featureset)
    }
    text = _declared(extractor.kind.expr, output.dtype, columns)
    if text:
        yield Problem("expression", output.ref.fqn, f"feature `{output.ref.fqn}`: {text}")
