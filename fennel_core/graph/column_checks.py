"""Checks of the columns that an operator names, shared by all kinds of operators.

Each raises `SchemaMismatch` with a text that names the column.
"""

from __future__ import annotations

from collections.abc import Sequence

from fennel_core.graph.errors import SchemaMismatch
from fennel_core.vocab.dtypes import Field
from fennel_core.vocab.schema import Schema


def find_column(name: str, schema: Schema, what: str) -> Field:
    field = schema.field(name)
    if field is None:
        raise SchemaMismatch(
            f"`{what}` uses column `{name}`, but its input has only {list(schema.names)}"
        )
    return field


def expect_columns(names: Sequence[str], schema: Schema, what: str) -> None:
    for name in names:
        find_column(name, schema, what)


def expect_values(names: Sequence[str], schema: Schema, what: str) -> None:
    expect_columns(names, schema, what)
    for name in names:
        if name not in schema.value_names:
            values = list(schema.value_names)
            raise SchemaMismatch(
                f"Field `{name}` is a key or timestamp field in schema of {what} "
                f"node input. Value fields are: {values}"
            )


def expect_keyless(schema: Schema, what: str) -> None:
    if schema.keyed:
        raise SchemaMismatch(
            f"{what} over keyed datasets is not defined. Found dataset with keys "
            f"`{list(schema.key_names)}`"
        )


def expect_new(names: Sequence[str], schema: Schema, what: str) -> None:
    for name in names:
        if schema.field(name) is not None:
            raise SchemaMismatch(
                f"Column name collision. `{name}` already exists in schema of the input of {what}"
            )


def expect_keys(by: Sequence[str]) -> None:
    if not by:
        raise SchemaMismatch("`groupby` must specify at least one key")
