"""Print every message, field and enum of the installed client's protocol as JSON.

The tests run this script with the interpreter of the client's environment.
"""

import importlib
import json
import pkgutil
import sys

from google.protobuf import descriptor_pb2


def enum_values(enum) -> dict:
    return {value.name: value.number for value in enum.value}


def walk(prefix: str, message, out: dict) -> None:
    name = f"{prefix}.{message.name}"
    for nested in message.nested_type:
        walk(name, nested, out)
    for enum in message.enum_type:
        out[f"{name}.{enum.name}"] = enum_values(enum)
    oneofs = [oneof.name for oneof in message.oneof_decl]
    out[name] = {
        field.name: [
            field.number,
            field.type,
            field.type_name,
            field.label,
            field.proto3_optional,
            oneofs[field.oneof_index] if field.HasField("oneof_index") else None,
        ]
        for field in message.field
    }


def describe(package: str) -> dict:
    """Map the full name of each message to its fields, and of each enum to its values, for all
    `*_pb2` modules of `package`.
    """
    out: dict = {}
    for info in pkgutil.iter_modules(importlib.import_module(package).__path__):
        if not info.name.endswith("_pb2"):
            continue
        file = descriptor_pb2.FileDescriptorProto()
        importlib.import_module(f"{package}.{info.name}").DESCRIPTOR.CopyToProto(file)
        for message in file.message_type:
            walk(file.package, message, out)
        for enum in file.enum_type:
            out[f"{file.package}.{enum.name}"] = enum_values(enum)
    return out


if __name__ == "__main__":
    print(json.dumps(describe(sys.argv[1])))
