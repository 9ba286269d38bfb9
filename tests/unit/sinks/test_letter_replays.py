"""What becomes of the dead letters of a sink that are sent again."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import polars as pl
import pytest

from fennel_core.connections.errors import SystemUnavailable, TransactionAborted
from fennel_core.sinks import letter_replays
from fennel_core.sinks.errors import SinkEndpointUnavailable, SinkRowsLost
from fennel_core.sinks.letter_replays import MISSING
from fennel_core.sinks.writer import KeyErasures
from fennel_core.vocab.ids import PartitionIndex
from fennel_core.vocab.keys import key_bytes
from fennel_core.vocab.versions import decode, encode_frame
from tests.support.http_sink_world import BAD, DEAD, SINK, HttpSinkWorld, ran
from tests.support.sink_world import MemoryTopic, Version, frame

AT = (DEAD, PartitionIndex(0))


def world_of(*messages: list[Version], limit: int = 10) -> HttpSinkWorld:
    """Return a world whose sink was refused its bad rows, and is not any more."""
    world = HttpSinkWorld(MemoryTopic([[frame(each) for each in messages], []]), limit, [], [])
    step(world)
    world.bad = ()
    return world


def step(world: HttpSinkWorld) -> None:
    writer = world.writer()
    while not writer.step(world.erasures).idle:
        pass


def replayed(world: HttpSinkWorld) -> dict[str, int]:
    """Order all letters, carry the orders out, and return what was settled."""
    world.order()
    return carried_out(world)


def carried_out(world: HttpSinkWorld) -> dict[str, int]:
    writer = world.writer()
    writer.step(world.erasures)
    world.replay(writer)
    return world.settled()


def ages(world: HttpSinkWorld) -> list[tuple[int, int | None]]:
    """Return user and age of each change that was taken, in order."""
    return [
        ((e["after"] or e["before"])["user"], e["after"] and e["after"]["age"])
        for e in world.receiver.events()
    ]


def erased(*users: int) -> KeyErasures:
    keys = key_bytes(frame([(user, 0, 0, 0, 1) for user in users]), ["user"])
    return KeyErasures(len(users), [(n, ("user",), key) for n, key in enumerate(keys, 1)])


def test_a_change_is_sent_again_under_the_key_that_was_refused() -> None:
    world = world_of([(1, 10, 5, 1, 1), (2, BAD, 6, 2, 1)], [(3, 11, 7, 3, 1)])
    refused = world.receiver.requests[2]
    assert replayed(world) == {"replayed": 1, "dropped": 0, "refused": 0, "superseded": 0}
    assert world.receiver.requests[-1] == refused
    assert ages(world) == [(1, 10), (3, 11), (2, BAD)]
    assert (world.open_letters(), world.replays.orders) == ([], {})


def test_a_change_of_which_a_later_one_followed_is_superseded() -> None:
    world = world_of([(1, BAD, 5, 1, 1)], [(2, 11, 6, 2, 1)], [(1, 12, 7, 3, 1)])
    sent = len(world.receiver.requests)
    assert replayed(world) == {"replayed": 0, "dropped": 0, "refused": 0, "superseded": 1}
    assert len(world.receiver.requests) == sent
    assert (world.open_letters(), world.replays.orders) == ([], {})


def test_of_the_changes_of_a_key_in_one_message_only_the_last_is_sent() -> None:
    world = world_of([(1, BAD, 5, 1, 1), (1, BAD, 6, 2, 1), (2, BAD, 6, 3, 1)])
    assert replayed(world) == {"replayed": 2, "dropped": 0, "refused": 0, "superseded": 1}
    times = [each["source"]["ts_us"] for each in world.receiver.events()]
    assert times == [6, 6]


def test_a_later_change_supersedes_also_before_the_sink_has_come_to_it() -> None:
    world = world_of([(1, BAD, 5, 1, 1)])
    world.topic.partitions[0].append(frame([(1, 12, 7, 3, 1)]))
    world.order()
    writer = world.writer()
    world.topic.length = lambda: 0
    writer.step(world.erasures)
    world.replay(writer)
    assert world.settled()["superseded"] == 1


def test_a_replacement_that_changes_nothing_supersedes_nothing() -> None:
    world = world_of([(1, BAD, 5, 1, 1)])
    world.topic.partitions[0].append(frame([(1, BAD, 5, 1, -1), (1, BAD, 5, 1, 1)]))
    assert replayed(world)["replayed"] == 1


def test_rows_of_erased_keys_are_dropped_and_not_sent() -> None:
    world = world_of([(1, BAD, 5, 1, 1), (2, BAD, 6, 2, 1)])
    world.erasures = erased(1)
    assert replayed(world) == {"replayed": 1, "dropped": 1, "refused": 0, "superseded": 0}
    assert ages(world) == [(1, None), (2, BAD)]


def test_erased_rows_that_history_has_lost_are_dropped_too() -> None:
    world = world_of([(1, BAD, 5, 1, 1), (2, 11, 6, 2, 1)])
    world.erasures = erased(1)
    world.topic.partitions[0][0] = frame([(2, 11, 6, 2, 1)])
    assert replayed(world)["dropped"] == 1


def test_an_erasure_of_another_key_leaves_the_key_of_a_request() -> None:
    world = world_of([(1, 10, 5, 1, 1), (2, BAD, 6, 2, 1)])
    world.erasures = erased(1)
    replayed(world)
    refused = [each for each, text in world.receiver.requests if b'"age":9' in text]
    assert len(refused) == 3
    assert refused[-1] == refused[-2], "its number in the message is that of the first time"


def test_the_delete_of_an_erased_key_is_sent_again() -> None:
    world = world_of([(1, 10, 5, 1, 1)])
    world.erasures = erased(1)
    world.receiver.answers = lambda *_: (422, {})
    step(world)
    (letter,) = world.open_letters()
    assert letter.origin.source == "an erasure"
    world.receiver.answers = lambda *_: None
    assert replayed(world)["replayed"] == 1
    assert ages(world)[-1] == (1, None)
    assert world.receiver.requests[-1] == world.receiver.requests[-2]


def test_what_is_refused_for_the_same_reason_stays_as_it_is_and_its_order_ends() -> None:
    world = world_of([(1, BAD, 5, 1, 1)])
    world.bad = (BAD,)
    before = world.open_letters()
    assert not any(replayed(world).values())
    assert (world.open_letters(), world.replays.orders) == (before, {})


def test_what_is_refused_for_another_reason_is_a_letter_with_that_one() -> None:
    world = world_of([(1, BAD, 5, 1, 1), (2, BAD, 6, 2, 1)])
    world.receiver.answers = lambda _, body: (413, {}) if b'"user":2' in body else None
    assert replayed(world) == {"replayed": 1, "dropped": 0, "refused": 1, "superseded": 0}
    (letter,) = world.open_letters()
    assert ("status 413" in letter.origin.reason, letter.rows) == (True, 1)
    assert (letter.origin.writer, letter.origin.sink) == (SINK, "hooks/users")
    world.receiver.answers = lambda *_: None
    assert replayed(world)["replayed"] == 2
    refused = [key for key, body in world.receiver.requests if body.count(b'"user":2') == 1]
    assert len(set(refused[1:])) == 1, "the key has the number of the change in its message"


def test_a_change_that_the_dataset_lacks_stays_with_that_reason() -> None:
    world = world_of([(1, BAD, 5, 1, 1)])
    world.topic.partitions[0][0] = frame([(1, BAD, 6, 9, 1)])
    assert replayed(world)["refused"] == 1
    (letter,) = world.open_letters()
    assert letter.origin.reason == MISSING
    assert replayed(world)["refused"] == 1
    assert world.open_letters() == [letter]


def test_letters_of_messages_that_are_gone_stay_with_that_reason() -> None:
    world = world_of([(1, BAD, 5, 1, 1)])

    def gone() -> None:
        raise SinkRowsLost("hooks/users", 0, 0, 1)

    world.meanwhile = gone
    assert replayed(world)["refused"] == 1
    assert world.open_letters()[0].origin.reason == MISSING


def test_letters_behind_messages_that_are_gone_are_sent() -> None:
    world = world_of([(1, BAD, 5, 1, 1)], [(2, BAD, 6, 2, 1)])
    gone = [SinkRowsLost("hooks/users", 0, 0, 1)]

    def begins_at_1() -> None:
        if gone:
            raise gone.pop()

    world.meanwhile = begins_at_1
    settled = replayed(world)
    assert (settled["replayed"], settled["refused"]) == (1, 1)
    assert ages(world) == [(2, BAD)]


def test_a_letter_that_was_settled_since_the_order_is_not_sent() -> None:
    world = world_of([(1, BAD, 5, 1, 1)])
    world.order()
    world.letters.log[AT] = []
    sent = len(world.receiver.requests)
    carried_out(world)
    assert (len(world.receiver.requests), world.replays.orders) == (sent, {})


def test_an_order_waits_until_a_sink_that_was_rewound_has_passed_the_message() -> None:
    world = world_of([(1, BAD, 5, 1, 1)])
    world.order()
    writer = world.writer()
    writer.step(world.erasures)
    world.replay(writer, {0: 0})
    assert (len(world.replays.orders), len(world.open_letters())) == (1, 1)
    world.replay(writer, {0: 1})
    assert world.settled()["replayed"] == 1


def test_changes_are_sent_in_their_order_whatever_that_of_their_letters_is() -> None:
    world = world_of([(1, BAD, 5, 1, 1)], [(2, BAD, 6, 2, 1)], [(3, BAD, 7, 3, 1)])
    world.letters.log[AT].reverse()
    replayed(world)
    assert [user for user, _ in ages(world)] == [1, 2, 3]


def test_what_was_sent_is_settled_when_the_endpoint_goes_away() -> None:
    world = world_of([(1, BAD, 5, 1, 1)], [(2, BAD, 6, 2, 1)])
    world.order()
    world.sending = ["away", None]
    with pytest.raises(SinkEndpointUnavailable):
        carried_out(world)
    assert (world.settled()["replayed"], len(world.replays.orders)) == (1, 1)
    assert carried_out(world)["replayed"] == 2
    keys = [key for key, _ in world.receiver.requests[-2:]]
    assert len(set(keys)) == 1, "sent again under its key"


def test_what_the_endpoint_says_is_reported_also_if_another_order_took_the_letters() -> None:
    world = world_of([(1, BAD, 5, 1, 1)], [(2, BAD, 6, 2, 1)])
    world.order()
    world.sending, world.settling = ["away", None], ["taken"]
    with pytest.raises(SinkEndpointUnavailable):
        carried_out(world)
    assert len(world.replays.orders) == 2


@pytest.mark.parametrize("fault", ["before", "after", "taken"])
def test_a_letter_that_could_not_be_settled_is_sent_again_under_its_key(fault: str) -> None:
    world = world_of([(1, BAD, 5, 1, 1)])
    world.order()
    world.settling = [fault]
    if fault == "before":
        with pytest.raises(SystemUnavailable):
            carried_out(world)
    else:
        carried_out(world)
    assert len(world.replays.orders) == 1
    assert carried_out(world)["replayed"] == 1
    assert (world.open_letters(), world.replays.orders) == ([], {})
    assert ages(world) == [(1, BAD)], "a receiver that keeps keys has it once"


def test_a_session_that_was_overtaken_sends_nothing() -> None:
    world = world_of([(1, BAD, 5, 1, 1)])
    world.order()
    writer = world.writer()
    writer.step(world.erasures)
    world.writer().step(world.erasures)
    sent = len(world.receiver.requests)
    with pytest.raises(TransactionAborted):
        world.replay(writer)
    assert len(world.receiver.requests) == sent


def test_a_pass_ends_after_some_seconds_and_the_next_one_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(letter_replays, "PASS_S", 3.0)
    world = world_of(*([(n, BAD, n, n, 1)] for n in range(1, 6)))
    assert replayed(world)["replayed"] == 3
    assert carried_out(world)["replayed"] == 5


def test_a_pass_is_bounded_in_letters_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letter_replays, "LETTERS", 2)
    world = world_of(*([(n, BAD, n, n, 1)] for n in range(1, 6)))
    assert replayed(world)["replayed"] == 2
    monkeypatch.setattr(letter_replays, "LETTERS_BYTES", 1)
    assert carried_out(world)["replayed"] == 3
    assert len(world.replays.orders) == 2, "what was not read is not taken for settled"


def test_a_letter_without_numbers_is_sent_under_its_place_in_the_message() -> None:
    world = world_of([(1, 10, 5, 1, 1), (2, BAD, 6, 2, 1)])
    (record,) = world.letters.log[AT]
    value = encode_frame(decode(record.value).drop("number"))
    world.letters.log[AT] = [replace(record, value=value)]
    refused = world.receiver.requests[2]
    replayed(world)
    assert world.receiver.requests[-1] == refused


def test_changes_without_key_fields_supersede_nothing() -> None:
    world = world_of([(1, BAD, 5, 1, 1)], [(1, 12, 7, 3, 1)])
    keyless = replace(world.of, keys=(), values=(*world.of.keys, *world.of.values))
    other = HttpSinkWorld(world.topic, 10, [], [], of=keyless)
    other.topic.partitions = [[each.clone() for each in world.topic.partitions[0]], []]
    step(other)
    other.bad = ()
    assert isinstance(other.topic.partitions[0][0], pl.DataFrame)
    assert replayed(other)["replayed"] == 1
    assert ran(other.replays.counts()) == {}


@pytest.mark.parametrize("fault", ["before", "taken"])
def test_letters_that_cannot_be_settled_in_between_are_settled_later(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letter_replays, "SETTLE_EVERY_S", 1.0)
    world = world_of(*([(n, BAD, n, n, 1)] for n in range(1, 4)))
    world.order()
    world.settling = [fault]
    with contextlib.suppress(SystemUnavailable):
        carried_out(world)
    assert (len(world.replays.orders), len(world.open_letters())) == (3, 3)
    assert carried_out(world)["replayed"] == 3
    assert ages(world) == [(n, BAD) for n in range(1, 4)]
