"""Each pass reports its own rule only: recorded commits are broken in one way each.

`REFRESH_GOLDEN=1 pytest tests/unit/graph/test_graph_passes.py` rewrites the texts; read the diff
before committing it.
"""

import json
import os
from dataclasses import replace

import pytest

from fennel_core.graph.entity_graph import Graph, merge_incremental
from fennel_core.graph.passes import INCREMENTAL_RULES, RULES, validate
from fennel_core.graph.passes.capabilities import refuse_unserved
from fennel_core.graph.passes.connectors import one_definition_per_connector
from fennel_core.graph.passes.dependencies import declare_dependencies
from fennel_core.graph.passes.expectations import check_expectations
from fennel_core.graph.passes.references import resolve_references
from fennel_core.graph.passes.schemas import check_operator_schemas
from fennel_core.graph.passes.streams import reads
from fennel_core.graph.passes.supersets import keep_features
from fennel_core.graph.passes.versions import require_new_version_on_change
from fennel_core.graph.sink_places import is_written
from fennel_core.wire.connectors import (
    DEFAULT_EVERY_US,
    AvroFormat,
    BasicAuth,
    Cdc,
    JsonFormat,
    Kafka,
    KafkaTopic,
    Login,
    PlainSecret,
    ProtobufFormat,
    SchemaRegistry,
    SecretRef,
    TokenAuth,
    WebhookEndpoint,
)
from fennel_core.wire.entities import Expectation, ExpectedOf
from fennel_core.wire.operators import (
    Dedup,
)
from tests.support.broken_commits import CASES
from tests.support.commit_graphs import (
    TESTS,
    edit_operator,
    edit_source,
    graph,
    without_dataset,
)
from tests.support.graph_edits import call, expect, other_retention


def served(g: Graph) -> Graph:
    """Return the graph without the connectors that the platform refuses."""
    return replace(
        g,
        sources=tuple(s for s in g.sources if isinstance(s.table, WebhookEndpoint)),
        sinks=(),
    )


@pytest.mark.parametrize("subject", ["operators", "expressions", "connectors", "featuresets"])
def test_recorded_commits_are_valid_on_an_empty_branch_and_when_repeated(subject):
    g = served(graph(subject))
    assert validate(g, None) == ()
    assert validate(g, g) == ()
    assert validate(merge_incremental(g, g), g, incremental=True) == ()


def test_every_broken_commit_yields_its_golden_problem_text():
    lines = []
    for title, rule, subject, change in CASES:
        problems = list(rule(change(graph(subject)), None))
        assert problems, title
        lines.append(f"{rule.__name__}: {title}")
        lines += [f"    [{p.code}] {p.entity}: {p.text}" for p in problems]
    text = "\n".join(lines) + "\n"
    golden = TESTS / "golden" / "graph" / "problems.txt"
    if os.environ.get("REFRESH_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


def test_every_rule_has_a_case():
    with_before = {require_new_version_on_change, keep_features}
    assert {rule for _, rule, _, _ in CASES} | with_before == {*RULES, *INCREMENTAL_RULES}


def test_a_missing_input_is_reported_once_with_the_clients_text():
    g = without_dataset(graph("operators"), "Users")
    g = replace(
        g,
        pipelines=tuple(p for p in g.pipelines if p.dataset == "Enriched"),
        featuresets=(),
        features=(),
        extractors=(),
    )
    text = (
        "Dataset Users not found in the graph while creating inedges for pipeline "
        "Enriched@v1.joined"
    )
    assert [p.text for p in validate(g, None)] == [text]


def test_a_missing_lookup_dataset_is_reported_once_with_the_clients_text():
    g = without_dataset(graph("featuresets"), "Items")
    assert [p.text for p in validate(g, None)] == [
        (
            "Dataset Items not found in the graph while creating inedges for pipeline "
            "BasketFeatures._fennel_lookup_Items.price"
        )
    ]


def test_all_problems_are_collected():
    g = without_dataset(graph("operators"), "Users")
    g = edit_source(g, "Orders", lambda s: replace(s, cdc=Cdc.UPSERT))
    assert {p.code for p in validate(g, None)} >= {"dataset-missing", "cdc-keys"}


def test_every_source_that_is_not_read_and_every_sink_that_is_not_written_is_refused():
    g = graph("connectors")
    refused = [p.code for p in refuse_unserved(g, None)]
    others = [s for s in g.sources if not isinstance(s.table, WebhookEndpoint)]
    kinds = {type(s.table) for s in others}
    assert len(kinds) == 10, "the recorded commit has every kind of source"
    assert refused.count("source-not-served") == len([s for s in others if not reads(s.table)])
    others = [s for s in g.sinks if not is_written(s.table)]
    assert refused.count("sink-not-served") == len(others) == len(g.sinks) - 3 == 1


def test_a_sink_needs_a_dataset_with_changes_and_options_with_an_effect():
    g = graph("connectors")
    (sink,) = [s for s in g.sinks if isinstance(s.table, KafkaTopic)]
    alone = replace(served(g), sinks=(sink,))
    assert [p.code for p in validate(alone, None)] == ["connector-not-served"] * 1
    stacked = replace(alone, sinks=(replace(sink, stacked=True),))
    assert "sink-option-not-served" in [p.code for p in validate(stacked, None)]
    twice = replace(alone, sinks=(sink, sink))
    assert "sink-twice" in [p.code for p in validate(twice, None)]


def test_a_webhook_beside_another_source_does_not_hide_it():
    g = graph("connectors")
    pubsub = next(s for s in g.sources if s.table.__class__.__name__ == "PubSubTopic")
    stacked = replace(served(g), sources=(*served(g).sources, pubsub))
    assert [(p.code, p.entity) for p in validate(stacked, None)] == [
        ("source-not-served", pubsub.dataset)
    ]


KAFKA = Kafka(
    *("kafka", "broker:9092", "SASL_SSL", "PLAIN", None, ""),
    Login(PlainSecret("ann"), PlainSecret("secret")),
)
STREAM = KafkaTopic(KAFKA, "orders", JsonFormat())
REGISTRY = SchemaRegistry("https://registry:8081/apis", None)


@pytest.mark.parametrize(
    ("changes", "codes"),
    [
        ({}, []),
        ({"since_us": 1, "until_us": 2, "sampling": None}, []),
        ({"cdc": Cdc.DEBEZIUM}, []),
        ({"table": KafkaTopic(KAFKA, "orders", AvroFormat(REGISTRY))}, []),
        ({"table": KafkaTopic(KAFKA, "orders", ProtobufFormat(REGISTRY))}, []),
        ({"cdc": Cdc.NATIVE}, ["cdc-not-served"]),
        (
            {"cdc": Cdc.DEBEZIUM, "table": KafkaTopic(KAFKA, "orders", ProtobufFormat(REGISTRY))},
            ["cdc-not-served"],
        ),
        ({"bounded": True, "idleness_us": 1}, []),
        ({"cursor": "at"}, ["source-option-not-served"]),
        ({"every_us": 1}, ["source-option-not-served"]),
    ],
)
def test_a_stream_is_read_with_the_options_that_have_an_effect(changes, codes):
    g = edit_source(
        graph("operators"), "Orders", lambda s: replace(s, **{"table": STREAM} | changes)
    )
    assert [p.code for p in refuse_unserved(g, None)] == codes


@pytest.mark.parametrize(
    ("changes", "texts"),
    [
        ({}, []),
        ({"security_protocol": "PLAINTEXT", "login": Login(None, None)}, []),
        ({"bootstrap_servers": "broker"}, ["`broker` without a port"]),
        ({"bootstrap_servers": "a:9092, b:x"}, ["`b:x` without a port"]),
        ({"bootstrap_servers": "[::1]:9092,b:9093"}, []),
        ({"sasl_mechanism": "GSSAPI"}, ["SASL mechanism `GSSAPI`"]),
        ({"security_protocol": "SSL"}, ["security protocol `SSL`"]),
        ({"sasl_jaas_config": PlainSecret("x")}, ["JAAS"]),
        ({"login": Login(PlainSecret("ann"), None)}, ["needs user name and password"]),
        ({"login": Login(PlainSecret("a"), SecretRef("arn", None, ()))}, ["another store"]),
    ],
)
def test_a_connector_of_a_stream_is_refused_by_what_is_not_served(changes, texts):
    stream = replace(STREAM, db=replace(KAFKA, **changes))
    g = edit_source(graph("operators"), "Orders", lambda s: replace(s, table=stream))
    found = list(refuse_unserved(g, None))
    assert [p.code for p in found] == ["connector-not-served"] * len(texts)
    assert all(text in p.text for text, p in zip(texts, found, strict=True))


def test_a_dataset_reads_a_stream_once():
    g = edit_source(graph("operators"), "Orders", lambda s: replace(s, table=STREAM))
    (orders,) = g.sources_of("Orders")
    g = replace(g, sources=(*g.sources, replace(orders, disorder_us=1)))
    assert [p.code for p in one_definition_per_connector(g, None)] == ["source-twice"]


def test_defaults_of_the_client_are_accepted():
    g = edit_source(
        graph("operators"),
        "Orders",
        lambda s: replace(s, every_us=DEFAULT_EVERY_US, timestamp_field="at"),
    )
    assert validate(g, None) == ()


def test_each_branch_of_a_pipeline_reports_its_own_mismatch():
    g = edit_operator(
        graph("operators"),
        "Both",
        Dedup,
        lambda k: replace(k, by=(f"no_{type(k.window).__name__}",)),
    )
    texts = [p.text for p in check_operator_schemas(g, None)]
    assert len(texts) == 2
    assert "no_Session" in texts[0]
    assert "no_Tumbling" in texts[1]


def test_a_removed_dataset_that_is_still_read_is_reported_once_with_the_clients_text():
    before = graph("operators")
    g = without_dataset(before, "Users")
    texts = [p.text for p in resolve_references(g, before) if p.entity == "Users"]
    assert texts == [
        "Dataset `Users` is an input to the pipelines: `['Enriched.joined', 'UserChanges.changes']`"
        " but is not synced. Please add it to the sync call."
    ]
    assert not [p for p in resolve_references(g, before) if "not found in the graph" in p.text]


def test_a_connector_may_change_while_other_datasets_keep_the_earlier_definition():
    before = graph("operators")
    assert list(one_definition_per_connector(other_retention(before), before)) == []


def test_code_that_looks_up_a_dataset_outside_the_commit_is_accepted():
    g = call("def f(cls, ts):\n    return Elsewhere.lookup(ts)")(graph("featuresets"))
    assert list(declare_dependencies(g, None)) == []


PATTERN = Expectation("expect_column_values_to_match_regex", '{"column": "text", "regex": "(?=a)"}')
LENGTHS = Expectation("expect_column_value_lengths_to_equal", '{"column": "text", "value": -1}')


def test_an_unchanged_expectation_of_an_earlier_release_is_not_refused():
    g = graph("connectors")
    with_both, with_pattern = expect(PATTERN, LENGTHS)(g), expect(PATTERN)(g)
    assert len(list(check_expectations(with_both, None))) == 2
    assert list(check_expectations(with_both, with_both)) == []
    (problem,) = check_expectations(with_both, with_pattern)
    assert (problem.code, LENGTHS.type in problem.text) == ("expectation-argument", True)


def test_arguments_of_expectations_that_are_not_evaluated_are_not_checked():
    g = graph("featuresets")
    feature = g.features[0].ref
    (suite,) = graph("connectors").expectations
    wrong = replace(PATTERN, kwargs=json.dumps({"column": feature.name, "regex": "(?=a)"}))
    featureset = replace(
        suite,
        entity=feature.featureset,
        entity_kind=ExpectedOf.FEATURESET,
        expectations=(wrong,),
    )
    assert list(check_expectations(replace(g, expectations=(featureset,)), None)) == []


@pytest.mark.parametrize(
    ("url", "auth", "texts"),
    [
        ("https://registry:8081", None, []),
        ("http://[::1]:8081/apis/ccompat/v7/", BasicAuth(KAFKA.login), []),
        ("https://registry", TokenAuth(PlainSecret("t")), []),
        ("registry:8081", None, ["`https://host:port`"]),
        ("file:///etc/passwd", None, ["`https://host:port`"]),
        ("https://registry:port", None, ["`https://host:port`"]),
        ("https://ann:secret@registry", None, ["more than an address"]),
        ("https://registry/?a=1", None, ["more than an address"]),
        ("https://registry", TokenAuth(None), ["without all of its credentials"]),
        ("https://registry", BasicAuth(Login(PlainSecret("a"), None)), ["without all"]),
        ("https://registry", TokenAuth(SecretRef("arn", None, ())), ["another store"]),
    ],
)
def test_a_schema_registry_that_cannot_be_used_is_refused(url, auth, texts):
    table = replace(STREAM, format=AvroFormat(SchemaRegistry(url, auth)))
    g = edit_source(graph("operators"), "Orders", lambda s: replace(s, table=table))
    problems = list(refuse_unserved(g, None))
    assert [p.code for p in problems] == ["connector-not-served"] * len(texts)
    assert all(text in p.text for p, text in zip(problems, texts, strict=True))


def test_one_topic_has_one_format():
    g = edit_source(graph("operators"), "Orders", lambda s: replace(s, table=STREAM))
    avro = replace(STREAM, format=AvroFormat(REGISTRY))
    orders = next(s for s in g.sources if s.table == STREAM)
    for other, codes in ((STREAM, []), (avro, ["connector-redefined"])):
        both = replace(g, sources=(*g.sources, replace(orders, table=other)))
        assert [p.code for p in refuse_unserved(both, None)] == codes


def test_change_events_need_a_key():
    g = graph("operators")
    keyless = next(d for d in g.datasets if not d.schema.keyed and g.sources_of(d.name))
    edited = edit_source(g, keyless.name, lambda s: replace(s, table=STREAM, cdc=Cdc.DEBEZIUM))
    assert "cdc-keys" in {p.code for p in validate(edited, None)}
