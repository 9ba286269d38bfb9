"""Each line of a plan says why: the reason is the user's own change."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fennel_core.blueprints.commit_plan import BankFacts, plan_commit
from fennel_core.blueprints.compile import compile_datasets
from fennel_core.blueprints.compiler_input import DatasetInput
from fennel_core.blueprints.plan_entries import PlanAction, PlanEntry
from fennel_core.blueprints.resolve import resolve_catalog
from fennel_core.vocab.ids import DatasetName, WorkspaceId
from fennel_core.wire import operators as wire
from fennel_core.wire.connectors import JsonFormat, Kafka, KafkaTopic, Login
from tests.support.compiler_inputs import code, derived, node, schema, sourced, webhook

SHOP = WorkspaceId("shop")
EVENTS = schema("", "user amount")
MORE = schema("", "user amount city")


def events(**changes: object) -> DatasetInput:
    return sourced("Events", EVENTS, **changes)


def large(text: str = "def f(df): return df", **changes: object) -> DatasetInput:
    """Return a dataset of one filter in user code over `Events`."""
    read = node("events", wire.DatasetRef(DatasetName("Events")), EVENTS)
    step = node("large", wire.Filter("events", code(text)), EVENTS)
    return derived("Large", EVENTS, [read, step], **changes)


def changes(
    before: Sequence[DatasetInput], after: Sequence[DatasetInput]
) -> dict[tuple[str, str], str]:
    """Return the reason of each listed entry of the plan, by action and title."""
    old, new = compile_datasets(before, 4), compile_datasets(after, 4)
    first = plan_commit(BankFacts(SHOP, 1), old)
    names = first.ids()
    wanted = {b.key for b in new.blueprints}
    facts = BankFacts(
        SHOP,
        2,
        alive={key: id_ for key, id_ in names.items() if key in wanted},
        mine=frozenset(names.values()),
        leaving={names[b.key]: b for b in old.blueprints if b.key not in wanted},
        before=resolve_catalog(old, SHOP, names),
    )
    return {
        (str(entry.action), f"{entry.kind} {entry.title}"): entry.reason
        for entry in plan_commit(facts, new).entries
        if entry.action is not PlanAction.KEEP
    }


def test_a_first_commit_creates_everything_because_its_datasets_are_new() -> None:
    assert changes([], [events(), large()]) == {
        ("create", "dead the workspace"): "the branch has datasets now",
        ("create", "topic Events"): "dataset Events is new",
        ("create", "raw hook/Events"): "its endpoint has a source now",
        ("create", "topic Large"): "dataset Large is new",
        ("create", "replaylog Large.p: filter"): "dataset Large is new",
        ("create", "job Large.p: filter"): "dataset Large is new",
    }


LARGE = [
    (action, what)
    for what in ("topic Large", "replaylog Large.p: filter", "job Large.p: filter")
    for action in ("create", "destroy")
]


def test_a_change_of_logic_is_the_reason_for_the_new_job_and_for_the_old_one() -> None:
    found = changes([events(), large()], [events(), large("def f(df): return df[1:]")])
    assert found == dict.fromkeys(LARGE, "the logic of Large.p changed")


def test_a_new_version_is_the_reason_for_what_it_renames() -> None:
    found = changes([events(), large()], [events(), large(version=2)])
    assert found == dict.fromkeys(LARGE, "version 1 of Large became 2")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (events(version=2), "version 1 of Events became 2"),
        (events(source=webhook("other")), "the sources of Events changed"),
    ],
)
def test_a_changed_input_is_the_reason_for_what_is_downstream(
    changed: DatasetInput, reason: str
) -> None:
    found = changes([events(), large()], [changed, large()])
    assert found["create", "topic Events"] == found["destroy", "topic Events"] == reason
    assert {found[each] for each in LARGE} == {"its input Events is new"}


def test_a_changed_schema_is_the_reason_for_a_new_source_topic() -> None:
    found = changes([events()], [sourced("Events", MORE)])
    assert found["create", "topic Events"] == "the schema of Events changed"


def test_a_removed_dataset_and_endpoint_are_named() -> None:
    found = changes([events(), large()], [])
    assert found["destroy", "topic Large"] == "dataset Large was removed"
    assert found["destroy", "raw hook/Events"] == "its endpoint has no source any more"
    assert found["destroy", "dead the workspace"] == "the branch has no datasets any more"


def test_the_positions_of_a_stream_are_those_of_its_source_and_of_no_dataset() -> None:
    kafka = Kafka("shop", "broker:9092", "PLAINTEXT", "PLAIN", None, "", Login(None, None))
    stream = webhook("", table=KafkaTopic(kafka, "orders", JsonFormat()))
    orders = sourced("Orders", EVENTS, source=stream)
    positions = "positions shop/orders"
    assert changes([], [orders])["create", positions] == "source shop/orders is read now"
    assert changes([orders], [])["destroy", positions] == "source shop/orders is not read any more"


def test_a_new_index_needs_a_table() -> None:
    keyed = schema("user", "city")
    found = changes([sourced("Users", keyed)], [sourced("Users", keyed, online=True)])
    assert found == {
        ("create", "job Users: table"): "Users needs it now",
        ("create", "replaylog Users: table"): "Users needs it now",
    }


def test_entries_name_the_dataset_or_endpoint_they_belong_to() -> None:
    plan = plan_commit(BankFacts(SHOP, 1), compile_datasets([events(), large()], 4))

    def entity(entry: PlanEntry) -> tuple[str, str]:
        return entry.title, entry.entity

    assert {entity(entry) for entry in plan.entries} == {
        ("the workspace", ""),
        ("Events", "Events"),
        ("hook/Events", "hook/Events"),
        ("Large", "Large"),
        ("Large.p: filter", "Large"),
    }
