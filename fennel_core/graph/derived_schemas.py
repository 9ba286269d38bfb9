"""The schema of every operator's output, derived from its inputs.

Theory. The client checks schemas when a class is defined. The platform derives them again, because
it stores and computes by them and a request need not come from the client. There is one function
per kind of operator: input schemas to output schema, `SchemaMismatch` if the operator cannot be
applied to its input. Maps of the protocol are unordered, so columns that come from one
(`transform`, `assign`) are in name order; readers select columns by name. Two schemas agree when
names, keys, timestamp and *storage types* agree: `between`, `oneof` and `regex` restrict rows at
ingestion, and the client does not carry them through operators either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from fennel_core.expressions.type_lattice import non_optional
from fennel_core.graph.aggregation_schemas import (
    aggregate_schema,
    expect_dedup_window,
    window_schema,
)
from fennel_core.graph.column_checks import (
    expect_columns,
    expect_keyless,
    expect_keys,
    expect_new,
    expect_values,
    find_column,
)
from fennel_core.graph.entity_graph import Graph
from fennel_core.graph.errors import SchemaMismatch
from fennel_core.vocab import dtypes
from fennel_core.vocab.dtypes import Dtype, Field, base, is_optional, optional, show
from fennel_core.vocab.schema import Schema
from fennel_core.wire import operators as o
from fennel_core.wire.entities import Pipeline


def storage_type(dtype: Dtype) -> Dtype:
    """Return the dtype without restrictions at any depth and without struct names.

    Two columns are compatible when their storage types are equal.
    """
    match dtype:
        case dtypes.Optional(of):
            return dtypes.Optional(storage_type(of))
        case dtypes.Between() | dtypes.OneOf() | dtypes.Regex():
            return storage_type(base(dtype))
        case dtypes.List(of):
            return dtypes.List(storage_type(of))
        case dtypes.Map(value):
            return dtypes.Map(storage_type(value))
        case dtypes.Struct(_, fields):
            return dtypes.Struct("", tuple(Field(f.name, storage_type(f.dtype)) for f in fields))
        case _:
            return dtype


@dataclass(frozen=True, slots=True)
class PipelineSchemas:
    """The schemas of a pipeline's operators, by operator id, as far as they can be derived.

    `mismatches`: one text per operator that cannot be applied to its input. Operators downstream of
    such an operator have neither a schema nor a text.
    """

    known: Mapping[str, Schema]
    mismatches: tuple[str, ...]


def derive_known_schemas(graph: Graph, pipeline: Pipeline) -> PipelineSchemas:
    """Return the schema of every operator of the pipeline, or why it has none.

    Run the passes for references and cycles first.
    """
    known: dict[str, Schema] = {}
    mismatches: list[str] = []
    failed: set[str] = set()
    for operator in graph.operators_of(pipeline):
        if not failed.isdisjoint(operator.inputs):
            failed.add(operator.id)
            continue
        try:
            known[operator.id] = derive_schema(
                graph, operator.kind, [known[operand] for operand in operator.inputs]
            )
        except KeyError as error:
            failed.add(operator.id)
            mismatches.append(
                f"an operator reads `{error.args[0]}`, which its pipeline "
                "defines later or not at all"
            )
        except SchemaMismatch as error:
            failed.add(operator.id)
            mismatches.append(str(error))
    return PipelineSchemas(known, tuple(mismatches))


def derive_pipeline_schemas(graph: Graph, pipeline: Pipeline) -> Mapping[str, Schema]:
    """Return the schema of every operator of the pipeline, by operator id.

    Raises `SchemaMismatch` if an operator has none.
    """
    schemas = derive_known_schemas(graph, pipeline)
    if schemas.mismatches:
        raise SchemaMismatch(schemas.mismatches[0])
    return schemas.known


def derive_schema(graph: Graph, kind: o.OperatorKind, inputs: Sequence[Schema]) -> Schema:
    """Return the schema of one operator's output.

    `inputs` are in the order of `operator.inputs`. Raises `SchemaMismatch`.
    """
    match kind:
        case o.DatasetRef(dataset=name):
            dataset = graph.dataset(name)
            if dataset is None:
                raise SchemaMismatch(f"dataset `{name}` is not defined; add it to the commit")
            return dataset.schema
        case o.Join():
            return _join(kind, inputs[0], inputs[1])
        case o.Union_():
            return _union(inputs)
        case o.Aggregate():
            return aggregate_schema(kind, inputs[0])
        case o.WindowOp():
            return window_schema(kind, inputs[0])
        case o.Filter() | o.FilterExpr():
            return inputs[0]
        case _:
            return _by_columns(kind, inputs[0])


def _by_columns(
    kind: o.Transform
    | o.Rename
    | o.Drop
    | o.Explode
    | o.Dedup
    | o.First
    | o.Latest
    | o.Assign
    | o.AssignExpr
    | o.Dropnull
    | o.Changelog,
    schema: Schema,
) -> Schema:
    match kind:
        case o.Transform():
            return _transform(kind, schema)
        case o.Rename(columns=columns):
            return _rename(dict(columns), schema)
        case o.Drop(columns=columns):
            return _drop(columns, schema)
        case o.Explode(columns=columns):
            return _explode(columns, schema)
        case o.Dedup(by=by, window=window):
            expect_keyless(schema, "Dedup")
            expect_columns(by, schema, "dedup")
            if not (by or schema.values):
                raise SchemaMismatch("dedup must have at least one column to deduplicate by")
            expect_dedup_window(window)
            return schema
        case o.First(by=by) | o.Latest(by=by):
            expect_keyless(schema, type(kind).__name__)
            return _keyed_by(by, schema)
        case o.Assign(column=column, dtype=dtype):
            return _assign({column: dtype}, schema)
        case o.AssignExpr(columns=columns):
            return _assign({name: dtype for name, _, dtype in columns}, schema)
        case o.Dropnull(columns=columns):
            return _dropnull(columns, schema)
        case o.Changelog(kind_column=column):
            return _changelog(column, schema)
        case unreachable:
            assert_never(unreachable)


# --- columns --------------------------------------------------------------------------------------


def _transform(kind: o.Transform, schema: Schema) -> Schema:
    if not kind.schema:
        return schema
    declared = dict(kind.schema)
    for key in schema.keys:
        if key.name not in declared:
            raise SchemaMismatch(
                f"Key field {key.name} must be present in schema of transform node"
            )
        if storage_type(declared[key.name]) != storage_type(key.dtype):
            raise SchemaMismatch(
                f"Key field {key.name} has type {show(key.dtype)} before the "
                f"transform but {show(declared[key.name])} after"
            )
    if schema.timestamp not in declared:
        raise SchemaMismatch(
            f"Timestamp field {schema.timestamp} must be present in schema of transform node"
        )
    held = {*schema.key_names, schema.timestamp}
    return replace(
        schema, values=tuple(Field(name, dtype) for name, dtype in kind.schema if name not in held)
    )


def _rename(names: Mapping[str, str], schema: Schema) -> Schema:
    expect_columns(tuple(names), schema, "rename")
    kept = set(schema.names) - set(names)
    for new in names.values():
        if new in kept or list(names.values()).count(new) > 1:
            raise SchemaMismatch(
                f"Field `{new}` already exists in schema of rename node input; choose another name"
            )

    def renamed(fields: tuple[Field, ...]) -> tuple[Field, ...]:
        return tuple(Field(names.get(f.name, f.name), f.dtype) for f in fields)

    return Schema(
        renamed(schema.keys), renamed(schema.values), names.get(schema.timestamp, schema.timestamp)
    )


def _drop(columns: Sequence[str], schema: Schema) -> Schema:
    expect_values(columns, schema, "drop")
    return replace(schema, values=tuple(f for f in schema.values if f.name not in columns))


def _explode(columns: Sequence[str], schema: Schema) -> Schema:
    expect_keyless(schema, "Explode")
    expect_values(columns, schema, "explode")

    def exploded(field: Field) -> Field:
        if field.name not in columns:
            return field
        inner = base(field.dtype)
        if not isinstance(inner, dtypes.List):
            raise SchemaMismatch(
                f"Cannot explode column `{field.name}` of type "
                f"`{show(field.dtype)}`, explode expects columns of List type"
            )
        return Field(field.name, optional(inner.of))

    return replace(schema, values=tuple(exploded(f) for f in schema.values))


def _keyed_by(by: Sequence[str], schema: Schema) -> Schema:
    expect_keys(by)
    if len(set(by)) != len(by):
        raise SchemaMismatch(f"`groupby` names a column twice: {list(by)}; name each once")
    keys = tuple(find_column(name, schema, "groupby") for name in by)
    return Schema(keys, tuple(f for f in schema.values if f.name not in by), schema.timestamp)


def _assign(columns: Mapping[str, Dtype], schema: Schema) -> Schema:
    for name in columns:
        if name in schema.key_names or name == schema.timestamp:
            raise SchemaMismatch(
                f"Field `{name}` is a key or timestamp field and cannot be assigned; "
                "assign another column"
            )
    changed = tuple(Field(f.name, columns.get(f.name, f.dtype)) for f in schema.values)
    added = tuple(
        Field(name, dtype) for name, dtype in columns.items() if name not in schema.value_names
    )
    return replace(schema, values=changed + added)


def _dropnull(columns: Sequence[str], schema: Schema) -> Schema:
    expect_values(columns, schema, "dropnull")
    for name in columns:
        dtype = find_column(name, schema, "dropnull").dtype
        if not is_optional(dtype):
            raise SchemaMismatch(
                f"invalid dropnull column `{name}`: its type `{show(dtype)}` is not "
                "Optional; leave it out"
            )
    return replace(
        schema,
        values=tuple(
            Field(f.name, non_optional(f.dtype)) if f.name in columns else f for f in schema.values
        ),
    )


def _changelog(column: str, schema: Schema) -> Schema:
    if not schema.keyed:
        raise SchemaMismatch(
            "Changelog operation is allowed only on keyed datasets. Its input has no keys"
        )
    expect_new((column,), schema, "changelog")
    return Schema(
        (), (*schema.keys, *schema.values, Field(column, dtypes.Bool())), schema.timestamp
    )


# --- several inputs -------------------------------------------------------------------------------


def _union(inputs: Sequence[Schema]) -> Schema:
    if not inputs:
        raise SchemaMismatch("a union needs at least one input")
    for schema in inputs:
        if schema.keyed:
            raise SchemaMismatch(
                "Union over keyed datasets is currently not supported. Found "
                f"dataset with keys `{list(schema.key_names)}`"
            )
        problem = schema_difference(inputs[0], schema)
        if problem:
            raise SchemaMismatch(f"the inputs of a union must have one schema: {problem}")
    return inputs[0]


def _join(kind: o.Join, left: Schema, right: Schema) -> Schema:
    columns = dict(kind.on)
    if set(columns.values()) != set(right.key_names) or not right.keyed:
        raise SchemaMismatch(
            f"Join fields `{sorted(columns.values())}` are not the keys "
            f"`{list(right.key_names)}` of the right dataset"
        )
    for mine, theirs in columns.items():
        have, want = find_column(mine, left, "join").dtype, find_column(theirs, right, "join").dtype
        if is_optional(have):
            raise SchemaMismatch(
                "Fields used in a join operator must not be optional in left "
                f"schema, found `{mine}` of type `{show(have)}`"
            )
        if storage_type(have) != storage_type(want):
            pair = f"`{mine}: {show(have)}` meets a key `{theirs}: {show(want)}`"
            raise SchemaMismatch(
                f"the join on {pair}; cast one side, or join on a field of the same type"
            )
    allowed = (*right.value_names, right.timestamp)
    for name in kind.fields:
        if name not in allowed:
            raise SchemaMismatch(
                f"fields member `{name}` not present in allowed fields "
                f"{list(allowed)} of right input"
            )
    taken = [f for f in right.values if not kind.fields or f.name in kind.fields]
    if right.timestamp in kind.fields:
        taken.append(Field(right.timestamp, dtypes.Timestamp()))
    expect_new([f.name for f in taken], left, "join")
    if kind.how is o.JoinHow.LEFT:
        taken = [Field(f.name, optional(f.dtype)) for f in taken]
    return replace(left, values=(*left.values, *taken))


# --- agreement ------------------------------------------------------------------------------------


def schema_difference(ours: Schema, theirs: Schema) -> str | None:
    """Return the first difference between a derived and a declared schema, None if they agree.

    The sentence is about `ours` (derived) against `theirs` (declared).
    """
    if ours.timestamp != theirs.timestamp:
        return f"the timestamp field is `{ours.timestamp}`, but `{theirs.timestamp}` is declared"
    for part, mine, other in (
        ("key", ours.keys, theirs.keys),
        ("value", ours.values, theirs.values),
    ):
        have, want = {f.name: f.dtype for f in mine}, {f.name: f.dtype for f in other}
        for name in want:
            if name not in have:
                return f"{part} field `{name}: {show(want[name])}` is declared but missing"
        for name, dtype in have.items():
            if name not in want:
                return f"{part} field `{name}: {show(dtype)}` is not declared"
            if storage_type(dtype) != storage_type(want[name]):
                return (
                    f"{part} field `{name}` has type `{show(dtype)}`, but "
                    f"`{show(want[name])}` is declared"
                )
    return None
