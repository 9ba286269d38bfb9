"""The bytes a version stands for: what its graph holds, in the client's own protocol.

Theory. Servers load a version from one SyncRequest, whether it came in one commit or grew by
incremental ones. Which entities a version has is decided on values (`graph.build_graph` drops
deleted ones, `graph.merge_incremental` joins two); here each value of the result is traced back to
the message it was decoded from, and those messages, untouched, make the new request. So nothing is
encoded twice, and decoding the result gives the graph's values again, which is checked when it is
made.
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
"""Repeated fields of the message and the tuples they are decoded into, one for one. Indices are two
fields and one tuple.
"""


def assemble_request(
    graph: Graph, message: str, parts: Sequence[tuple[bytes, SyncRequest]]
) -> bytes:
    """The request with exactly the entities of `graph`, each of which is a value of one of `parts`
    (bytes, and what they decode to).
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
        "what is stored decodes to what was meant"
    )
    return merged


def _paired(values: Sequence[object], messages: Sequence[Message]) -> dict[int, Message]:
    assert len(values) == len(messages), "decoding keeps every entity"
    return {id(value): message for value, message in zip(values, messages, strict=True)}


def _same(one: Graph, other: Graph) -> bool:
    def parts(graph: Graph) -> Iterable[object]:
        return (*(getattr(graph, tuple_) for _, tuple_ in FIELDS), frozenset(graph.indices))

    return all(a == b for a, b in zip(parts(one), parts(other), strict=True))
