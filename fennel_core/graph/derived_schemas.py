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
from dataclasses import replace
from typing import assert_never

from fennel_core.expressions.type_lattice import non_optional
from fennel_core.graph.entity_graph import Graph
from fennel_core.graph.errors import SchemaMismatch
from fennel_core.vocab import dtypes
from fennel_core.vocab.dtypes import Dtype, Field, base, is_optional, optional, show
from fennel_core.vocab.schema import Schema
from fennel_core.wire import operators as o
from fennel_core.wire.entities import Pipeline

WINDOW_TYPE = dtypes.Struct(
    "Window", (Field("begin", dtypes.Timestamp()), Field("end", dtypes.Timestamp()))
)
"""The type of the key column that a windowed groupby adds."""
NUMERIC = (dtypes.Int, dtypes.Float, dtypes.Decimal)
ORDERED = (*NUMERIC, dtypes.Date, dtypes.Timestamp)


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


def derive_pipeline_schemas(graph: Graph, pipeline: Pipeline) -> Mapping[str, Schema]:
    """Return the schema of every operator of the pipeline, by operator id.

    Raises `SchemaMismatch` at the first operator that cannot be applied to its input or that reads
    an undefined name; run the passes for references and cycles first.
    """
    known: dict[str, Schema] = {}
    for operator in graph.operators_of(pipeline):
        try:
            inputs = [known[operand] for operand in operator.inputs]
        except KeyError as error:
            raise SchemaMismatch(
                f"an operator reads `{error.args[0]}`, which its pipeline "
                "defines later or not at all"
            ) from error
        known[operator.id] = derive_schema(graph, operator.kind, inputs)
    return known


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
            return _aggregate(kind, inputs[0])
        case o.WindowOp():
            return _window(kind, inputs[0])
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
            _expect_keyless(schema, "Dedup")
            _expect_fields(by, schema, "dedup")
            if not (by or schema.values):
                raise SchemaMismatch("dedup must have at least one column to deduplicate by")
            _expect_dedup_window(window)
            return schema
        case o.First(by=by) | o.Latest(by=by):
            _expect_keyless(schema, type(kind).__name__)
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


# --- expectations ---------------------------------------------------------------------------------


def _field(name: str, schema: Schema, what: str) -> Field:
    field = schema.field(name)
    if field is None:
        raise SchemaMismatch(
            f"`{what}` uses column `{name}`, but its input has only {list(schema.names)}"
        )
    return field


def _expect_fields(names: Sequence[str], schema: Schema, what: str) -> None:
    for name in names:
        _field(name, schema, what)


def _expect_values(names: Sequence[str], schema: Schema, what: str) -> None:
    _expect_fields(names, schema, what)
    for name in names:
        if name not in schema.value_names:
            values = list(schema.value_names)
            raise SchemaMismatch(
                f"Field `{name}` is a key or timestamp field in schema of {what} "
                f"node input. Value fields are: {values}"
            )


def _expect_keyless(schema: Schema, what: str) -> None:
    if schema.keyed:
        raise SchemaMismatch(
            f"{what} over keyed datasets is not defined. Found dataset with keys "
            f"`{list(schema.key_names)}`"
        )


def _expect_new(names: Sequence[str], schema: Schema, what: str) -> None:
    for name in names:
        if schema.field(name) is not None:
            raise SchemaMismatch(
                f"Column name collision. `{name}` already exists in schema of the input of {what}"
            )


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
    _expect_fields(tuple(names), schema, "rename")
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
    _expect_values(columns, schema, "drop")
    return replace(schema, values=tuple(f for f in schema.values if f.name not in columns))


def _explode(columns: Sequence[str], schema: Schema) -> Schema:
    _expect_keyless(schema, "Explode")
    _expect_values(columns, schema, "explode")

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


def _expect_keys(by: Sequence[str]) -> None:
    if not by:
        raise SchemaMismatch("`groupby` must specify at least one key")


def _keyed_by(by: Sequence[str], schema: Schema) -> Schema:
    _expect_keys(by)
    keys = tuple(_field(name, schema, "groupby") for name in by)
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
    _expect_values(columns, schema, "dropnull")
    for name in columns:
        dtype = _field(name, schema, "dropnull").dtype
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
    _expect_new((column,), schema, "changelog")
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
        have, want = _field(mine, left, "join").dtype, _field(theirs, right, "join").dtype
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
    _expect_new([f.name for f in taken], left, "join")
    if kind.how is o.JoinHow.LEFT:
        taken = [Field(f.name, optional(f.dtype)) for f in taken]
    return replace(left, values=(*left.values, *taken))


# --- aggregation ----------------------------------------------------------------------------------


def _aggregate(kind: o.Aggregate, schema: Schema) -> Schema:
    if not kind.specs:
        raise SchemaMismatch("aggregate operator expects at least one aggregation operation")
    if kind.along is not None:
        _expect_values((kind.along,), schema, "along")
        if _field(kind.along, schema, "along").dtype != dtypes.Timestamp():
            raise SchemaMismatch(
                f"error with along kwarg of aggregate operator: `{kind.along}` is not of type "
                "datetime"
            )
    if kind.along is not None and kind.emit is o.Emit.FINAL:
        raise SchemaMismatch("'along' param can not be used with emit=\"final\" strategy")
    _expect_eager_decay(kind)
    _expect_windows(kind, schema)
    return _aggregated(kind.keys, (), kind.specs, schema)


def _window(kind: o.WindowOp, schema: Schema) -> Schema:
    if schema.keyed:
        keys = list(schema.key_names)
        raise SchemaMismatch(
            "Using 'window' param in groupby on keyed dataset is not allowed. Found "
            f"dataset with keys `{keys}`"
        )
    if not isinstance(kind.window, o.Tumbling | o.Hopping | o.Session):
        raise SchemaMismatch("the window of a groupby must be Tumbling, Hopping or Session")
    _expect_eager_decay(kind)
    _expect_hops(kind.window)
    return _aggregated(kind.by, (Field(kind.field, WINDOW_TYPE),), kind.specs, schema)


def _aggregated(
    by: Sequence[str], more: tuple[Field, ...], specs: Sequence[o.Spec], schema: Schema
) -> Schema:
    _expect_keys(by)
    keys = (*(_field(name, schema, "groupby") for name in by), *more)
    values = tuple(Field(spec.name, spec_dtype(spec, schema)) for spec in specs)
    names = [f.name for f in (*keys, *values)] + [schema.timestamp]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise SchemaMismatch(
            f"columns {repeated} appear twice in the output of an aggregation; give "
            "each output its own name"
        )
    return Schema(keys, values, schema.timestamp)


def _expect_eager_decay(kind: o.Aggregate | o.WindowOp) -> None:
    if kind.emit is o.Emit.FINAL and any(isinstance(spec, o.ExpDecay) for spec in kind.specs):
        raise SchemaMismatch("ExpDecaySum aggregation does not support emit='final'.")


def _expect_dedup_window(window: o.Window | None) -> None:
    if not isinstance(window, o.Tumbling | o.Session | None):
        raise SchemaMismatch("the window of dedup must be Tumbling or Session")
    if isinstance(window, o.Tumbling) and (window.duration_us % 1_000_000 or window.lookback_us):
        raise SchemaMismatch("the window of dedup has whole seconds and no lookback")


def _expect_hops(window: o.Window) -> None:
    if isinstance(window, o.Hopping) and window.stride_us > window.duration_us:
        raise SchemaMismatch(
            "the stride of a hopping window is longer than its duration, so rows between two "
            "windows would be in none; use a stride up to the duration"
        )


def _expect_windows(kind: o.Aggregate, schema: Schema) -> None:
    windows = [spec.window for spec in kind.specs]
    for window in windows:
        _expect_hops(window)
    if any(isinstance(window, o.Session) for window in windows):
        raise SchemaMismatch(
            "Session windows go into `groupby(…, window=Session(…))`, not into a single aggregation"
        )
    if len({o.is_discrete(window) for window in windows}) > 1:
        raise SchemaMismatch(
            "Windows in all specs have to be either discrete "
            "(Hopping/Tumbling/Session) or non-discrete (Continuous/Forever) not both"
        )
    lookbacks = {
        window.lookback_us
        for window in windows
        if isinstance(window, o.Tumbling | o.Hopping | o.ForeverHopping)
    }
    if len(lookbacks) > 1:
        raise SchemaMismatch(
            "Windows in all specs must have same lookback found "
            f"{sorted(us // 1_000_000 for us in lookbacks)} seconds"
        )
    if (
        schema.keyed
        and kind.along is None
        and any(isinstance(window, o.Tumbling | o.Hopping) for window in windows)
    ):
        raise SchemaMismatch(
            "invalid aggregate: tumbling and hopping windows can not be used to "
            "aggregate keyed datasets; "
            "maybe try using a 'forever hopping' window or 'along' parameter?"
        )


def spec_dtype(spec: o.Spec, schema: Schema) -> Dtype:
    """Return the type of an aggregation's output over rows of `schema`.

    Raises `SchemaMismatch` if the aggregation cannot be applied to its column.
    """
    match spec:
        case o.Count(of=of, unique=unique, dropnull=dropnull):
            if of is not None:
                column = _field(of, schema, "count").dtype
                _expect_dropnull(dropnull, of, column, "count")
                if unique:
                    _expect_hashable(of, column, "count unique")
            elif unique or dropnull:
                raise SchemaMismatch("a unique or null-dropping count must name its column in `of`")
            return dtypes.Int()
        case o.Sum(of=of):
            return non_optional(_of_type(NUMERIC, of, schema, "sum"))
        case (
            o.Average(of=of, default=default)
            | o.Stddev(of=of, default=default)
            | o.Quantile(of=of, default=default)
        ):
            _of_type(NUMERIC, of, schema, type(spec).__name__.lower())
            if isinstance(spec, o.Quantile) and not 0 <= spec.p <= 1:
                raise SchemaMismatch(f"quantile `p` is {spec.p}; use a number from 0 to 1")
            return dtypes.Float() if default is not None else dtypes.Optional(dtypes.Float())
        case o.ExpDecay(of=of):
            _of_type(NUMERIC, of, schema, "exponential decay sum")
            return dtypes.Float()
        case o.Min(of=of, default=default) | o.Max(of=of, default=default):
            column = non_optional(_of_type(ORDERED, of, schema, type(spec).__name__.lower()))
            return column if default is not None else optional(column)
        case o.Distinct(of=of, dropnull=dropnull):
            column = _field(of, schema, "distinct").dtype
            _expect_dropnull(dropnull, of, column, "distinct")
            _expect_hashable(of, column, "distinct")
            return dtypes.List(non_optional(column) if dropnull else column)
        case o.LastK(of=of, dropnull=dropnull) | o.FirstK(of=of, dropnull=dropnull):
            if spec.limit <= 0:
                raise SchemaMismatch(f"the limit of `{spec.name}` is {spec.limit}; use 1 or more")
            column = _field(of, schema, type(spec).__name__).dtype
            _expect_dropnull(dropnull, of, column, type(spec).__name__)
            return dtypes.List(non_optional(column) if dropnull else column)
        case unreachable:
            assert_never(unreachable)


def _of_type(accepted: tuple[type, ...], of: str, schema: Schema, what: str) -> Dtype:
    dtype = _field(of, schema, what).dtype
    if not isinstance(base(dtype), accepted):
        words = ", ".join(kind.__name__.lower() for kind in accepted)
        raise SchemaMismatch(
            f"Cannot take {what} of field `{of}` of type `{show(dtype)}`; it needs one of {words}"
        )
    return dtype


def _expect_dropnull(dropnull: bool, of: str, dtype: Dtype, what: str) -> None:
    if dropnull and not is_optional(dtype):
        raise SchemaMismatch(
            f"Cannot use {what} with dropnull for field `{of}` of type "
            f"`{show(dtype)}`, as it is not optional."
        )


def _expect_hashable(of: str, dtype: Dtype, what: str) -> None:
    if not _hashable(dtype):
        raise SchemaMismatch(
            f"Cannot use {what} for field `{of}` of type `{show(dtype)}`, as it is not hashable"
        )


def _hashable(dtype: Dtype) -> bool:
    match base(dtype):
        case dtypes.Float() | dtypes.Struct() | dtypes.Embedding():
            return False
        case dtypes.List(of) | dtypes.Map(of):
            return _hashable(of)
        case _:
            return True


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
