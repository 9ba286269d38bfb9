"""Aggregations of windowed groupbys, which the client's protocol drops, brought back by running the pipeline function.

Theory. `groupby(…, window=W).aggregate(x=Sum(…))` arrives as a `WindowOp` without its specs. The pipeline's text does arrive, and so does
that of its input datasets: run in the client's own environment, the function returns the operator tree, in which the specs still are.
This module is the pure part: it says which pipelines need it, writes the program, and puts the program's answer back into the request.
Somebody who may start processes runs the program (it is user code) and hands its output over. The tree is walked in the order in which
the client serialises it, so the n-th windowed groupby of the tree is the n-th `WindowOp` of the pipeline.
"""

from __future__ import annotations

import base64
import binascii
import json
import textwrap
from collections.abc import Iterable
from dataclasses import replace

from google.protobuf.message import DecodeError

from fennel_core.wire.decode_operators import decode_spec
from fennel_core.wire.entities import Dataset, Pipeline, SyncRequest
from fennel_core.wire.errors import UnsupportedValue
from fennel_core.wire.gen import spec_pb2
from fennel_core.wire.operators import Emit, Operator, Spec, WindowOp

PROGRAM = '''
"""Run pipeline functions and print the aggregations of their windowed groupbys as JSON."""
import base64, json, sys, types

def inputs_of(node):
    if hasattr(node, "nodes"):
        return list(node.nodes)
    below = [node.node] if hasattr(node, "node") else []
    return [node.dataset, *below] if hasattr(node, "within") else below

def walk(node, seen, found):
    mark = id(node)
    if mark in seen:
        return
    seen.add(mark)
    for below in inputs_of(node):
        walk(below, seen, found)
    if getattr(node, "window_field", None) is not None:
        specs = []
        for aggregate in node.aggregates:
            aggregate.window = aggregate.window or node.window_field
            specs.append(base64.b64encode(aggregate.to_proto().SerializeToString()).decode())
        found.append({"emit": node.emit_strategy.value, "specs": specs})

answer = []
for number, (text, entry_point, inputs) in enumerate(json.loads(PIPELINES)):
    module = types.ModuleType("pipeline_%d" % number)
    sys.modules[module.__name__] = module
    exec(compile(text, module.__name__, "exec"), module.__dict__)
    function = module.__dict__[entry_point].__fennel_pipeline__.func
    found = []
    walk(function(None, *[module.__dict__[name] for name in inputs]), set(), found)
    answer.append(found)
print(json.dumps(answer))
'''


def pipelines_to_recover(request: SyncRequest) -> tuple[Pipeline, ...]:
    """The pipelines whose windowed groupbys may have aggregations that did not travel.

    A pipeline that ends in its only windowed groupby and whose dataset has no value fields cannot have any. A pipeline that reads a
    dataset which is not part of the request cannot be run; it is left out, and validation says what it misses.
    """
    datasets = {dataset.name: dataset for dataset in request.datasets}
    found = []
    for pipeline in request.pipelines:
        bare = [o for o in _operators(request, pipeline) if isinstance(o.kind, WindowOp) and not o.kind.specs]
        dataset = datasets.get(pipeline.dataset)
        keys_only = len(bare) == 1 and bare[0].is_root and dataset is not None and not dataset.schema.values
        if bare and not keys_only and all(name in datasets for name in pipeline.inputs):
            found.append(pipeline)
    return tuple(found)


def recovery_program(request: SyncRequest, pipelines: Iterable[Pipeline]) -> str:
    """The Python program that recovers the specs of `pipelines`; run it with the client's interpreter and keep what it prints.

    Raises `UnsupportedValue` when a pipeline reads a dataset that is not part of the request: its class is needed to run the function.
    """
    datasets = {dataset.name: dataset for dataset in request.datasets}
    parts = []
    for pipeline in pipelines:
        missing = [name for name in pipeline.inputs if name not in datasets]
        if missing:
            raise UnsupportedValue(
                f"pipeline `{pipeline.dataset}.{pipeline.name}` aggregates a windowed groupby and reads {missing}, "
                "which this commit does not have; add them to the commit"
            )
        text = _module_text(pipeline, [datasets[name] for name in pipeline.inputs])
        parts.append([text, pipeline.pycode.entry_point, list(pipeline.inputs)])
    return f"PIPELINES = {json.dumps(parts)!r}\n{PROGRAM}"


def with_recovered(request: SyncRequest, pipelines: Iterable[Pipeline], printed: str) -> SyncRequest:
    """The request with the specs and emit strategies that the program `printed` for the same `pipelines`.

    Raises `UnsupportedValue` when the answer does not fit the pipelines.
    """
    changed: dict[tuple[str, str, str], Operator] = {}
    try:
        answers = json.loads(printed.strip().splitlines()[-1])
        for pipeline, found in zip(pipelines, answers, strict=True):
            windows = [o for o in _operators(request, pipeline) if isinstance(o.kind, WindowOp)]
            for operator, one in zip(windows, found, strict=True):
                assert isinstance(operator.kind, WindowOp)
                specs = tuple(_spec(text) for text in one["specs"])
                kind = replace(operator.kind, specs=specs, emit=Emit(one["emit"]))
                changed[_key(operator)] = replace(operator, kind=kind)
    except (ValueError, IndexError, KeyError, TypeError, DecodeError, binascii.Error) as error:
        raise UnsupportedValue(f"the aggregations of a windowed groupby could not be recovered: {error}") from error
    return replace(request, operators=tuple(changed.get(_key(o), o) for o in request.operators))


def _operators(request: SyncRequest, pipeline: Pipeline) -> list[Operator]:
    owner = (pipeline.dataset, pipeline.version, pipeline.name)
    return [o for o in request.operators if (o.dataset, o.version, o.pipeline) == owner]


def _key(operator: Operator) -> tuple[str, str, str]:
    return (operator.dataset, operator.pipeline, operator.id)


def _module_text(pipeline: Pipeline, inputs: Iterable[Dataset]) -> str:
    classes = [dataset.pycode.generated_code for dataset in inputs]
    return "\n".join([pipeline.pycode.imports, *classes, textwrap.dedent(pipeline.pycode.generated_code)])


def _spec(text: str) -> Spec:
    return decode_spec(spec_pb2.PreSpec.FromString(base64.b64decode(text)))
