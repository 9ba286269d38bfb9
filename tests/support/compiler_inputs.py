"""Builders of compiler inputs for tests: datasets, sources and pipelines in short notation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fennel_core.blueprints.compiler_input import DatasetInput, PipelineInput, TypedOperator
from fennel_core.vocab.dtypes import Dtype, Field, Int, Str
from fennel_core.vocab.ids import DatasetName
from fennel_core.vocab.schema import Schema
from fennel_core.wire import connectors, entities
from fennel_core.wire.operators import OperatorKind
from fennel_core.wire.pycode import PyCode

NOTHING = entities.Metadata("o@x", "", (), deprecated=False, deleted=False)


def schema(keys: str = "", values: str = "", at: str = "at") -> Schema:
    """Return a schema: `schema("user", "amount city:str")`, with fields of type int by default."""
    return Schema(tuple(map(_field, keys.split())), tuple(map(_field, values.split())), at)


def _field(text: str) -> Field:
    name, _, dtype = text.partition(":")
    types: dict[str, Dtype] = {"": Int(), "int": Int(), "str": Str()}
    return Field(name, types[dtype])


def code(text: str, *includes: PyCode) -> PyCode:
    return PyCode("f", text, text, f"# generated\n{text}", "import json\n", includes, ())


def dataset(name: str, shape: Schema, version: int = 1, **changes: object) -> entities.Dataset:
    value = entities.Dataset(
        DatasetName(name), version, shape, (), 0, True, code(f"class {name}: ..."), NOTHING, ()
    )
    return replace(value, **changes)


def webhook(endpoint: str, **changes: object) -> connectors.Source:
    table = connectors.WebhookEndpoint(connectors.Webhook("hook", 7), endpoint)
    value = connectors.Source(
        DatasetName("?"),
        1,
        table,
        connectors.Cdc.APPEND,
        14,
        None,
        None,
        None,
        None,
        None,
        False,
        None,
        (),
        None,
        None,
    )
    return replace(value, **changes)


def sourced(
    name: str,
    shape: Schema,
    *,
    version: int = 1,
    source: connectors.Source | None = None,
    **flags: bool,
) -> DatasetInput:
    sources = (source or webhook(name),)
    return DatasetInput(
        dataset(name, shape, version),
        sources,
        None,
        **{"online": False, "offline": False, "looked_up": False, **flags},
    )


def derived(
    name: str,
    shape: Schema,
    nodes: Sequence[TypedOperator],
    *,
    version: int = 1,
    pipeline: str = "p",
    **flags: bool,
) -> DatasetInput:
    found = PipelineInput(pipeline, tuple(nodes))
    return DatasetInput(
        dataset(name, shape, version),
        (),
        found,
        **{"online": False, "offline": False, "looked_up": False, **flags},
    )


def node(id_: str, kind: OperatorKind, output: Schema) -> TypedOperator:
    return TypedOperator(id_, kind, output)
