"""Extract the aggregations of windowed groupbys, which the protocol omits, from their pipelines.

Theory. `groupby(…, window=W).aggregate(x=Sum(…))` arrives as a `WindowOp` without its specs. The
text of the pipeline does arrive, and so does that of its input datasets: executed in the client's
own environment, the pipeline function returns the operator tree, which still contains the specs.
This module is the pure part: it selects the pipelines, writes the program, and adds the program's
output to the bytes of the commit, inside the operator it belongs to, where decoding finds it and
readers of the client's protocol skip it. The caller runs the program as user code, in a separate
process. The tree is walked in the order in which the client serialises it, so the n-th windowed
groupby of the tree is the n-th `WindowOp` of the pipeline.
"""

from __future__ import annotations

import base64
import binascii
import json
import textwrap
from collections.abc import Iterable, Mapping

from google.protobuf.message import DecodeError

from fennel_core.vocab.ids import DatasetName
from fennel_core.wire.decode_operators import EMITS, decode_spec
from fennel_core.wire.entities import Dataset, Pipeline, SyncRequest
from fennel_core.wire.errors import UnsupportedValue
from fennel_core.wire.gen import dataset_pb2, recovered_pb2, services_pb2, spec_pb2
from fennel_core.wire.operators import Emit, WindowOp

EMIT_NUMBERS = {emit: number for number, emit in EMITS.items()}

EXTRACTION_SCRIPT = '''
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

output = []
for number, (text, entry_point, inputs) in enumerate(json.loads(PIPELINES)):
    module = types.ModuleType("pipeline_%d" % number)
    sys.modules[module.__name__] = module
    exec(compile(text, module.__name__, "exec"), module.__dict__)
    function = module.__dict__[entry_point].__fennel_pipeline__.func
    found = []
    walk(function(None, *[module.__dict__[name] for name in inputs]), set(), found)
    output.append(found)
print(json.dumps(output))
'''


def pipelines_without_specs(
    request: SyncRequest, committed: SyncRequest | None = None
) -> tuple[Pipeline, ...]:
    """Return the pipelines whose windowed groupbys may have aggregations that did not arrive.

    A pipeline that ends in its only windowed groupby and whose dataset has no value fields has
    none. A pipeline that reads a dataset which is neither in the request nor `committed` on the
    branch cannot be run; it is left out, and validation reports the missing dataset.
    """
    datasets = _datasets(request, committed)
    found = []
    for pipeline in request.pipelines:
        owner = (pipeline.dataset, pipeline.version, pipeline.name)
        mine = [o for o in request.operators if (o.dataset, o.version, o.pipeline) == owner]
        bare = [o for o in mine if isinstance(o.kind, WindowOp) and not o.kind.specs_known]
        dataset = datasets.get(pipeline.dataset)
        keys_only = (
            len(bare) == 1 and bare[0].is_root and dataset is not None and not dataset.schema.values
        )
        if bare and not keys_only and all(name in datasets for name in pipeline.inputs):
            found.append(pipeline)
    return tuple(found)


def extraction_program(request: SyncRequest, committed: SyncRequest | None = None) -> str | None:
    """Return the Python program that extracts the specs; None if no pipeline needs it.

    Run it with the client's interpreter and pass its output to `insert_window_specs`. The pipelines
    are those of `pipelines_without_specs`.
    """
    pipelines = pipelines_without_specs(request, committed)
    if not pipelines:
        return None
    datasets = _datasets(request, committed)
    parts = [
        [
            _module_text(p, [datasets[name] for name in p.inputs]),
            p.pycode.entry_point,
            list(p.inputs),
        ]
        for p in pipelines
    ]
    return f"PIPELINES = {json.dumps(parts)!r}\n{EXTRACTION_SCRIPT}"


def insert_window_specs(body: bytes, pipelines: Iterable[Pipeline], printed: str) -> bytes:
    """Return the commit's bytes with the specs and emit strategies of `pipelines` added.

    `printed` is the output of `extraction_program` for the same request. Raises `UnsupportedValue`
    if it does not match the pipelines.
    """
    message = services_pb2.SyncRequest.FromString(body)
    try:
        results = json.loads(printed.strip().splitlines()[-1])
        for pipeline, found in zip(pipelines, results, strict=True):
            for operator, one in zip(_windows(message, pipeline), found, strict=True):
                operator.MergeFromString(_addition(one).SerializeToString())
    except (ValueError, IndexError, KeyError, TypeError, DecodeError, binascii.Error) as error:
        raise UnsupportedValue(
            f"the aggregations of a windowed groupby could not be extracted: {error}"
        ) from error
    return bytes(message.SerializeToString(deterministic=True))


def _datasets(request: SyncRequest, committed: SyncRequest | None) -> Mapping[DatasetName, Dataset]:
    return {
        dataset.name: dataset
        for part in (committed, request)
        if part is not None
        for dataset in part.datasets
    }


def _windows(message: services_pb2.SyncRequest, pipeline: Pipeline) -> list[dataset_pb2.Operator]:
    owner = (pipeline.dataset, pipeline.version, pipeline.name)
    return [
        o
        for o in message.operators
        if (o.dataset_name, o.ds_version, o.pipeline_name) == owner and o.HasField("window")
    ]


def _addition(one: Mapping[str, object]) -> recovered_pb2.OperatorAddition:
    texts = one["specs"]
    if not isinstance(texts, list):
        raise TypeError("specs must be a list")
    specs = [spec_pb2.PreSpec.FromString(base64.b64decode(text, validate=True)) for text in texts]
    for spec in specs:
        decode_spec(spec)  # reject an invalid spec here, before it is stored
    window = recovered_pb2.RecoveredWindow(specs=specs, emit=EMIT_NUMBERS[Emit(one["emit"])])
    return recovered_pb2.OperatorAddition(window=window)


def _module_text(pipeline: Pipeline, inputs: Iterable[Dataset]) -> str:
    classes = [dataset.pycode.generated_code for dataset in inputs]
    return "\n".join(
        [pipeline.pycode.imports, *classes, textwrap.dedent(pipeline.pycode.generated_code)]
    )
