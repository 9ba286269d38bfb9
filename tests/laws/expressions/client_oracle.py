"""The oracle: the client's own evaluator, run over a table of expressions and over random ones.

This script runs in the *client's* environment (`.venv-executor`), imports nothing of this project
and prints one JSON document: frames, and cases with the serialised expression, the type that the
client infers (or its compile error), and per row the value or the error. Values are tagged
(`plain`), so that NaN, 64-bit ints, instants and dicts survive JSON. If a whole batch fails, the
rows are evaluated one by one to find those at fault.

Usage: python client_oracle.py <seed> <number of random expressions>
"""

# ruff: noqa: BLE001  the Rust library panics with BaseException, and an oracle reports whatever
# happens

import base64
import itertools
import json
import re
import sys
from datetime import date, datetime, timedelta
from decimal import Decimal as PyDecimal
from pathlib import Path

import client_frames
import fennel.gen.expression_pb2 as expression_pb
import fennel.gen.schema_pb2 as schema_pb
import pyarrow as pa
from client_composer import Composer
from client_frames import FRAMES, SCHEMAS, UTC
from fennel.expr import col, lit, now, var, when
from fennel.expr.expr import datetime as moment
from fennel.expr.expr import from_epoch, repeat
from fennel.expr.serializer import ExprSerializer
from fennel.internal_lib.schema import get_datatype
from fennel.internal_lib.schema.schema import convert_dtype_to_arrow_type_with_nullable
from fennel_data_lib import assign, type_of

TABLE = Path(__file__).with_name("table.txt")
ALTERNATIVES = re.compile(r"\{(.*?)\}")
LANGUAGE = {
    "col": col,
    "lit": lit,
    "now": now,
    "var": var,
    "when": when,
    "moment": moment,
    "from_epoch": from_epoch,
    "repeat": repeat,
}
NAMES = {**vars(client_frames), **LANGUAGE}


def table():
    """(frame, source) of every expression of the table."""
    frame = ""
    for line in TABLE.read_text().splitlines():
        if line.startswith("["):
            frame = line.strip("[]")
        elif line and not line.startswith("#"):
            yield from ((frame, source) for source in expanded(line))


def expanded(line):
    """The line once for every choice of its alternatives."""
    pieces = ALTERNATIVES.split(line)
    choices = [piece.split(" ¦ ") if i % 2 else [piece] for i, piece in enumerate(pieces)]
    return ("".join(choice) for choice in itertools.product(*choices))


def columns_of(message):
    """The columns that an expression names."""
    found = set()
    for field, value in message.ListFields():
        if field.name == "ref":
            found.add(value.name)
        elif field.message_type is not None:
            parts = (
                [value]
                if field.label != field.LABEL_REPEATED
                else list(value.values() if hasattr(value, "values") else value)
            )
            for part in parts:
                if hasattr(part, "ListFields"):
                    found |= columns_of(part)
    return found


def plain(value, dtype):
    """Return a value as JSON, tagged where JSON has no type for it.

    Floats become text, instants microseconds, dicts pairs.
    """
    kind = dtype.WhichOneof("dtype")
    if value is None:
        return None
    if kind == "optional_type":
        return plain(value, dtype.optional_type.of)
    if kind == "array_type":
        return [plain(v, dtype.array_type.of) for v in value]
    if kind == "struct_type":
        return {"struct": {f.name: plain(value[f.name], f.dtype) for f in dtype.struct_type.fields}}
    if kind == "map_type":
        return {"map": [[k, plain(v, dtype.map_type.value)] for k, v in value]}
    if kind == "between_type":
        return plain(value, dtype.between_type.dtype)
    if kind == "one_of_type":
        return plain(value, dtype.one_of_type.of)
    if isinstance(value, float):
        return {"float": repr(value)}
    if isinstance(value, datetime):
        return {"time_us": (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)}
    if isinstance(value, date):
        return {"date": value.isoformat()}
    if isinstance(value, PyDecimal):
        return {"decimal": str(value)}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    return value


def batch(frame, columns, rows):
    arrays, fields = [], []
    for name in columns:
        dtype = get_datatype(SCHEMAS[frame][name])
        arrow = convert_dtype_to_arrow_type_with_nullable(dtype)
        arrays.append(pa.array([FRAMES[frame][name][row] for row in rows], type=arrow))
        fields.append(pa.field(name, arrow, nullable=dtype.HasField("optional_type")))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def values(expr, frame, columns, rows, dtype):
    schema = {name: get_datatype(SCHEMAS[frame][name]).SerializeToString() for name in columns}
    context = (
        expression_pb.EvalContext(now_col_name="now")
        if "now" in columns
        else expression_pb.EvalContext()
    )
    result = assign(
        expr,
        batch(frame, columns, rows),
        schema,
        dtype.SerializeToString(),
        context.SerializeToString(),
    )
    if pa.types.is_timestamp(result.type):
        result = result.cast(pa.timestamp("us", "UTC"))
    return [{"value": plain(v, dtype)} for v in result.to_pylist()]


def first_line(error):
    return str(error).split("Stack backtrace")[0].strip()[:1500]


def evaluated(frame, source):
    """One case: what the client makes of `source` over `frame`."""
    case = {"frame": frame, "source": source}
    try:
        message = ExprSerializer().serialize(eval(source, dict(NAMES)).root)  # noqa: S307  # the text is this test's own
    except BaseException as error:  # a panic of the Rust library is a BaseException
        return {**case, "unserialisable": first_line(error)}
    names = columns_of(message)
    columns = [c for c in SCHEMAS[frame] if c in names or c == "now"] or list(SCHEMAS[frame])[:1]
    expr = message.SerializeToString()
    case["expr"] = base64.b64encode(expr).decode()
    try:
        inferred = type_of(
            expr, {c: get_datatype(t).SerializeToString() for c, t in SCHEMAS[frame].items()}
        )
    except BaseException as error:
        return {**case, "type_error": first_line(error)}
    dtype = schema_pb.DataType()
    dtype.ParseFromString(inferred)
    case["type"] = base64.b64encode(inferred).decode()
    rows = range(len(FRAMES[frame][columns[0]]))
    try:
        return {**case, "rows": values(expr, frame, columns, rows, dtype)}
    except BaseException:
        case["rows"] = []
    for row in rows:
        try:
            case["rows"] += values(expr, frame, columns, [row], dtype)
        except BaseException as error:
            case["rows"].append({"error": first_line(error)})
    return case


def frame_document(name):
    schema = {c: get_datatype(t) for c, t in SCHEMAS[name].items()}
    return {
        "schema": {c: base64.b64encode(t.SerializeToString()).decode() for c, t in schema.items()},
        "columns": {c: [plain(v, schema[c]) for v in FRAMES[name][c]] for c in schema},
    }


def main():
    seed, count = int(sys.argv[1]), int(sys.argv[2])
    composer = Composer(seed)
    sources = list(dict.fromkeys([*table(), *(composer.expression() for _ in range(count))]))
    json.dump(
        {
            "frames": {name: frame_document(name) for name in FRAMES},
            "cases": [evaluated(*source) for source in sources],
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main()
