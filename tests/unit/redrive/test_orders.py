"""Orders about dead letters: which they are about, what they do, and what they count."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from fennel_core.admission.errors import SourceCodeFailed
from fennel_core.admission.validator import Validator
from fennel_core.connections.erasures import ErasedKeys
from fennel_core.connections.errors import TransactionAborted
from fennel_core.dead_letters.counts import DeadLetterMessage, count_messages
from fennel_core.ingest.catalogs import EndpointTarget
from fennel_core.ingest.store import ProducerRecord, TransactionStart, boot_s
from fennel_core.redrive.api_errors import DropNeedsFilter, LetterFilterMalformed, RedriveStopped
from fennel_core.redrive.letters import Letter, LetterFilter, Obstacle
from fennel_core.redrive.pages import Place
from fennel_core.redrive.replay import replay_letters
from fennel_core.redrive.service import CODE_FAILURES
from fennel_core.redrive.sink_replays import MemorySinkReplays, SinkReplay
from fennel_core.sinks.deliveries import LettersOf, RefusedEvent
from fennel_core.vocab.dead_letters import (
    DeadLetterKind,
    DeadLetterOrigin,
    origin_of,
    settled_letters,
)
from fennel_core.vocab.dtypes import Int
from fennel_core.vocab.ids import DatasetName, Identity, Millis, Offset, PartitionIndex, TopicName
from fennel_core.vocab.keys import key_bytes
from fennel_core.vocab.versions import POS, decode, encode_frame, row_count
from fennel_core.wire.connectors import Constant, FromPayload
from tests.support.ingest_world import KEYED, WORKSPACE, SlowClock, catalog
from tests.support.redrive_world import DEAD, RedriveWorld
from tests.support.sink_bindings import bound, hooks
from tests.support.source_world import Fault, batch, message, stream_source

AT = 1_700_000_000_000
ALL = LetterFilter()
OLD = {"age": "old"}
WITH_AGE = stream_source(preproc=(("age", Constant(0, Int())),))


async def world_of(*rows: bytes) -> RedriveWorld:
    """Return a world whose stream had these messages, each in a batch of its own."""
    world = RedriveWorld()
    world.sources.world.commit("1", main=catalog(stream_source()))
    writer = world.sources.writer()
    for offset, row in enumerate(rows):
        await writer.write(batch([row], offset))
    return world


def row(user: object, **changes: object) -> bytes:
    return message(**({"user": user, "age": 1, "at": AT} | changes))


def corrected(world: RedriveWorld) -> None:
    world.sources.world.commit("2", main=catalog(WITH_AGE))


async def test_letters_are_counted_by_dataset_source_and_kind() -> None:
    world = await world_of(row("ann", **OLD), row("bob", **OLD), b"broken")
    texts, unreadable = await world.orders().counts(WORKSPACE, ALL)
    assert (texts["subject"], texts["source"], texts["kind"]) == (
        "Users",
        "kafka/orders",
        "not-admitted",
    )
    assert (texts["letters"], texts["rows"], texts["not_replayable"]) == (2, 2, None)
    assert "age" in texts["newest_reason"]
    assert (unreadable["kind"], unreadable["rows"]) == ("unreadable", 1)
    assert unreadable["not_replayable"] == Obstacle.UNREADABLE.value


async def test_a_replayed_row_is_accepted_once_and_at_its_first_position() -> None:
    world = await world_of(row("ann", **OLD))
    corrected(world)
    (request,) = world.sources.world.raw("w.raw.orders.1")
    dry = await world.orders().replay(WORKSPACE, ALL, dry_run=True)
    assert (dry.rows, dry.accepted) == (1, 1)
    assert world.sources.world.rows("w.topic.users.1") == []
    done = await world.orders().replay(WORKSPACE, ALL, dry_run=False)
    assert (done.letters, done.rows, done.accepted, done.refused) == (1, 1, 1, 0)
    again = await world.orders().replay(WORKSPACE, ALL, dry_run=False)
    assert (again.rows, again.accepted) == (0, 0)
    (written,) = world.sources.world.rows("w.topic.users.1")
    assert (written["user"], written["age"], written[POS]) == ("ann", 0, request.position)


async def test_rows_that_fail_again_stay_with_the_new_reason() -> None:
    world = await world_of(row("ann", **OLD))
    before = world.open_letters()[0]
    assert "`age`" in before.origin.reason
    renamed = stream_source(preproc=(("user", FromPayload("nick")),))
    world.sources.world.commit("2", main=catalog(renamed))
    done = await world.orders().replay(WORKSPACE, ALL, dry_run=False)
    assert (done.accepted, done.refused) == (0, 1)
    last = world.sources.world.log[DEAD, 0][-1]
    (settled,) = settled_letters(last.headers, last.value) or ()
    assert (settled.offset, settled.replayed, settled.refused) == (before.offset, 0, 1)
    (after,) = world.open_letters()
    assert (after.origin.source, after.rows) == (before.origin.source, 1)
    assert "nick" in after.origin.reason
    again = await world.orders().replay(WORKSPACE, ALL, dry_run=False)
    assert (again.rows, again.refused) == (1, 1)
    assert world.open_letters() == [after], "the reason is the same, so the letter is left alone"


async def test_what_cannot_be_replayed_is_counted_by_name() -> None:
    world = await world_of(b"broken", row("ann", **OLD))
    job = DeadLetterOrigin(DeadLetterKind.USER_CODE, "w.job.x.1", "Orders.clean", "boom")
    value = encode_frame(pl.DataFrame({"a": [1, 2]}))
    world.sources.world.log[DEAD, 1] = [ProducerRecord(DEAD, 1, value, job.headers())]
    moved = replace(WITH_AGE, topic=TopicName("w.topic.users.2"), identity=Identity("users2"))
    world.sources.world.commit("2", main=catalog(moved))
    done = await world.orders().replay(WORKSPACE, ALL, dry_run=False)
    assert done.obstacles == {
        Obstacle.UNREADABLE: (1, {"Users"}),
        Obstacle.NOT_CURRENT: (1, {"Users"}),
        Obstacle.JOB: (2, {"Orders.clean"}),
    }
    assert (done.rows, len(world.open_letters())) == (0, 3)


def of_sinks(world: RedriveWorld, *sinks: tuple[str, str]) -> None:
    """Write a letter of each sink, given by the topic of its position and its name."""
    for number, (sink, title) in enumerate(sinks):
        letters = LettersOf(TopicName(sink), title, DatasetName("Users"))
        events = [
            RefusedEvent(b"{}", 0, 7 + number, "it responds with status 422", n) for n in (0, 1)
        ]
        world.sources.world.log.setdefault((DEAD, 0), []).extend(letters.records(DEAD, 1, events))


ROWS, GONE = TopicName("w.sink.rows.1"), TopicName("w.sink.gone.1")


async def world_of_sinks() -> RedriveWorld:
    """Return a world with a row that does not fit, and letters of two sinks: one is gone."""
    world = await world_of(row("ann", **OLD))
    sinks = (bound(ROWS, hooks("/rows")),)
    world.sources.world.commit("2", main=replace(catalog(WITH_AGE), sinks=sinks))
    world.replays = MemorySinkReplays({ROWS, GONE})
    of_sinks(world, (ROWS, "hooks/rows"), (GONE, "hooks/gone"))
    return world


async def test_a_sink_is_ordered_to_send_its_letters_again() -> None:
    world = await world_of_sinks()
    dry = await world.orders().replay(WORKSPACE, ALL, dry_run=True)
    assert (dry.ordered, world.replays.orders) == (2, {})
    done = await world.orders().replay(WORKSPACE, ALL, dry_run=False)
    assert (done.rows, done.accepted, done.ordered) == (1, 1, 2)
    assert done.obstacles == {Obstacle.SINK_GONE: (2, {"Users"})}
    (order,) = world.replays.orders.values()
    (_, letter, _) = world.sources.world.log[DEAD, 0][:3]
    assert origin_of(letter.headers).sink == "hooks/rows"
    assert order == SinkReplay(ROWS, (DEAD, PartitionIndex(0)), 1, (0, 7))
    assert [each.origin.sink for each in world.open_letters()] == ["hooks/rows", "hooks/gone"]
    again = await world.orders().replay(WORKSPACE, ALL, dry_run=False)
    assert (again.ordered, len(world.replays.orders)) == (2, 1)


async def test_an_order_to_send_again_fences_nobody_who_settles_letters() -> None:
    world = await world_of_sinks()
    wanted = LetterFilter(sink="hooks/rows")
    session = await world.log.open((DEAD, PartitionIndex(0)))
    assert (await world.orders().replay(WORKSPACE, wanted, dry_run=False)).ordered == 2
    await session.commit((), (), boot_s() + 60)


async def test_letters_of_a_sink_are_selected_by_its_name() -> None:
    world = await world_of_sinks()
    found = await world.orders().counts(WORKSPACE, LetterFilter(sink="hooks/rows"))
    assert [(e["sink"], e["kind"], e["rows"], e["job"]) for e in found] == [
        ("hooks/rows", "not-delivered", 2, None)
    ]
    assert found[0]["not_replayable"] is None
    (gone,) = await world.orders().counts(WORKSPACE, LetterFilter(sink="hooks/gone"))
    assert gone["not_replayable"] == Obstacle.SINK_GONE.value
    rows, _ = await world.orders().rows(WORKSPACE, LetterFilter(sink="hooks/rows"), 10, None)
    assert [(e["sink"], e["source_position"]) for e in rows] == [
        ("hooks/rows", "partition 0, offset 7")
    ] * 2
    wanted = LetterFilter(sink="hooks/gone")
    done = await world.orders().drop(WORKSPACE, wanted, everything=False, dry_run=False)
    assert (done.letters, done.rows) == (1, 2)
    assert [each.origin.sink for each in world.open_letters()] == ["", "hooks/rows"]
    only = await world.orders().replay(WORKSPACE, LetterFilter(dataset="Users"), dry_run=True)
    assert (only.rows, only.ordered) == (1, 2)


async def test_rows_that_the_source_leaves_out_now_stay_and_are_counted() -> None:
    world = await world_of(row("ann", **OLD))
    late = replace(WITH_AGE, source=replace(WITH_AGE.source, since_us=AT * 1000 + 10**9))
    world.sources.world.commit("2", main=catalog(late))
    done = await world.orders().replay(WORKSPACE, ALL, dry_run=False)
    assert (done.rows, done.accepted, done.left_out, done.refused) == (1, 0, 1, 0)
    (left,) = world.open_letters()
    assert "leaves the row out" in left.origin.reason
    again = await world.orders().replay(WORKSPACE, ALL, dry_run=False)
    assert (again.left_out, world.open_letters()) == (1, [left])
    world.sources.world.commit("3", main=catalog(WITH_AGE))
    taken = await world.orders().replay(WORKSPACE, ALL, dry_run=False)
    assert (taken.accepted, world.open_letters()) == (1, [])


async def test_rows_of_erased_keys_are_settled_as_dropped() -> None:
    world = await world_of(row("ann", **OLD), row("bob", **OLD))
    (key,) = key_bytes(pl.DataFrame({"user": ["ann"]}), KEYED.key_names)
    corrected(world)
    directory = world.sources.world.directory
    erased = {DatasetName("Users"): (ErasedKeys(("user",), frozenset({key})),)}
    directory.workspaces[WORKSPACE] = replace(directory.workspaces[WORKSPACE], erased=erased)
    done = await world.orders().replay(WORKSPACE, ALL, dry_run=False)
    assert (done.rows, done.accepted, done.left_out) == (2, 1, 1)
    assert world.open_letters() == []
    last = world.sources.world.log[DEAD, 0][-1]
    settled = settled_letters(last.headers, last.value) or ()
    assert [(each.replayed, each.dropped) for each in settled] == [(0, 1), (1, 0)]
    assert [each["user"] for each in world.sources.world.rows("w.topic.users.1")] == ["bob"]


async def test_a_replay_that_was_frozen_before_its_stamp_writes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await world_of(row("ann", **OLD))
    corrected(world)
    now = [boot_s()]
    for module in ("redrive.service", "ingest.store"):
        monkeypatch.setattr(f"fennel_core.{module}.boot_s", lambda: now[0])
    begin = SlowClock.begin

    async def frozen(clock: SlowClock, *args: Any) -> TransactionStart:
        start = await begin(clock, *args)
        now[0] += 61
        return start

    monkeypatch.setattr(SlowClock, "begin", frozen)
    with pytest.raises(RedriveStopped, match="too long"):
        await world.orders().replay(WORKSPACE, ALL, dry_run=False)
    assert (len(world.open_letters()), world.sources.world.rows("w.topic.users.1")) == (1, [])


async def test_a_letter_without_its_target_is_not_replayed() -> None:
    world = await world_of(row("ann", **OLD))
    (record,) = world.sources.world.log[DEAD, 0]
    old = replace(origin_of(record.headers), target=None)
    world.sources.world.log[DEAD, 0] = [replace(record, headers=old.headers())]
    corrected(world)
    done = await world.orders().replay(WORKSPACE, ALL, dry_run=False)
    assert done.obstacles == {Obstacle.NO_TARGET: (1, {"Users"})}
    assert (len(world.open_letters()), world.sources.world.rows("w.topic.users.1")) == (1, [])


async def test_letters_that_fail_for_the_same_cause_are_left_alone() -> None:
    bad = (row("ann", age="one"), row("bob", age="two"), row(None), row(None, age="three"))
    world = await world_of(*bad)
    before = world.open_letters()
    done = await world.orders().replay(WORKSPACE, ALL, dry_run=False)
    assert (done.rows, done.refused) == (4, 4)
    assert world.open_letters() == before


async def test_a_letter_that_fails_anew_quotes_no_row_of_another_one() -> None:
    world = await world_of(row("ann", age=None), row("bob", age=None))
    for records in world.sources.world.log.values():
        for n, record in enumerate(records):
            if record.topic == DEAD:
                value = decode(record.value).with_columns(
                    pl.col("row").str.replace("null", f'"{n} years"')
                )
                records[n] = replace(record, value=encode_frame(value))
    await world.orders().replay(WORKSPACE, ALL, dry_run=False)
    letters = world.open_letters()
    assert len(letters) == 2
    for letter in letters:
        assert "`age`" in letter.origin.reason
        assert "years" not in letter.origin.reason
    await world.orders().replay(WORKSPACE, ALL, dry_run=False)
    assert world.open_letters() == letters


async def test_letters_whose_code_cannot_run_hold_up_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await world_of(row("ann", **OLD), row(None))
    corrected(world)

    async def some(validator: Validator, target: EndpointTarget, own: list[Letter]) -> object:
        if "age" not in own[0].origin.cause:
            raise SourceCodeFailed("the code took too long", "code-timeout")
        return await replay_letters(validator, target, own)

    monkeypatch.setattr("fennel_core.redrive.service.replay_letters", some)
    done = await world.orders().replay(WORKSPACE, ALL, dry_run=False)
    assert (done.rows, done.accepted, len(world.open_letters())) == (1, 1, 1)
    ((obstacle, count),) = done.obstacles.items()
    assert count == (1, {"Users"})
    assert "took too long" in obstacle
    assert done.as_json()["not_replayable"][0]["reason"] == obstacle


async def test_one_letter_whose_code_cannot_run_holds_up_no_other_of_its_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await world_of(*(row(f"u{n}", **OLD) for n in range(9)))
    corrected(world)
    slow, runs = world.open_letters()[5], []

    async def some(validator: Validator, target: EndpointTarget, own: list[Letter]) -> object:
        runs.append(len(own))
        if slow in own:
            raise SourceCodeFailed("the code took too long", "code-timeout")
        return await replay_letters(validator, target, own)

    monkeypatch.setattr("fennel_core.redrive.service.replay_letters", some)
    done = await world.orders().replay(WORKSPACE, ALL, dry_run=False)
    assert (done.rows, done.accepted, world.open_letters()) == (8, 8, [slow])
    assert [count for count, _ in done.obstacles.values()] == [1]
    assert max(runs) == 9


async def test_code_that_fails_for_all_letters_is_not_tried_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await world_of(*(row(f"u{n}", **OLD) for n in range(CODE_FAILURES + 9)))
    corrected(world)
    runs = []

    async def none(_: Validator, __: EndpointTarget, own: list[Letter]) -> object:
        runs.append(len(own))
        raise SourceCodeFailed("the code took too long", "code-timeout")

    monkeypatch.setattr("fennel_core.redrive.service.replay_letters", none)
    done = await world.orders().replay(WORKSPACE, ALL, dry_run=False)
    assert sum(count for count, _ in done.obstacles.values()) == CODE_FAILURES + 9
    assert len(runs) < 2 * CODE_FAILURES


async def test_a_list_quotes_no_value_where_keys_are_erased() -> None:
    world = await world_of(row("ann", **OLD))
    (before,) = await world.orders().counts(WORKSPACE, ALL)
    assert "old" in before["newest_reason"]
    (key,) = key_bytes(pl.DataFrame({"user": ["ann"]}), KEYED.key_names)
    world.erased = {DatasetName("Users"): (ErasedKeys(("user",), frozenset({key})),)}
    (after,) = await world.orders().counts(WORKSPACE, ALL)
    assert "`age`" in after["newest_reason"]
    assert "old" not in after["newest_reason"]


async def test_dropped_letters_are_counted_and_gone() -> None:
    world = await world_of(row("ann", **OLD), row("bob", **OLD), b"broken")
    orders = world.orders()
    with pytest.raises(DropNeedsFilter):
        await orders.drop(WORKSPACE, ALL, everything=False, dry_run=False)
    wanted = LetterFilter(reason="`AGE`")
    dry = await orders.drop(WORKSPACE, wanted, everything=False, dry_run=True)
    assert (dry.rows, len(world.open_letters())) == (2, 3)
    done = await orders.drop(WORKSPACE, wanted, everything=False, dry_run=False)
    assert (done.letters, done.rows, len(world.open_letters())) == (2, 2, 1)
    rest = await orders.drop(WORKSPACE, ALL, everything=True, dry_run=False)
    assert (rest.rows, world.open_letters()) == (1, [])


async def test_what_was_settled_is_counted_beside_the_rows() -> None:
    world = await world_of(row("ann", **OLD), row("bob", **OLD), row("eve", **OLD))
    world.log.times = {0: Millis(10), 1: Millis(20), 2: Millis(30)}
    second = LetterFilter(since_ms=20, until_ms=30)
    await world.orders().drop(WORKSPACE, second, everything=False, dry_run=False)
    corrected(world)
    await world.orders().replay(WORKSPACE, ALL, dry_run=False)
    found = []
    for offset, record in enumerate(world.sources.world.log[DEAD, 0]):
        settled = settled_letters(record.headers, record.value)
        rows = row_count(record.value) if settled is None else 0
        found.append(
            DeadLetterMessage(
                Offset(offset), rows, origin_of(record.headers), Millis(offset), settled
            )
        )
    ((_, count),) = count_messages(found).items()
    assert (count.rows, count.replayed, count.dropped, count.refused) == (3, 2, 1, 0)
    assert count.open == 0
    assert "eve" not in count.newest_reason
    assert count.newest_ms == 2


async def test_an_order_that_ends_early_says_what_is_done() -> None:
    world = await world_of(row("ann", **OLD))
    corrected(world)
    world.fault = lambda: Fault(TransactionAborted("the broker refused"), committed=False)
    with pytest.raises(RedriveStopped, match=r"the broker refused.* after 0 rows.*repeat it"):
        await world.orders().replay(WORKSPACE, ALL, dry_run=False)


@pytest.mark.parametrize(
    ("wanted", "rows"),
    [
        (ALL, 2),
        (LetterFilter(dataset="Users"), 2),
        (LetterFilter(dataset="Other"), 0),
        (LetterFilter(source="kafka/orders"), 2),
        (LetterFilter(source="kafka/other"), 0),
        (LetterFilter(since_ms=20), 1),
        (LetterFilter(until_ms=20), 1),
        (LetterFilter(reason="column `AGE`"), 2),
        (LetterFilter(reason="nothing like it"), 0),
    ],
)
async def test_an_order_is_about_the_letters_that_it_names(wanted: LetterFilter, rows: int) -> None:
    world = await world_of(row("ann", **OLD), row("bob", **OLD))
    world.log.times = {0: Millis(10), 1: Millis(20)}
    found = await world.orders().counts(WORKSPACE, wanted)
    assert sum(each["rows"] for each in found) == rows


async def test_rows_are_shown_page_by_page() -> None:
    world = RedriveWorld()
    world.sources.world.commit("1", main=catalog(stream_source()))
    bad = [row(name, **OLD) for name in ("a", "b", "c")]
    await world.sources.writer().write(batch(bad))
    await world.sources.writer().write(batch([row("d", **OLD)], 3))
    seen, place, pages = [], None, 0
    while True:
        rows, place = await world.orders().rows(WORKSPACE, ALL, 2, place)
        seen += [each["row"]["user"] for each in rows]
        pages += 1
        if place is None:
            break
        place = Place.parse(place.text())
    assert (seen, pages) == (["a", "b", "c", "d"], 2)
    assert "Kafka topic `orders`[0] at 3" in rows[-1]["source_position"]
    with pytest.raises(LetterFilterMalformed):
        Place.parse("nonsense")


async def test_rows_of_erased_keys_are_hidden_with_their_reason() -> None:
    world = await world_of(row("ann", **OLD), row("bob", **OLD), row(None, **OLD), b"broken")
    (key,) = key_bytes(pl.DataFrame({"user": ["ann"]}), KEYED.key_names)
    world.erased = {DatasetName("Users"): (ErasedKeys(("user",), frozenset({key})),)}
    rows, _ = await world.orders().rows(WORKSPACE, ALL, 10, None)
    shown = {each["offset"]: each["row"] and each["row"]["user"] for each in rows}
    assert shown == {0: None, 1: "bob", 2: None, 3: None}
    assert [each["hidden"] for each in rows] == [True, False, True, True]
    assert all(each["hidden"] == (each["row"] is None) for each in rows)
    assert {each["reason"][:6] for each in rows if each["hidden"]} == {"hidden"}
