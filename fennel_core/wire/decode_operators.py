"""Decode operators, aggregation specs and windows into `wire.operators`."""

from __future__ import annotations

from dataclasses import replace

from fennel_core.vocab.ids import DatasetName
from fennel_core.wire import operators as o
from fennel_core.wire.decode_datatypes import (
    MICROS_PER_SECOND,
    chosen,
    decode_dtype,
    decode_duration_us,
    known,
    unknown,
)
from fennel_core.wire.decode_expressions import decode_expr
from fennel_core.wire.decode_pycode import decode_pycode
from fennel_core.wire.errors import UnsupportedValue
from fennel_core.wire.gen import dataset_pb2 as pb
from fennel_core.wire.gen import recovered_pb2, spec_pb2, window_pb2

EMITS = {pb.EmitStrategy.Eager: o.Emit.EAGER, pb.EmitStrategy.Final: o.Emit.FINAL}
HOWS = {pb.Join.How.Left: o.JoinHow.LEFT, pb.Join.How.Inner: o.JoinHow.INNER}


def decode_window(message: window_pb2.Window) -> o.Window:
    """Decode a window; raises `UnsupportedValue` if a required duration is not positive."""
    match chosen(message, "variant"):
        case "forever":
            return o.Forever()
        case "sliding":
            return o.Sliding(_positive(decode_duration_us(message.sliding.duration), "duration"))
        case "tumbling":
            return o.Tumbling(
                _positive(decode_duration_us(message.tumbling.duration), "duration"),
                decode_duration_us(message.tumbling.lookback),
            )
        case "hopping":
            return o.Hopping(
                _positive(decode_duration_us(message.hopping.duration), "duration"),
                _positive(decode_duration_us(message.hopping.stride), "stride"),
                decode_duration_us(message.hopping.lookback),
            )
        case "forever_hopping":
            return o.ForeverHopping(
                _positive(decode_duration_us(message.forever_hopping.stride), "stride"),
                decode_duration_us(message.forever_hopping.lookback),
            )
        case "session":
            return o.Session(_positive(decode_duration_us(message.session.gap), "gap"))
        case other:
            raise unknown(message, other)


def _positive(micros: int, what: str) -> int:
    if micros <= 0:
        raise UnsupportedValue(
            f"the {what} of a window is {micros} microseconds; use a positive duration"
        )
    return micros


def _default(
    message: spec_pb2.Average | spec_pb2.Min | spec_pb2.Max | spec_pb2.Stddev,
) -> float | None:
    return None if message.default_null else message.default


def decode_spec(message: spec_pb2.PreSpec) -> o.Spec:
    """Decode one aggregation spec."""
    match chosen(message, "variant"):
        case "sum":
            s = message.sum
            return o.Sum(s.name, decode_window(s.window), s.of)
        case "average":
            a = message.average
            return o.Average(a.name, decode_window(a.window), a.of, _default(a))
        case "count":
            c = message.count
            return o.Count(
                c.name, decode_window(c.window), c.of or None, c.unique, c.approx, c.dropnull
            )
        case "last_k":
            k = message.last_k
            return o.LastK(k.name, decode_window(k.window), k.of, k.limit, k.dedup, k.dropnull)
        case "first_k":
            f = message.first_k
            return o.FirstK(f.name, decode_window(f.window), f.of, f.limit, f.dedup, f.dropnull)
        case "min":
            low = message.min
            return o.Min(low.name, decode_window(low.window), low.of, _default(low))
        case "max":
            high = message.max
            return o.Max(high.name, decode_window(high.window), high.of, _default(high))
        case "stddev":
            d = message.stddev
            return o.Stddev(d.name, decode_window(d.window), d.of, _default(d))
        case "distinct":
            u = message.distinct
            return o.Distinct(u.name, decode_window(u.window), u.of, u.dropnull)
        case "quantile":
            q = message.quantile
            return o.Quantile(
                q.name,
                decode_window(q.window),
                q.of,
                q.quantile,
                q.default if q.HasField("default") else None,
                q.approx,
            )
        case "exp_decay":
            x = message.exp_decay
            half_life_us = _positive(x.half_life_seconds * MICROS_PER_SECOND, "half life")
            return o.ExpDecay(x.name, decode_window(x.window), x.of, half_life_us)
        case other:
            raise unknown(message, other)


def decode_operator(message: pb.Operator) -> o.Operator:
    """Decode one operator of one pipeline."""
    return o.Operator(
        id=message.id,
        dataset=DatasetName(message.dataset_name),
        version=message.ds_version,
        pipeline=message.pipeline_name,
        is_root=message.is_root,
        kind=_kind(message),
    )


def _kind(message: pb.Operator) -> o.OperatorKind:
    match chosen(message, "kind"):
        case "dataset_ref":
            return o.DatasetRef(DatasetName(message.dataset_ref.referring_dataset_name))
        case "aggregate":
            return _aggregate(message.aggregate)
        case "join":
            return _join(message.join)
        case "union":
            return o.Union_(tuple(message.union.operand_ids))
        case "window":
            return _window_op(message)
        case "transform" | "filter" | "assign" as name:
            return _python_kind(message, name)
        case "filter_expr":
            return o.FilterExpr(
                message.filter_expr.operand_id, decode_expr(message.filter_expr.expr)
            )
        case "assign_expr":
            return _assign_expr(message.assign_expr)
        case name:
            return _column_kind(message, name)


def _python_kind(message: pb.Operator, name: str) -> o.OperatorKind:
    match name:
        case "transform":
            t = message.transform
            schema = tuple((column, decode_dtype(t.schema[column])) for column in sorted(t.schema))
            return o.Transform(t.operand_id, schema, decode_pycode(t.pycode))
        case "filter":
            return o.Filter(message.filter.operand_id, decode_pycode(message.filter.pycode))
        case _:
            a = message.assign
            return o.Assign(
                a.operand_id, a.column_name, decode_dtype(a.output_type), decode_pycode(a.pycode)
            )


def _column_kind(message: pb.Operator, name: str) -> o.OperatorKind:
    match name:
        case "rename":
            r = message.rename
            return o.Rename(
                r.operand_id, tuple((old, r.column_map[old]) for old in sorted(r.column_map))
            )
        case "drop":
            return o.Drop(message.drop.operand_id, tuple(message.drop.dropcols))
        case "explode":
            return o.Explode(message.explode.operand_id, tuple(message.explode.columns))
        case "dedup":
            d = message.dedup
            return o.Dedup(
                d.operand_id,
                tuple(d.columns),
                decode_window(d.window_type) if d.HasField("window_type") else None,
            )
        case "first":
            return o.First(message.first.operand_id, tuple(message.first.by))
        case "latest":
            return o.Latest(message.latest.operand_id, tuple(message.latest.by))
        case "dropnull":
            return o.Dropnull(message.dropnull.operand_id, tuple(message.dropnull.columns))
        case "changelog":
            c = message.changelog
            return o.Changelog(c.operand_id, c.kind_column, c.deletes)
        case other:
            raise unknown(message, other)


def _aggregate(message: pb.Aggregate) -> o.Aggregate:
    return o.Aggregate(
        operand=message.operand_id,
        keys=tuple(message.keys),
        specs=tuple(decode_spec(spec) for spec in message.specs),
        along=message.along if message.HasField("along") else None,
        emit=known(EMITS, message.emit_strategy, message, "emit strategy"),
    )


def _join(message: pb.Join) -> o.Join:
    return o.Join(
        left=message.lhs_operand_id,
        right=message.rhs_dsref_operand_id,
        on=tuple((left, message.on[left]) for left in sorted(message.on)),
        how=known(HOWS, message.how, message, "join kind"),
        within_low_us=decode_duration_us(message.within_low)
        if message.HasField("within_low")
        else None,
        within_high_us=decode_duration_us(message.within_high)
        if message.HasField("within_high")
        else 0,
        fields=tuple(message.rhs_fields),
    )


def _window_op(operator: pb.Operator) -> o.WindowOp:
    message = operator.window
    if message.HasField("summary"):
        raise UnsupportedValue(
            "a summary on a windowed groupby is not supported; aggregate the window instead"
        )
    kind = o.WindowOp(
        message.operand_id, decode_window(message.window_type), tuple(message.by), message.field
    )
    addition = recovered_pb2.OperatorAddition.FromString(operator.SerializeToString())
    if not addition.HasField("window"):
        return kind
    emit = known(EMITS, addition.window.emit, addition.window, "emit strategy")
    return replace(
        kind,
        specs=tuple(decode_spec(spec) for spec in addition.window.specs),
        emit=emit,
        specs_known=True,
    )


def _assign_expr(message: pb.AssignExpr) -> o.AssignExpr:
    untyped = sorted(set(message.exprs) - set(message.output_types))
    if untyped:
        raise UnsupportedValue(
            f"assigned columns {untyped} have no type; end their expressions with `.astype(…)`"
        )
    return o.AssignExpr(
        message.operand_id,
        tuple(
            (column, decode_expr(message.exprs[column]), decode_dtype(message.output_types[column]))
            for column in sorted(message.exprs)
        ),
    )
