"""Decode sources and sinks into `wire.connectors`."""

from __future__ import annotations

from fennel_core.vocab.dtypes import Bool, Float, Int, Str, Timestamp
from fennel_core.vocab.ids import DatasetName
from fennel_core.wire import connectors as c
from fennel_core.wire.decode_connectors import decode_table
from fennel_core.wire.decode_datatypes import (
    chosen,
    decode_duration_us,
    decode_fields,
    decode_instant_us,
    known,
    unknown,
)
from fennel_core.wire.decode_expressions import decode_expr
from fennel_core.wire.decode_pycode import decode_pycode
from fennel_core.wire.errors import UnsupportedValue
from fennel_core.wire.gen import connector_pb2 as pb
from fennel_core.wire.gen import schema_pb2

CDCS = {
    pb.CDCStrategy.Append: c.Cdc.APPEND,
    pb.CDCStrategy.Upsert: c.Cdc.UPSERT,
    pb.CDCStrategy.Debezium: c.Cdc.DEBEZIUM,
    pb.CDCStrategy.Native: c.Cdc.NATIVE,
    pb.CDCStrategy.Delete: c.Cdc.DELETE,
}


def decode_source(message: pb.Source) -> c.Source:
    """Decode one source of one dataset; raises `UnsupportedValue` for an unknown part."""
    cdc = known(CDCS, message.cdc, message, "cdc")
    return c.Source(
        dataset=DatasetName(message.dataset),
        version=message.ds_version,
        table=_source_table(decode_table(message.table), cdc),
        cdc=cdc,
        disorder_us=decode_duration_us(message.disorder),
        every_us=decode_duration_us(message.every) if message.HasField("every") else None,
        cursor=(message.cursor or None) if message.HasField("cursor") else None,
        timestamp_field=message.timestamp_field or None,
        since_us=decode_instant_us(message.starting_from)
        if message.HasField("starting_from")
        else None,
        until_us=decode_instant_us(message.until) if message.HasField("until") else None,
        bounded=message.bounded,
        idleness_us=decode_duration_us(message.idleness) if message.HasField("idleness") else None,
        preproc=tuple(
            (field, _preproc(message.pre_proc[field])) for field in sorted(message.pre_proc)
        ),
        where=_where(message),
        sampling=_sampling(message),
    )


def _source_table(table: c.Table, cdc: c.Cdc) -> c.Table:
    """Return what is read: the client sends the rows of a table and its changes as one table."""
    if isinstance(table, c.PostgresTable) and table.slot_name is None and cdc is c.Cdc.DEBEZIUM:
        return c.PostgresChanges(table.db, table.table)
    if isinstance(table, c.MySQLTable) and cdc is c.Cdc.DEBEZIUM:
        return c.MySQLChanges(table.db, table.table)
    return table


def _preproc(message: pb.PreProcValue) -> c.PreProc:
    match chosen(message, "variant"):
        case "ref":
            return c.FromPayload(message.ref)
        case "value":
            return _constant(message.value)
        case "eval":
            return _eval(message.eval)
        case other:
            raise unknown(message, other)


def _constant(message: schema_pb2.Value) -> c.Constant:
    match chosen(message, "variant"):
        case "string":
            return c.Constant(message.string, Str())
        case "bool":
            return c.Constant(message.bool, Bool())
        case "int":
            return c.Constant(message.int, Int())
        case "float":
            return c.Constant(message.float, Float())
        case "timestamp":
            return c.Constant(decode_instant_us(message.timestamp), Timestamp())
        case other:
            raise unknown(message, other)


def _eval(message: pb.Eval) -> c.EvalExpr | c.EvalCode:
    schema = decode_fields(message.schema.fields)
    match chosen(message, "eval_type"):
        case "expr":
            return c.EvalExpr(decode_expr(message.expr), schema)
        case "pycode":
            return c.EvalCode(decode_pycode(message.pycode), schema)
        case other:
            raise unknown(message, other)


def _where(message: pb.Source) -> c.EvalExpr | c.EvalCode | None:
    schema = decode_fields(message.filter_schema.fields)
    if message.HasField("filter_expr"):
        return c.EvalExpr(decode_expr(message.filter_expr), schema)
    if message.HasField("filter"):
        return c.EvalCode(decode_pycode(message.filter), schema)
    return None


def _sampling(message: pb.Source) -> c.Sampling | None:
    if not message.HasField("sampling_strategy"):
        return None
    rate = message.sampling_strategy.sampling_rate
    if not 0 <= rate <= 1:
        raise UnsupportedValue(f"sampling rate {rate} is not a share; give a number from 0 to 1")
    return c.Sampling(rate, tuple(message.sampling_strategy.columns_used))


def decode_sink(message: pb.Sink) -> c.Sink:
    """Decode one sink of one dataset."""
    return c.Sink(
        dataset=DatasetName(message.dataset),
        version=message.ds_version,
        table=decode_table(message.table),
        cdc=known(CDCS, message.cdc, message, "cdc") if message.HasField("cdc") else None,
        every_us=decode_duration_us(message.every) if message.HasField("every") else None,
        how=_style(message.how) if message.HasField("how") else None,
        create=message.create,
        stacked=message.stacked,
        renames=tuple((old, message.renames[old]) for old in sorted(message.renames)),
        since_us=decode_instant_us(message.since) if message.HasField("since") else None,
        until_us=decode_instant_us(message.until) if message.HasField("until") else None,
    )


def _style(message: pb.Style) -> c.SinkStyle:
    match chosen(message, "Style"):
        case "incremental":
            return c.Incremental()
        case "recreate":
            return c.Recreate()
        case "snapshot":
            return c.Snapshot(message.snapshot.marker, message.snapshot.num_retain)
        case other:
            raise unknown(message, other)
