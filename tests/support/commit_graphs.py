"""Graphs of the recorded commits, and edits that change one entity of them."""

import base64
import json
from dataclasses import replace
from functools import cache
from pathlib import Path

from google.protobuf import duration_pb2

from fennel_core.graph.entity_graph import Graph, build_graph
from fennel_core.vocab.dtypes import Field, Int
from fennel_core.wire.decode import decode_sync_request
from fennel_core.wire.gen import spec_pb2, window_pb2
from fennel_core.wire.window_specs import insert_window_specs, pipelines_without_specs

TESTS = Path(__file__).resolve().parents[1]


WINDOW = window_pb2.Window(session=window_pb2.Session(gap=duration_pb2.Duration(seconds=900)))
ORDERS = spec_pb2.PreSpec(count=spec_pb2.Count(name="orders", window=WINDOW))
RECOVERED = json.dumps(
    [[{"emit": "eager", "specs": [base64.b64encode(ORDERS.SerializeToString()).decode()]}]]
)
"""The output of running the one pipeline whose aggregations are not part of the protocol."""


def body(subject: str) -> bytes:
    return (TESTS / "golden" / "wire" / f"{subject}.binpb").read_bytes()


@cache
def graph(subject: str) -> Graph:
    sent = body(subject)
    pipelines = pipelines_without_specs(decode_sync_request(sent))
    return build_graph(
        decode_sync_request(insert_window_specs(sent, pipelines, RECOVERED) if pipelines else sent)
    )


def without_dataset(g: Graph, name: str) -> Graph:
    return replace(
        g,
        datasets=tuple(d for d in g.datasets if d.name != name),
        sources=tuple(s for s in g.sources if s.dataset != name),
        indices=tuple(i for i in g.indices if i.dataset != name),
    )


def edit(items: tuple, wanted, change) -> tuple:
    edited = tuple(change(item) if wanted(item) else item for item in items)
    assert edited != items, "the edit changed nothing"
    return edited


def edit_dataset(g: Graph, name: str, change) -> Graph:
    return replace(g, datasets=edit(g.datasets, lambda d: d.name == name, change))


def edit_operator(g: Graph, dataset: str, kind: type, change) -> Graph:
    def wanted(o):
        return o.dataset == dataset and isinstance(o.kind, kind)

    return replace(
        g, operators=edit(g.operators, wanted, lambda o: replace(o, kind=change(o.kind)))
    )


def edit_source(g: Graph, dataset: str, change) -> Graph:
    return replace(g, sources=edit(g.sources, lambda s: s.dataset == dataset, change))


def edit_extractor(g: Graph, kind: type, change) -> Graph:
    first = next(x for x in g.extractors if isinstance(x.kind, kind))
    return replace(g, extractors=edit(g.extractors, lambda x: x is first, change))


def values(*fields):
    return lambda d: replace(d, schema=replace(d.schema, values=(*d.schema.values, *fields)))


def number(name: str):
    return Field(name, Int())
