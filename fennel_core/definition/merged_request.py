"""Assemble the SyncRequest of a whole version.

Servers load a version from one SyncRequest, whether it was committed at once or incrementally. The
entities of a version are determined on decoded values (`graph/entity_graph.py` drops deleted ones
and merges two graphs). Here each value of the result is traced back to the message it was decoded
from, and those messages, unchanged, form the new request. Nothing is encoded twice, and an
assertion checks that decoding the result returns the graph's values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from google.protobuf.message import Message

from fennel_core.graph.entity_graph import Graph, build_graph
from fennel_core.wire.decode import decode_sync_request
from fennel_core.wire.entities import IndexSide, SyncRequest
from fennel_core.wire.gen import services_pb2

FIELDS = (
    ("datasets", "datasets"),
    ("pipelines", "pipelines"),
    ("operators", "operators"),
    ("feature_sets", "featuresets"),
    ("features", "features"),
    ("extractors", "extractors"),
    ("sources", "sources"),
    ("extdbs", "databases"),
    ("sinks", "sinks"),
    ("expectations", "expectations"),
)
"""Repeated fields of the message and the tuples they are decoded to, in the same order.

Indices are two fields and one tuple, so they are not in this list.
"""


def assemble_request(
    graph: Graph, message: str, parts: Sequence[tuple[bytes, SyncRequest]]
) -> bytes:
    """Return the request with exactly the entities of `graph`.

    Each entity is a value of one of `parts`, which are pairs of bytes and their decoded request.
    """
    messages: dict[int, Message] = {}
    for body, decoded in parts:
        received = services_pb2.SyncRequest.FromString(body)
        for field, tuple_ in FIELDS:
            messages |= _paired(getattr(decoded, tuple_), getattr(received, field))
        online = [i for i in decoded.indices if i.side is IndexSide.ONLINE]
        offline = [i for i in decoded.indices if i.side is IndexSide.OFFLINE]
        messages |= _paired(online, received.online_indices) | _paired(
            offline, received.offline_indices
        )
    out = services_pb2.SyncRequest(message=message)
    for field, tuple_ in FIELDS:
        getattr(out, field).extend(messages[id(value)] for value in getattr(graph, tuple_))
    for index in graph.indices:
        side = out.online_indices if index.side is IndexSide.ONLINE else out.offline_indices
        side.append(messages[id(index)])  # type: ignore[arg-type]  # by side
    merged = bytes(out.SerializeToString(deterministic=True))
    assert _same(build_graph(decode_sync_request(merged)), graph), (
        "the assembled request decodes to the graph"
    )
    return merged


def _paired(values: Sequence[object], messages: Sequence[Message]) -> dict[int, Message]:
    assert len(values) == len(messages), "decoding keeps every entity"
    return {id(value): message for value, message in zip(values, messages, strict=True)}


def _same(one: Graph, other: Graph) -> bool:
    def parts(graph: Graph) -> Iterable[object]:
        return (*(getattr(graph, tuple_) for _, tuple_ in FIELDS), frozenset(graph.indices))

    return all(a == b for a, b in zip(parts(one), parts(other), strict=True))
