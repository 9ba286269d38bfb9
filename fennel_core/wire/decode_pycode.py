"""Decode user code and entity metadata."""

from __future__ import annotations

from fennel_core.wire.decode_datatypes import known
from fennel_core.wire.entities import Metadata
from fennel_core.wire.gen import metadata_pb2, pycode_pb2
from fennel_core.wire.pycode import PyCode, RefKind

REF_KINDS = {
    pycode_pb2.RefType.Dataset: RefKind.DATASET,
    pycode_pb2.RefType.Featureset: RefKind.FEATURESET,
}


def decode_pycode(message: pycode_pb2.PyCode) -> PyCode:
    """Decode a piece of user code with all code it includes."""
    return PyCode(
        entry_point=message.entry_point,
        source_code=message.source_code,
        core_code=message.core_code,
        generated_code=message.generated_code,
        imports=message.imports,
        includes=tuple(decode_pycode(include) for include in message.includes),
        ref_includes=tuple(
            (name, known(REF_KINDS, message.ref_includes[name], message, "reference kind"))
            for name in sorted(message.ref_includes)
        ),
    )


def decode_metadata(message: metadata_pb2.Metadata) -> Metadata:
    """Decode owner, description, tags and flags."""
    return Metadata(
        owner=message.owner,
        description=message.description,
        tags=tuple(message.tags),
        deprecated=message.deprecated,
        deleted=message.deleted,
    )
