"""The calls that an executor accepts, as values, and their form in the header of a frame.

Declared types travel with every call as a compact JSON description, so the executor environment
needs none of the platform's packages: it builds pandas columns of these types before user code runs
and casts the result to them. The description includes the checks (between, oneof, regex), because
assigned columns and features are checked where they are computed. Code travels as its hash; the
worker requests the text of code that it does not know.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, assert_never

from fennel_core.executors.code_cache import code_key
from fennel_core.vocab import dtypes
from fennel_core.vocab.dtypes import Dtype, Field
from fennel_core.wire.pycode import PyCode

RAW = "j"
"""The description of an undeclared payload column, whose values are JSON text."""


@dataclass(frozen=True, slots=True)
class TransformCall:
    """Transform a frame into a frame; a pipeline's transform.

    The result has the columns `output` and `__row`, the input row of each row. `entity` names the
    place in error messages, e.g. `Dataset.pipeline`.
    """

    code: PyCode
    entity: str
    input: tuple[Field, ...]
    output: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class FilterCall:
    """Select rows; a pipeline's filter or a source's `where`.

    The result is the column `__row` in the order that user code left. `raw` are columns without a
    declared type: large_string, JSON text per value.
    """

    code: PyCode
    entity: str
    input: tuple[Field, ...]
    raw: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AssignCall:
    """Compute one new column; a pipeline's assign or a source's preproc.

    The result is the column `column.name`, row for row. `checked`: the column must already be of
    its declared type, as in pipelines; a preproc's column is only cast, as logged data is.
    """

    code: PyCode
    entity: str
    input: tuple[Field, ...]
    column: Field
    raw: tuple[str, ...] = ()
    checked: bool = True


@dataclass(frozen=True, slots=True)
class ExtractCall:
    """Run a Python extractor.

    The table has `__ts` and the `inputs` in order; `inputs` and `outputs` have full names
    `Featureset.feature`. The result is the columns `outputs`, row for row. `datasets` are the names
    that the code may look up.
    """

    code: PyCode
    featureset: str
    extractor: str
    inputs: tuple[Field, ...]
    outputs: tuple[Field, ...]
    datasets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WarmCall:
    """Load code into every worker before its first call. The result is an empty table."""

    code: PyCode
    entity: str
    module: str | None = None
    """The name that the code's module is registered under while it loads: `Featureset.extractor`
    for extractors.
    """


RowCall = TransformCall | FilterCall | AssignCall | ExtractCall
"""Calls of code that is given rows."""


@dataclass(frozen=True, slots=True)
class EachRowCall:
    """Call the code with each row alone, at most `MOST_EACH_ROWS`, to find those that it fails on.

    The result has a row per failure: `__row`, the reason, the message and the traceback. What the
    code returns for the other rows is dropped.
    """

    of: RowCall


MOST_EACH_ROWS: Final = 64
"""Rows of an `EachRowCall`, which has the time limit of one call."""


@dataclass(frozen=True, slots=True)
class ProgramCall:
    """Run a program that the platform generated from user code. The result is its output."""

    text: str
    entity: str


@dataclass(frozen=True, slots=True)
class CollectCall:
    """Import the modules of a project; `entity` is how the user named it.

    The result has the output of the code and the request that commits what the modules define
    (`programs_format`).
    """

    modules: tuple[str, ...]
    env: str
    message: str
    entity: str


Program = ProgramCall | CollectCall
CodeCall = RowCall | EachRowCall | WarmCall
ExecutorCall = CodeCall | Program


@lru_cache(maxsize=4096)
def describe(dtype: Dtype) -> Any:
    """Return the JSON description of a dtype: a letter, or `[word, …]` for composed types."""
    match dtype:
        case dtypes.Int():
            return "i"
        case dtypes.Float():
            return "f"
        case dtypes.Str():
            return "s"
        case dtypes.Bool():
            return "b"
        case dtypes.Bytes():
            return "y"
        case dtypes.Timestamp():
            return "t"
        case dtypes.Date():
            return "d"
        case dtypes.Null():
            return "n"
        case dtypes.Decimal(scale):
            return ["decimal", scale]
        case dtypes.Embedding(size):
            return ["embedding", size]
        case dtypes.List(of):
            return ["list", describe(of)]
        case dtypes.Map(value):
            return ["map", describe(value)]
        case dtypes.Optional(of):
            return ["optional", describe(of)]
        case dtypes.Between(of, low, high, strict_min, strict_max):
            return ["between", describe(of), low, high, strict_min, strict_max]
        case dtypes.OneOf(of, options):
            return ["oneof", describe(of), list(options)]
        case dtypes.Regex(pattern):
            return ["regex", pattern]
        case dtypes.Struct(name, fields):
            return ["struct", name, describe_fields(fields)]
        case unreachable:
            assert_never(unreachable)


def describe_fields(fields: tuple[Field, ...]) -> list[list[Any]]:
    """Return `[[name, description], …]`."""
    return [[f.name, describe(f.dtype)] for f in fields]


@lru_cache(maxsize=4096)
def code_text(code: PyCode, *, glued: bool) -> str:
    """Return the module to execute.

    Extractors follow their imports without a line break (`glued`), as in the client.
    """
    return code.imports + code.generated_code if glued else code.module_text


@lru_cache(maxsize=4096)
def code_hash(code: PyCode, module: str | None) -> str:
    """Return the key of the worker's code cache: a hash of text, entry point and module name."""
    return code_key(code_text(code, glued=module is not None), code.entry_point, module)


def text_of_code(call: CodeCall) -> str:
    """Return the module that a call needs."""
    if isinstance(call, EachRowCall):
        call = call.of
    return code_text(call.code, glued=module_of(call) is not None)


def module_of(call: ExecutorCall) -> str | None:
    """Return the name that the code's module is registered under while it loads, if any."""
    match call:
        case EachRowCall(of=of):
            return module_of(of)
        case ExtractCall(featureset=featureset, extractor=extractor):
            return f"{featureset}.{extractor}"
        case WarmCall(module=module):
            return module
        case TransformCall() | FilterCall() | AssignCall() | ProgramCall() | CollectCall():
            return None
        case unreachable:
            assert_never(unreachable)


def header_of(call: ExecutorCall) -> bytes:
    """Return the JSON header of a call's frame."""
    match call:
        case ProgramCall(text=text):
            return json.dumps({"kind": "program", "text": text}).encode()
        case CollectCall(modules=modules, env=env, message=message):
            header = {"kind": "collect", "modules": modules, "env": env, "message": message}
            return json.dumps(header).encode()
        case _:
            return _code_header(call)


@lru_cache(maxsize=4096)
def _code_header(call: CodeCall) -> bytes:
    return json.dumps(_header(call), separators=(",", ":")).encode()


def _header(call: CodeCall) -> dict[str, Any]:
    if isinstance(call, EachRowCall):
        return _header(call.of) | {"each": True}
    module = module_of(call)
    out: dict[str, Any] = {
        "code": code_hash(call.code, module),
        "entry": call.code.entry_point,
        "module": module,
    }
    match call:
        case TransformCall(input=given, output=output):
            return out | {
                "kind": "transform",
                "input": describe_fields(given),
                "output": describe_fields(output),
            }
        case FilterCall(input=given, raw=raw):
            return out | {
                "kind": "filter",
                "input": [*describe_fields(given), *([name, RAW] for name in raw)],
            }
        case AssignCall(input=given, column=column, raw=raw, checked=checked, entity=entity):
            columns = [*describe_fields(given), *([name, RAW] for name in raw)]
            return out | {
                "kind": "assign",
                "input": columns,
                "output": describe_fields((column,)),
                "checked": checked,
                "entity": entity,
            }
        case ExtractCall(
            featureset=featureset,
            extractor=extractor,
            inputs=given,
            outputs=outputs,
            datasets=datasets,
        ):
            return out | {
                "kind": "extract",
                "featureset": featureset,
                "extractor": extractor,
                "input": describe_fields(given),
                "output": describe_fields(outputs),
                "datasets": list(datasets),
            }
        case WarmCall():
            return out | {"kind": "warm"}
        case unreachable:
            assert_never(unreachable)


def entity_of(call: ExecutorCall) -> str:
    """Return the place of the code, for messages."""
    match call:
        case EachRowCall(of=of):
            return entity_of(of)
        case ExtractCall(featureset=featureset, extractor=extractor):
            return f"{featureset}.{extractor}"
        case _:
            return call.entity
