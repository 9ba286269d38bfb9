"""The logic of an entity as canonical bytes: equal bytes mean equal computed values.

Theory. Asset identities and the question "did this definition change?" need the same description of
what an entity computes. So each entity is serialised without the parts that do not affect its
result: metadata, credentials and other means of reaching a database, poll intervals, ids generated
by the client. User code is compared by its logic (`code_logic.py`): the bare function as its author
wrote it, without comments, layout, docstrings and the client's decorators (whose arguments arrive
as fields), together with all code that it includes. The bytes are JSON with sorted keys; a
dataclass is its stored name and fields (`wire.stored_names`). They do not depend on the version of
Python.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from enum import Enum
from typing import Any

from fennel_core.wire.code_logic import code_digest
from fennel_core.wire.connectors import (
    Login,
    PlainSecret,
    SealedSecret,
    SecretRef,
    Sink,
    Source,
    Webhook,
)
from fennel_core.wire.entities import (
    Dataset,
    ExpectationSuite,
    Extractor,
    Feature,
    Index,
    Metadata,
    Pipeline,
    PyFunc,
)
from fennel_core.wire.operators import Assign, Filter, Operator, Transform, WindowOp
from fennel_core.wire.pycode import PyCode
from fennel_core.wire.stored_names import NAMES

OPERAND_FIELDS = frozenset({"operand", "operands", "left", "right"})
"""Stored names of the fields that hold ids of inputs."""
IGNORED_OPERATOR_FIELDS = OPERAND_FIELDS | {"specs_known"}


# --- entities -------------------------------------------------------------------------------------


def dataset_logic(dataset: Dataset) -> bytes:
    """Return the logic of a dataset: schema, erase keys and retention.

    Its name and version are not part of it, nor is the text of its class.
    """
    return _bytes(
        {
            "schema": dataset.schema,
            "erase": sorted(dataset.erase_keys),
            "history_us": dataset.history_us,
        }
    )


def source_logic(source: Source) -> bytes:
    """Return which rows a source yields.

    This is its table, cdc, bounds, preprocessing, filter and sampling, but not its poll interval.
    """
    return _bytes({**NAMES.fields_of(source), "every_us": None, "dataset": None, "version": None})


def table_logic(source: Source) -> bytes:
    """Return what a source reads: an endpoint, or a table or folder of a database."""
    return _bytes(source.table)


def sink_logic(sink: Sink) -> bytes:
    """Return which rows a sink writes and where, but not how often."""
    return _bytes({**NAMES.fields_of(sink), "every_us": None, "dataset": None, "version": None})


def operator_logic(operator: Operator, pipeline: Pipeline | None = None) -> bytes:
    """Return what an operator does to its inputs, without the ids of these inputs.

    User code of an operator may call code that its pipeline includes, so pass the `pipeline`. The
    protocol lacks the aggregation specs of a windowed groupby; until they are extracted, the text
    of the pipeline represents them.
    """
    kind = operator.kind
    body: dict[str, Any] = {
        "kind": NAMES.name_of(type(kind)),
        "fields": {
            n: v for n, v in NAMES.fields_of(kind).items() if n not in IGNORED_OPERATOR_FIELDS
        },
    }
    if pipeline is not None and isinstance(kind, Transform | Filter | Assign):
        body["includes"] = [_code(include) for include in pipeline.pycode.includes]
    if pipeline is not None and isinstance(kind, WindowOp) and not kind.specs_known:
        body["pipeline"] = _code(pipeline.pycode)
    return _bytes(body)


def pipeline_logic(pipeline: Pipeline, operators: Iterable[Operator]) -> bytes:
    """Return what a pipeline computes from its input datasets.

    This is a Merkle hash of its operators from the root down; its name is not part of it.
    `operators` are those of the pipeline, inputs before their readers. Raises KeyError for an
    operand that was not listed before.
    """
    digests: dict[str, str] = {}
    roots: list[str] = []
    for operator in operators:
        inputs = [digests[operand] for operand in operator.inputs]
        body = _bytes([operator_logic(operator, pipeline).decode(), inputs])
        digests[operator.id] = hashlib.sha256(body).hexdigest()
        if operator.is_root:
            roots.append(digests[operator.id])
    return _bytes(roots)


def feature_logic(feature: Feature) -> bytes:
    """Return the logic of a feature: its type."""
    return _bytes({"dtype": feature.dtype})


def extractor_logic(extractor: Extractor) -> bytes:
    """Return what an extractor computes, and from which inputs.

    Its name and version are not part of it. The order of inputs matters for user code only.
    """
    ordered = isinstance(extractor.kind, PyFunc)
    inputs = extractor.inputs if ordered else tuple(sorted(extractor.inputs))
    parts = {
        "inputs": inputs,
        "outputs": extractor.outputs,
        "datasets": sorted(extractor.datasets),
        "kind": extractor.kind,
    }
    return _bytes(parts)


def index_logic(index: Index) -> bytes:
    """Return which lookups an index serves."""
    return _bytes({"side": index.side, "duration_us": index.duration_us})


def expectations_logic(suite: ExpectationSuite) -> bytes:
    """Return the expectations of a suite."""
    return _bytes({"expectations": suite.expectations})


# --- code -----------------------------------------------------------------------------------------


def _code(pycode: PyCode) -> Any:
    """Return the function and the code it includes.

    The entry point is left out: the client generates its name from the text.
    """
    return {
        "code": code_digest(pycode.core_code),
        "includes": [_code(include) for include in pycode.includes],
    }


# --- canonical bytes ------------------------------------------------------------------------------


def _bytes(value: Any) -> bytes:
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":")).encode()


def _plain(value: Any) -> Any:
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return ["float", value.hex()]
        case Enum():
            return [NAMES.name_of(type(value)), NAMES.member_of(value)]
        case PyCode():
            return ["code", _code(value)]
        case Metadata() | Login() | PlainSecret() | SealedSecret() | SecretRef():
            return None
        case Webhook():
            return [NAMES.name_of(Webhook), value.name]
        case Mapping():
            return {name: _plain(item) for name, item in value.items()}
        case tuple() | list():
            return [_plain(item) for item in value]
        case _ if is_dataclass(value):
            return [
                NAMES.name_of(type(value)),
                {name: _plain(item) for name, item in NAMES.fields_of(value).items()},
            ]
        case _:
            raise TypeError(
                f"{type(value).__qualname__} has no canonical form; use frozen dataclasses, "
                "tuples, enums and scalars"
            )
