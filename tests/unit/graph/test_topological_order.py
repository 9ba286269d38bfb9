"""Inputs are ordered before the datasets computed from them."""

from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from fennel_core.graph.entity_graph import (
    build_graph,
)
from fennel_core.graph.topological_order import (
    DependencyCycle,
    dataset_order,
    inputs_first,
)
from fennel_core.wire.decode import decode_sync_request

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "wire"


def request(subject: str):
    return decode_sync_request((GOLDEN / f"{subject}.binpb").read_bytes())


def test_datasets_are_ordered_after_their_inputs():
    g = build_graph(request("operators"))
    order = dataset_order(g)
    assert sorted(order) == sorted(d.name for d in g.datasets)
    for pipeline in g.pipelines:
        assert all(order.index(i) < order.index(pipeline.dataset) for i in pipeline.inputs)


def order_or_cycle(nodes, inputs_of):
    try:
        return inputs_first(nodes, inputs_of)
    except DependencyCycle as cycle:
        return cycle


@given(st.dictionaries(st.integers(0, 6), st.lists(st.integers(0, 6), max_size=3), max_size=7))
def test_inputs_come_first_or_a_cycle_is_reported(edges):
    def inputs_of(node):
        return edges.get(node, [])

    order = order_or_cycle(edges, inputs_of)
    if isinstance(order, DependencyCycle):
        assert order.path[0] == order.path[-1]
        assert all(a in inputs_of(b) for a, b in pairwise(order.path))
        return
    assert set(edges) <= set(order)
    for position, node in enumerate(order):
        assert set(inputs_of(node)) <= set(order[:position])
