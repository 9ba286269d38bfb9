"""Options of sinks into Delta tables, and the fields that can be columns."""

from dataclasses import replace

import pytest

from fennel_core.graph.passes.capabilities import refuse_unserved
from fennel_core.graph.passes.delta_sinks import check_delta_sink
from fennel_core.graph.passes.sinks import check_sinks
from fennel_core.vocab.dtypes import Field, Int, List, Null, Struct
from fennel_core.wire.connectors import S3, Login, NamedReference, S3Table
from tests.support.commit_graphs import graph

NO_LOGIN = Login(None, None)
DELTA_REFUSED = [
    ({"stacked": True}, {}, "`stacked`, which has no effect on a Delta table"),
    ({"create": False}, {}, "`create=False`"),
    ({"until_us": 5}, {}, "`until`"),
    ({}, {"presorted": True}, "`presorted`"),
    ({}, {"spread_us": 7}, "`spread`"),
    ({}, {"suffix": "*/a"}, "whose path is no folder"),
    *(({}, {"prefix": each}, "whose path is no folder") for each in ("a#1", "a?b", "a/../b", "ä")),
    ({}, {"prefix": "/"}, "whose path is no folder"),
    ({}, {"prefix": "a//b"}, "whose path is no folder"),
    ({}, {"prefix": "a/%Y"}, "whose path is no folder"),
    ({}, {"bucket": "no/bucket"}, "which is no name of a bucket"),
    ({}, {"db": NamedReference("lake", "s3"), "bucket": "no/bucket"}, "no name of a bucket"),
]


@pytest.mark.parametrize(("sink", "table", "text"), DELTA_REFUSED)
def test_what_has_no_effect_on_a_delta_table_is_refused(sink, table, text):
    g, one = delta_graph()
    assert [p.text for p in refuse_unserved(g, None)] == []
    changed = replace(one, **sink, table=replace(one.table, **table))
    (problem,) = refuse_unserved(replace(g, sinks=(changed,)), None)
    assert text in problem.text


def delta_graph():
    """Return the definitions with every connector, and only the sink into a Delta table."""
    g = graph("connectors")
    (one,) = [s for s in g.sinks if isinstance(s.table, S3Table)]
    one = replace(one, since_us=None, until_us=None)
    return replace(g, sources=(), sinks=(one,)), one


def test_one_table_has_one_sink_whatever_its_connector_is_called():
    g, one = delta_graph()
    again = replace(one.table, prefix=f"{one.table.prefix.strip('/')}/", db=S3("b", None, NO_LOGIN))
    found = list(check_sinks(replace(g, sinks=(one, replace(one, table=again))), None))
    assert [p.code for p in found] == ["sink-twice"]
    below = replace(one.table, prefix=f"{one.table.prefix.strip('/')}/below")
    found = list(check_sinks(replace(g, sinks=(one, replace(one, table=below))), None))
    assert [p.code for p in found] == ["sink-twice"], "VACUUM of one would delete the other"
    beside = replace(one.table, prefix=f"{one.table.prefix.strip('/')}-beside")
    assert not list(check_sinks(replace(g, sinks=(one, replace(one, table=beside))), None))
    other = replace(one, table=replace(one.table, prefix="elsewhere"))
    assert not list(check_sinks(replace(g, sinks=(one, other)), None))


@pytest.mark.parametrize(
    ("field", "text"),
    [
        (Field("_OP", Int()), "the name of another column"),
        (Field("_change_type", Int()), "the name of another column"),
        (Field("x", List(Null())), "a type without values"),
        (Field("x", Struct("S", ())), "a type without values"),
    ],
)
def test_fields_that_are_no_columns_of_delta_are_refused(field, text):
    g, one = delta_graph()
    (dataset,) = [each for each in g.datasets if each.name == one.dataset]
    columns = replace(dataset.schema, values=(*dataset.schema.values, field))
    texts = [
        p.text
        for p in check_delta_sink(replace(dataset, schema=columns), one, one.table, "the sink")
    ]
    assert len(texts) == 1
    assert text in texts[0]
