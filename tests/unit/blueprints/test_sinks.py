"""Which sinks are the same, and what a plan says about them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fennel_core.blueprints.commit_plan import (
    BankFacts,
    TopicAmounts,
    measured_topics,
    plan_commit,
)
from fennel_core.blueprints.compile import compile_datasets
from fennel_core.blueprints.logical import AssetKind, Compiled
from fennel_core.blueprints.plan_entries import PlanAction, RowAmount
from fennel_core.blueprints.plan_text import render
from fennel_core.blueprints.resolve import resolve_catalog
from fennel_core.blueprints.revival import RetainedAsset, revivable
from fennel_core.vocab.ids import AssetId, DatasetName, WorkspaceId
from fennel_core.wire import operators as wire
from fennel_core.wire.connectors import Cdc, JsonFormat, Kafka, KafkaTopic, Login, PlainSecret, Sink
from tests.support.compiler_inputs import code, derived, node, schema, sourced

SHOP = WorkspaceId("shop")
EVENTS = schema("", "user amount")
KAFKA = Kafka("out", "broker:9092", "PLAINTEXT", "PLAIN", None, "", Login(None, None))


def sink(topic: str = "large", db: Kafka = KAFKA) -> Sink:
    table = KafkaTopic(db, topic, JsonFormat())
    name = DatasetName("Large")
    return Sink(name, 1, table, Cdc.DEBEZIUM, None, None, False, False, (), None, None)


def compiled(*sinks: Sink, logic: str = "def f(df): return df") -> Compiled:
    read = node("events", wire.DatasetRef(DatasetName("Events")), EVENTS)
    step = node("large", wire.Filter("events", code(logic)), EVENTS)
    large = replace(derived("Large", EVENTS, [read, step]), sinks=sinks)
    return compile_datasets([sourced("Events", EVENTS), large], 4)


def keys(of: Compiled) -> list[str]:
    return [each.key.identity for each in of.sinks]


def test_the_same_content_and_place_is_one_sink_whatever_its_credentials() -> None:
    other = replace(KAFKA, login=Login(PlainSecret("u"), PlainSecret("p")), security_protocol="")
    assert keys(compiled(sink())) == keys(compiled(sink(db=other)))
    assert keys(compiled(sink())) != keys(compiled(sink("elsewhere")))
    assert keys(compiled(sink())) != keys(compiled(sink(db=replace(KAFKA, name="second"))))
    assert keys(compiled(sink())) != keys(compiled(sink(), logic="def f(df): return df[:1]"))


def test_a_sink_changes_no_other_asset() -> None:
    without = {b.key for b in compiled().blueprints}
    (own,) = {b.key for b in compiled(sink()).blueprints} - without
    assert own.kind is AssetKind.SINK


def test_the_plan_says_with_how_many_rows_a_sink_starts() -> None:
    before, after = compiled(), compiled(sink())
    facts = BankFacts(SHOP, 1)
    names = plan_commit(facts, before).ids()
    catalog = resolve_catalog(before, SHOP, names)
    (topic,) = [AssetId(d.topic) for d in catalog.datasets if d.name == "Large" and d.topic]
    alive = BankFacts(SHOP, 2, alive=names, mine=frozenset(names.values()), before=catalog)
    assert topic in measured_topics(alive, after)
    measured = replace(alive, amounts=TopicAmounts({topic: 1_234}))
    plan = plan_commit(measured, after)
    (entry,) = plan.create
    (line,) = [x for x in render(plan.record) if x.startswith("+")]
    assert line == (
        "+ create sink of Large into out/large (dataset Large has this sink now; rows from history "
        "that it starts with: those of at most 1,234 messages)"
    )
    bound = resolve_catalog(after, SHOP, plan.ids()).sinks
    assert [(each.positions, each.topic, each.dataset) for each in bound] == [
        (entry.id, topic, "Large")
    ]


@pytest.mark.parametrize("revived", [False, True])
def test_the_plan_says_which_rows_a_sink_cannot_deliver(revived: bool) -> None:
    after = compiled(sink())
    (key,) = (each.key for each in after.sinks)
    names = plan_commit(BankFacts(SHOP, 1), after).ids()
    alive = {k: v for k, v in names.items() if k != key}
    topic = names[after.sinks[0].topic]
    retained = {key: RetainedAsset(names[key], 5, None)} if revived else {}
    lost = TopicAmounts(removed_rows={topic: 3}, expired_rows={topic: 4})
    facts = BankFacts(SHOP, 2, alive, frozenset(alive.values()), retained=retained, amounts=lost)
    assert topic in measured_topics(facts, after)
    found = {
        (each.code, each.text)
        for each in plan_commit(facts, after).notices
        if each.text.startswith("a sink of dataset `Large` delivers what is left")
    }
    assert found == {
        (
            code,
            f"a sink of dataset `Large` delivers what is left: {rows} rows were removed from "
            "its history",
        )
        for code, rows in (("erased-rows-removed", 3), ("expired-rows-removed", 4))
    }
    kept = replace(facts, alive=names, mine=frozenset(names.values()), retained={})
    texts = [each.text for each in plan_commit(kept, after).notices]
    assert not any(text.startswith("a sink of dataset") for text in texts), "it has read them"


def test_a_sink_of_content_that_is_recomputed_starts_with_an_unknown_number_of_rows() -> None:
    names = plan_commit(BankFacts(SHOP, 1), compiled()).ids()
    facts = BankFacts(SHOP, 2, alive=names, mine=frozenset(names.values()))
    plan = plan_commit(facts, compiled(sink(), logic="def f(df): return df[:1]"))
    (entry,) = [e for e in plan.entries if e.kind is AssetKind.SINK]
    assert (entry.action, entry.rows_to_recompute) == (PlanAction.CREATE, RowAmount(None))


def test_a_retained_sink_is_revived() -> None:
    after = compiled(sink())
    names = plan_commit(BankFacts(SHOP, 1), after).ids()
    key = after.sinks[0].key
    alive = {k: v for k, v in names.items() if k != key}
    assert revivable(after, alive, {key: RetainedAsset(names[key], 5, None)}) == {key: names[key]}
