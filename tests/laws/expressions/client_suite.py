"""Record the inputs and results of the evaluator in the client's shipped expression tests.

Runs in the client's environment. Every test function of `fennel.expr.test_expr` runs unchanged,
with the evaluator wrapped by a recorder, so that the inputs are exactly those made from the
client's own data frames. Prints cases in the form of `client_oracle.py`, each with its own frame.
"""

import base64
import inspect
import json
import sys

import fennel.expr.expr as expr_module
import fennel.expr.test_expr as suite
import fennel.gen.schema_pb2 as schema_pb
import pyarrow as pa
from client_oracle import plain


def dtype_of(encoded):
    dtype = schema_pb.DataType()
    dtype.ParseFromString(encoded)
    return dtype


def column(array, dtype):
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("us", "UTC"))
    return [plain(v, dtype) for v in array.to_pylist()]


def recorded(cases, frames, assign):
    def record(expr, batch, schema, returned, context):
        name = str(len(frames))
        dtypes = {c: dtype_of(encoded) for c, encoded in schema.items()}
        frames[name] = {
            "schema": {c: base64.b64encode(encoded).decode() for c, encoded in schema.items()},
            "columns": {c: column(batch.column(c), dtypes[c]) for c in schema},
        }
        case = {
            "frame": name,
            "expr": base64.b64encode(expr).decode(),
            "type": base64.b64encode(returned).decode(),
        }
        case["source"] = next(f.function for f in inspect.stack() if f.function.startswith("test_"))
        try:
            result = assign(expr, batch, schema, returned, context)
        except BaseException as error:
            cases.append({**case, "rows": [{"error": str(error)[:500]}] * batch.num_rows})
            raise
        cases.append({**case, "rows": [{"value": v} for v in column(result, dtype_of(returned))]})
        return result

    return record


def main():
    cases, frames = [], {}
    expr_module.assign = recorded(cases, frames, expr_module.assign)
    for name, test in inspect.getmembers(suite, inspect.isfunction):
        if name.startswith("test_") and test.__module__ == suite.__name__:
            test()
    json.dump({"frames": frames, "cases": cases}, sys.stdout)


if __name__ == "__main__":
    main()
