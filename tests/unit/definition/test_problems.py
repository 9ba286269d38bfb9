"""All problems of a commit are reported at once, as text and as data."""

from __future__ import annotations

import pytest

from fennel_core.definition.commit_checker import CommitChecker
from fennel_core.definition.errors import CommitUnsupported, WindowSpecsUnavailable
from fennel_core.definition.validation import decode_commit
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import WorkspaceId
from fennel_core.wire.gen import services_pb2
from tests.support.definition_world import changed, recorded, request
from tests.support.ledger_world import World

OPERATORS = recorded("operators")


def two_bad_entities(message: services_pb2.SyncRequest) -> None:
    message.operators[1].ClearField(message.operators[1].WhichOneof("kind"))
    message.sources[0].table.Clear()


def test_every_entity_that_cannot_be_decoded_is_reported() -> None:
    with pytest.raises(CommitUnsupported) as refused:
        decode_commit(changed(OPERATORS, two_bad_entities))
    assert refused.value.text.startswith("the commit has 2 problems and nothing changed:\n1. a ")
    assert [(p.code, p.entity) for p in refused.value.problems] == [
        ("commit-unsupported", "Stateless.flat"),
        ("commit-unsupported", "Orders"),
    ]


def wrong_change_feed(message: services_pb2.SyncRequest) -> None:
    message.sources[0].cdc, message.sources[1].cdc = message.sources[1].cdc, message.sources[0].cdc


async def failing(workspace: WorkspaceId, program: str) -> str:
    raise WindowSpecsUnavailable("the pipeline function failed: NameError")


async def refusal(body: bytes) -> ApiError:
    world = World()
    await world.open()
    checker = CommitChecker(world.context(), failing)
    with pytest.raises(ApiError) as refused:
        await checker.check(request(body))
    return refused.value


async def test_a_pipeline_function_that_fails_does_not_hide_other_problems() -> None:
    error = await refusal(changed(OPERATORS, wrong_change_feed))
    assert (error.status, error.code) == (500, "definitions-invalid")
    assert [(p.code, p.entity) for p in error.problems] == [
        ("window-aggregations", "Sessions.sessions"),
        ("cdc-keys", "Orders"),
        ("cdc-keys", "Users"),
    ]
    assert "1. the pipeline function failed: NameError\n2. Dataset `Orders`" in error.text


async def test_a_failing_pipeline_function_alone_is_the_error_itself() -> None:
    error = await refusal(OPERATORS)
    assert (error.status, error.code) == (400, "window-aggregations")
    assert error.problems == ()


def an_undecodable_pipeline(message: services_pb2.SyncRequest) -> None:
    wrong_change_feed(message)
    operator = next(o for o in message.operators if o.dataset_name == "Stateless")
    operator.ClearField(operator.WhichOneof("kind") or "")


async def test_an_entity_that_cannot_be_decoded_does_not_hide_problems_of_others() -> None:
    error = await refusal(changed(OPERATORS, an_undecodable_pipeline))
    assert (error.status, error.code) == (500, "definitions-invalid")
    assert [(p.code, p.entity) for p in error.problems] == [
        ("commit-unsupported", "Stateless.flat"),
        ("cdc-keys", "Orders"),
        ("cdc-keys", "Users"),
    ]


async def test_what_depends_on_an_undecodable_entity_has_no_problems_of_its_own() -> None:
    error = await refusal(changed(OPERATORS, two_bad_entities))
    assert error.code == CommitUnsupported.CODE
    assert {p.code for p in error.problems} == {CommitUnsupported.CODE}
