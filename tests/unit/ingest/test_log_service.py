"""`log` over in-memory stores: results, written records, and changing definitions."""

import json
import re
import time
from dataclasses import replace

import pytest

from fennel_core.blueprints.spec import DatasetView
from fennel_core.connections.errors import (
    SystemUnavailable,
    TransactionAborted,
    TransactionOutcomeUnknown,
)
from fennel_core.ingest.catalogs import Catalogs
from fennel_core.ingest.erase import EraseService, erased_keys
from fennel_core.ingest.store import boot_s
from fennel_core.vocab.dead_letters import origin_of
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import BranchName, DatasetName, Micros, TopicName
from fennel_core.vocab.versions import POS
from tests.support.ingest_world import (
    DAY_US,
    KEYED,
    KEYLESS,
    MAIN,
    WORKSPACE,
    ScriptedProducer,
    World,
    binding,
    body,
    catalog,
    source,
)

AT = 1_700_000_000_000
ANN = {"user": ["ann"], "age": [30], "at": [AT]}


@pytest.fixture
async def world():
    made = World()
    yield made
    await made.close()


async def test_rows_go_to_every_branch_that_names_the_endpoint(world: World) -> None:
    world.commit(
        main=catalog(binding()),
        dev=catalog(binding(KEYLESS, "Orders", "orders")),
        same=catalog(binding()),
    )
    await world.server().log(WORKSPACE, MAIN, body(**ANN, amount=[1.5]))
    assert [r["age"] for r in world.rows("w.topic.users.1")] == [30]
    assert [r["amount"] for r in world.rows("w.topic.orders.1")] == [1.5]
    assert len(world.messages("w.raw.e.1")) == 1


@pytest.mark.parametrize("as_text", [False, True])
async def test_rows_may_be_sent_one_by_one(world: World, as_text: bool) -> None:
    world.commit(main=catalog(binding()))
    rows = [{"user": "ann", "age": 30, "at": AT}, {"user": "bob", "age": 31, "at": AT}]
    data = json.dumps(rows) if as_text else rows
    text = json.dumps({"webhook": "hook", "endpoint": "e", "data": data})
    logged = await world.server().log(WORKSPACE, MAIN, text.encode())
    assert logged.rows == 2
    assert sorted(r["age"] for r in world.rows("w.topic.users.1")) == [30, 31]


async def test_a_field_that_log_does_not_have_is_refused_by_name(world: World) -> None:
    world.commit(main=catalog(binding()))
    text = json.dumps({"webhook": "hook", "endpoint": "e", "data": ANN, "dedup": True})
    with pytest.raises(ApiError, match="`dedup`") as refused:
        await world.server().log(WORKSPACE, MAIN, text.encode())
    assert (refused.value.status, refused.value.code) == (400, "log-malformed")


async def test_a_row_has_one_position_in_every_dataset_it_feeds(world: World) -> None:
    world.commit(main=catalog(binding(), binding(KEYLESS, "Orders", "orders")))
    await world.server().log(
        WORKSPACE, MAIN, body(user=["a", "b", "c"], age=[1, 2, 3], amount=[1, 2, 3], at=[AT] * 3)
    )
    users = {r["age"]: r[POS] for r in world.rows("w.topic.users.1")}
    assert users == {int(r["amount"]): r[POS] for r in world.rows("w.topic.orders.1")}


async def test_keyless_rows_of_one_request_stay_together_and_requests_take_turns(
    world: World,
) -> None:
    world.commit(main=catalog(binding(KEYLESS, "Orders", "orders")))
    server = world.server()
    for n in range(8):
        await server.log(WORKSPACE, MAIN, body(user=["a", "b"], amount=[n, n], at=[AT, AT]))
    parts = {r["amount"]: r["__part"] for r in world.rows("w.topic.orders.1")}
    assert sorted(parts.values()) == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(("branch", "status"), [("main", 500), ("dev", 200), ("nobody", 200)])
async def test_only_the_callers_branch_can_refuse(world: World, branch: str, status: int) -> None:
    world.commit(main=catalog(binding()), dev=catalog(binding(KEYLESS, "Orders", "orders")))
    logged = body(user=["a", "b"], age=[1, "x"], amount=[1, 2], at=[AT, AT])
    if status == 500:
        with pytest.raises(ApiError, match="column `age`") as refused:
            await world.server().log(WORKSPACE, BranchName(branch), logged)
        assert refused.value.status == 500
        assert world.log == {}
        return
    await world.server().log(WORKSPACE, BranchName(branch), logged)
    assert [r["user"] for r in world.rows("w.topic.users.1")] == ["a"]
    assert len(world.rows("w.topic.orders.1")) == 2
    (dead,) = world.rows("w.dead.1")
    assert (dead["dataset"], "b" in dead["row"]) == ("Users", True)
    ((_, letter),) = world.messages("w.dead.1")
    origin = origin_of(letter.headers)
    assert (origin.kind, origin.writer, origin.subject) == ("not-admitted", "ingest", "Users")
    assert "column `age`" in origin.reason


async def test_an_unknown_endpoint_is_reloaded_before_it_is_refused(world: World) -> None:
    server = world.server()
    with pytest.raises(
        ApiError, match="Webhook endpoint hook_e not found in any branch"
    ) as unknown:
        await server.log(WORKSPACE, MAIN, body(**ANN))
    assert unknown.value.status == 404
    world.commit("2", main=catalog(binding()))
    assert (await server.log(WORKSPACE, MAIN, body(**ANN))).rows == 1


async def test_a_removed_endpoint_is_refused_by_name_without_a_notification(world: World) -> None:
    world.commit("1", main=catalog(binding(), binding(identity="more", endpoint="f")))
    server = world.server()
    await server.log(WORKSPACE, MAIN, body(**ANN))
    world.commit("2", main=catalog(binding(identity="more", endpoint="f")))
    with pytest.raises(ApiError, match="Webhook endpoint hook_e not found") as unknown:
        await server.log(WORKSPACE, MAIN, body(**ANN))
    assert (unknown.value.status, unknown.value.code) == (404, "endpoint-unknown")
    assert len(world.rows("w.topic.users.1")) == 1


async def test_two_endpoints_of_one_dataset_both_arrive_on_its_topic(world: World) -> None:
    one, two = binding(), replace(binding(identity="two", endpoint="f"), webhook="other")
    world.commit(main=catalog(one, replace(two, topic=one.topic)))
    server = world.server()
    await server.log(WORKSPACE, MAIN, body(**ANN))
    other = {"webhook": "other", "endpoint": "f", "data": ANN | {"user": ["bob"]}}
    await server.log(WORKSPACE, MAIN, json.dumps(other).encode())
    assert {r["user"] for r in world.rows(one.topic)} == {"ann", "bob"}


async def test_a_source_feeds_the_topic_of_every_branch_that_has_it(world: World) -> None:
    """Branches share the source, and not the dataset that one of them added a source to."""
    mine = binding()
    theirs = replace(mine, topic=TopicName("w.topic.theirs.1"))
    world.commit(main=catalog(mine), dev=catalog(theirs))
    server = world.server()
    await server.log(WORKSPACE, MAIN, body(**ANN))
    for name in (mine.topic, theirs.topic):
        assert [r["user"] for r in world.rows(name)] == ["ann"]
    day_ms = DAY_US // 1000
    old = ANN | {"at": [AT - 100 * day_ms]}
    await server.log(WORKSPACE, MAIN, body(**ANN | {"at": [AT + 1]}))
    await server.log(WORKSPACE, MAIN, body(**old))
    assert world.clock.discarded[mine.identity] == 1, "a late row is counted once"


async def test_rows_prepared_under_old_definitions_are_prepared_again(world: World) -> None:
    world.commit("1", main=catalog(binding(identity="old")))
    server = world.server()
    await server.log(WORKSPACE, MAIN, body(**ANN))
    world.commit("2", main=catalog(binding(identity="new")))  # the server gets no notification
    await server.log(WORKSPACE, MAIN, body(**ANN))
    assert [len(world.rows(f"w.topic.{name}.1")) for name in ("old", "new")] == [1, 1]


async def test_nothing_is_refused_under_old_definitions(world: World) -> None:
    world.commit("1", main=catalog(binding(KEYLESS, "Orders", "orders")))
    server = world.server()
    await server.log(WORKSPACE, MAIN, body(**ANN, amount=[1]))
    world.commit("2", main=catalog(binding()))
    assert (await server.log(WORKSPACE, MAIN, body(**ANN))).rows == 1


@pytest.mark.parametrize(
    ("failure", "code", "text"),
    [
        (TransactionAborted("topic gone"), "log-not-written", "nothing was logged"),
        (
            TransactionOutcomeUnknown("timed out"),
            "log-outcome-unknown",
            "did not report whether the transaction was committed",
        ),
        (SystemUnavailable("no broker"), "ingest-unavailable", "nothing was logged"),
    ],
)
async def test_a_failed_write_has_its_own_error_and_the_next_request_succeeds(
    world, failure, code, text
) -> None:
    world.commit(main=catalog(binding()))
    failures = iter([failure, None])
    server = world.server([ScriptedProducer(world.log, fails=lambda: next(failures))])
    with pytest.raises(ApiError, match=text) as refused:
        await server.log(WORKSPACE, MAIN, body(**ANN))
    assert (refused.value.status, refused.value.code) == (503, code)
    await server.log(WORKSPACE, MAIN, body(**ANN))
    assert len(world.rows("w.topic.users.1")) == 1


async def test_rows_of_an_aborted_transaction_do_not_make_others_late(world: World) -> None:
    world.commit(main=catalog(binding(of=source(disorder_us=DAY_US))))
    failures = iter([TransactionAborted("no"), TransactionAborted("no"), None])
    server = world.server([ScriptedProducer(world.log, fails=lambda: next(failures))])
    future = body(user=["a"], age=[1], at=[AT + 100 * DAY_US // 1000])
    for _ in range(2):
        with pytest.raises(ApiError):
            await server.log(WORKSPACE, MAIN, future)
    await server.log(WORKSPACE, MAIN, body(**ANN))
    assert len(world.rows("w.topic.users.1")) == 1


async def test_a_bounded_source_ends_when_it_has_been_idle_and_stays_ended(world: World) -> None:
    world.commit(main=catalog(binding(of=source(bounded=True, idleness_us=4_000_000))))
    clock = {"now": 1_700_000_000_000_000}
    world.now_us = lambda: Micros(clock["now"])
    server = world.server()
    for seconds, entered in ((0, 1), (2, 2), (5, 3), (10, 3), (11, 3)):
        clock["now"] = 1_700_000_000_000_000 + seconds * 1_000_000
        assert (await server.log(WORKSPACE, MAIN, body(**ANN))).rows == 1
        assert len(world.rows("w.topic.users.1")) == entered


def users_view(**changes: object) -> DatasetView:
    base = DatasetView(
        DatasetName("Users"), 1, KEYED, TopicName("t"), None, True, True, ("user",), True
    )
    return replace(base, **changes)


async def test_an_erased_key_is_never_taken_again_in_any_branch(world: World) -> None:
    of_main = replace(catalog(binding()), datasets=(users_view(),))
    world.commit("1", main=of_main, dev=catalog(binding(identity="other")))
    server = world.server()
    await server.log(WORKSPACE, MAIN, body(**ANN))
    erase_service = EraseService(Catalogs(world.directory), world.directory)
    assert (
        await erase_service.erase(
            WORKSPACE,
            MAIN,
            DatasetName("Users"),
            b'{"erase_keys": [{"user": "ann"}, {"user": "ann"}]}',
        )
        == 1
    )
    await server.log(
        WORKSPACE, MAIN, body(user=["ann", "bob"], age=[31, 40], at=[AT, AT])
    )  # the server gets no notification
    world.commit("2", main=catalog(binding(identity="v2")))
    await server.log(WORKSPACE, MAIN, body(user=["ann", "bob"], age=[32, 41], at=[AT, AT]))
    found = {
        name: sorted(r["age"] for r in world.rows(f"w.topic.{name}.1"))
        for name in ("users", "other", "v2")
    }
    assert found == {"users": [30, 40], "other": [30, 40], "v2": [41]}


@pytest.mark.parametrize(
    ("name", "keys", "status", "text"),
    [
        ("Nobody", b"[]", 404, "Dataset Nobody not found"),
        ("Users", b'[{"zip": 1}]', 500, "Field: zip not in dataset"),
        ("Users", b'[{"age": 1}]', 500, "Field: age not in a key field in dataset"),
        ("Users", b"[{}]", 500, "Not enough erase key were provided"),
        ("Users", b'[{"user": null}]', 500, "Null values found in non-optional field."),
        ("Users", b'{"user": 1}', 400, "the body of erase is malformed"),
    ],
)
async def test_erase_rejects_bad_keys_with_the_clients_texts(
    world: World, name, keys, status, text
) -> None:
    world.commit(main=replace(catalog(binding()), datasets=(users_view(),)))
    with pytest.raises(ApiError, match=re.escape(text)) as refused:
        await EraseService(Catalogs(world.directory), world.directory).erase(
            WORKSPACE, MAIN, DatasetName(name), b'{"erase_keys": ' + keys + b"}"
        )
    assert refused.value.status == status


def test_a_key_field_that_is_not_an_erase_key_is_rejected() -> None:
    with pytest.raises(ApiError, match="Field: user is not an erase key field in dataset"):
        erased_keys(users_view(erase_keys=()), [{"user": "a"}])


async def test_a_request_without_rows_succeeds(world: World) -> None:
    world.commit(main=catalog(binding()))
    assert (await world.server().log(WORKSPACE, MAIN, body(user=[], age=[], at=[]))).rows == 0
    assert world.log == {}


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"{",
        b"[]",
        b'{"webhook": "a"}',
        b'{"webhook": "hook", "endpoint": "e", "data": {"a": 1}}',
    ],
)
async def test_a_malformed_body_is_a_400(world: World, broken: bytes) -> None:
    with pytest.raises(ApiError, match="malformed") as refused:
        await world.server().log(WORKSPACE, MAIN, broken)
    assert refused.value.status == 400


async def test_bare_nan_is_a_null(world: World) -> None:
    world.commit(main=catalog(binding()))
    raw = (
        b'{"webhook": "hook", "endpoint": "e", "data": {"user": ["a"], "age": [NaN], '
        b'"at": [1700000000000]}}'
    )
    with pytest.raises(ApiError, match=r"Null values found in non-optional field\."):
        await world.server().log(WORKSPACE, MAIN, raw)


async def test_nothing_is_written_by_a_server_that_was_stopped_after_its_stamp(
    world: World,
) -> None:
    """A commit has dropped the endpoint since, and its topic was counted and found empty."""
    stamped_s = boot_s() - 31.0
    world.now_s = lambda: stamped_s
    world.commit(main=catalog(binding()))
    server = world.server(commit_within_s=30.0)
    with pytest.raises(ApiError) as refused:
        await server.log(WORKSPACE, MAIN, body(**ANN))
    assert refused.value.code == "log-not-written"
    assert world.rows("w.topic.users.1") == []
    stamped_s += 31.0
    await server.log(WORKSPACE, MAIN, body(**ANN))
    assert len(world.rows("w.topic.users.1")) == 1


async def test_time_in_which_the_machine_was_suspended_counts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka and the commits of others went on meanwhile."""
    clock, suspended_s = time.clock_gettime, 0.0

    def boot_time(id_: int) -> float:
        return clock(id_) + (suspended_s if id_ == time.CLOCK_BOOTTIME else 0.0)

    def suspend() -> int:
        nonlocal suspended_s
        suspended_s = 31.0
        return 0

    monkeypatch.setattr(time, "clock_gettime", boot_time)
    world.commit(main=catalog(binding()))
    producer = ScriptedProducer(world.log, turns=suspend)
    with pytest.raises(ApiError) as refused:
        await world.server([producer], commit_within_s=30.0).log(WORKSPACE, MAIN, body(**ANN))
    assert refused.value.code == "log-not-written"
    assert world.rows("w.topic.users.1") == []
