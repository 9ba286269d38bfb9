"""How often requests of an HTTP sink are tried, when a session asks whether it is the newest, and
what letters are made of.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from fennel_core.connections.errors import TransactionAborted
from fennel_core.connections.external_http import Accepted, NotSetUp, Outcome, Refused, TryAgain
from fennel_core.sinks.debezium import SinkRecord
from fennel_core.sinks.deliveries import (
    EVENT,
    NUMBER,
    LettersOf,
    MemoryDeliveryLog,
    RefusedEvent,
)
from fennel_core.sinks.errors import SinkEndpointUnavailable, SinkStopped
from fennel_core.sinks.http import (
    IN_FLIGHT,
    OWNED_S,
    PAUSES_S,
    HttpSinkLog,
    HttpSinkSession,
    SinkRequest,
)
from fennel_core.sinks.positions import SinkPosition
from fennel_core.vocab.dead_letters import message_of, origin_of, source_of
from fennel_core.vocab.ids import DatasetName, TopicName
from fennel_core.vocab.versions import decode


@dataclass
class World:
    """An endpoint with outcomes by script, and a clock that moves when a session sleeps."""

    outcomes: list[Outcome] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)
    slept_s: list[float] = field(default_factory=list)
    now_s: float = 0.0
    stopped: bool = False
    deliveries: MemoryDeliveryLog = field(default_factory=MemoryDeliveryLog)

    def send(self, body: bytes, key: str) -> Outcome:
        self.sent.append(body.decode())
        return self.outcomes.pop(0) if self.outcomes else Accepted()

    def close(self) -> None:
        """Nothing is held."""

    def sleep(self, seconds: float) -> bool:
        if seconds:
            self.slept_s.append(seconds)
        return self.stopped

    def session(self) -> HttpSinkSession:
        log = HttpSinkLog(
            "hooks/rows",
            "sink",
            "url",
            lambda: self,
            self.deliveries,
            limit=2,
            sleep=self.sleep,
            clock=lambda: self.now_s,
        )
        return log.open()


def commit(session: HttpSinkSession, *values: str, offset: int = 0) -> None:
    records = [SinkRecord(b"k", value.encode(), 0, offset) for value in values]
    session.commit(records, SinkPosition("url", {0: offset + 1}, events=offset + len(values)))


def busy(after_s: float = 0.0) -> TryAgain:
    return TryAgain("it is busy", after_s)


def test_a_request_is_tried_again_after_pauses_and_not_sooner_than_is_asked() -> None:
    world = World([busy(), busy(3.0), busy(0.1)])
    commit(world.session(), "1")
    assert world.sent == ["[1]"] * 4
    assert world.slept_s == [PAUSES_S[0], 3.0, PAUSES_S[2]]


def test_a_request_is_given_up_after_its_last_pause() -> None:
    world = World([busy()] * 9)
    with pytest.raises(SinkEndpointUnavailable, match="it is busy"):
        commit(world.session(), "1")
    assert (len(world.sent), world.slept_s) == (len(PAUSES_S) + 1, list(PAUSES_S))


def test_an_endpoint_that_asks_for_a_long_pause_is_asked_once() -> None:
    world = World([busy(60.0)])
    with pytest.raises(SinkEndpointUnavailable) as failed:
        commit(world.session(), "1")
    assert failed.value.retry_after_s == 60.0
    assert (len(world.sent), world.slept_s) == (1, [])


def test_no_other_partition_is_sent_while_the_endpoint_asks_to_wait() -> None:
    world = World([busy(60.0)] * 99)
    parts = range(4 * IN_FLIGHT)
    records = [SinkRecord(b"k", b"%d" % part, part, 0) for part in parts]
    with pytest.raises(SinkEndpointUnavailable):
        world.session().commit(records, SinkPosition("url", dict.fromkeys(parts, 1)))
    assert len(world.sent) <= IN_FLIGHT


def test_the_longest_pause_that_a_partition_is_asked_for_counts() -> None:
    @dataclass
    class Divided(World):
        def send(self, body: bytes, key: str) -> Outcome:
            barrier.wait(10)
            return NotSetUp("no such path") if body == b"[0]" else busy(60.0)

    barrier = threading.Barrier(2)
    records = [SinkRecord(b"k", b"%d" % part, part, 0) for part in range(2)]
    with pytest.raises(SinkEndpointUnavailable) as failed:
        Divided().session().commit(records, SinkPosition("url", {0: 1, 1: 1}))
    assert failed.value.retry_after_s == 60.0


def test_an_endpoint_that_is_not_set_up_is_asked_once() -> None:
    world = World([NotSetUp("no such path")])
    with pytest.raises(SinkEndpointUnavailable, match="no such path"):
        commit(world.session(), "1")
    assert world.sent == ["[1]"]


def test_a_sink_that_ends_sends_nothing_more() -> None:
    world = World(stopped=True)
    with pytest.raises(SinkStopped):
        commit(world.session(), "1")
    assert world.sent == []


def test_what_was_sent_before_a_failure_is_in_the_position() -> None:
    world = World([Accepted(), Refused("no"), Refused("no"), Accepted(), NotSetUp("gone")])
    with pytest.raises(SinkEndpointUnavailable):
        commit(world.session(), "1", "2", "3", "4", "5")
    position = world.deliveries.positions[-1]
    assert (position.next, position.begun, position.events) == ({0: 0}, {0: (0, 4)}, 4)
    assert [(e.event, e.number) for e in world.deliveries.refused] == [(b"3", 2)]


@pytest.mark.parametrize("stored", [True, False])
def test_a_position_within_a_step_knows_the_last_rewind(stored: bool) -> None:
    world = World([Accepted(), NotSetUp("gone")])
    if stored:
        world.deliveries.positions.append(SinkPosition("url", rewound=7))
    records = [SinkRecord(b"k", value, 0, 0) for value in (b"1", b"2", b"3")]
    with pytest.raises(SinkEndpointUnavailable):
        world.session().commit(records, SinkPosition("url", {0: 1}, events=3, rewound=7))
    position = world.deliveries.positions[-1]
    assert (position.begun, position.rewound) == ({0: (0, 2)}, 7)


def test_a_session_that_was_silent_asks_before_it_sends() -> None:
    world = World()
    first = world.session()
    commit(first, "1")
    world.session()
    world.now_s += OWNED_S + 1
    with pytest.raises(TransactionAborted):
        commit(first, "2", offset=1)
    assert world.sent == ["[1]"]


def test_a_change_that_is_sent_again_asks_always() -> None:
    world = World()
    first = world.session()
    assert first.send_again(SinkRequest(0, 7, 2, (b"1",))) is None
    world.session()
    with pytest.raises(TransactionAborted):
        first.send_again(SinkRequest(0, 7, 2, (b"1",)))
    assert world.sent == ["[1]"]
    with pytest.raises(AssertionError, match="over"):
        first.send_again(SinkRequest(0, 7, 2, (b"1",)))


def test_a_change_that_is_refused_again_has_its_place() -> None:
    session = World([Refused("still no")]).session()
    refused = session.send_again(SinkRequest(1, 7, 2, (b"1",)))
    assert refused == RefusedEvent(b"1", 1, 7, "still no", 2)
    assert session.send_again(SinkRequest(1, 7, 2, (b"1",))) is None, "the session goes on"


def refused(part: int, offset: int | None, reason: str, number: int) -> RefusedEvent:
    return RefusedEvent(b"%d" % number, part, offset, reason, number)


def test_changes_of_a_message_with_one_reason_are_a_letter() -> None:
    of = LettersOf(TopicName("s.sink.a.1"), "hooks/rows", DatasetName("Users"))
    events: Sequence[RefusedEvent] = [
        refused(5, 7, "no", 1),
        refused(5, 7, "never", 2),
        refused(5, 7, "no", 4),
        refused(5, 8, "no", 0),
        refused(0, None, "no", 3),
    ]
    found = [
        (
            record.partition,
            origin_of(record.headers).reason,
            message_of(origin_of(record.headers).source),
            decode(record.value)[NUMBER].to_list(),
        )
        for record in of.records(TopicName("s.dead.a.1"), 4, events)
    ]
    assert found == [
        (1, "no", (5, 7), [1, 4]),
        (1, "never", (5, 7), [2]),
        (1, "no", (5, 8), [0]),
        (0, "no", None, [3]),
    ]
    (first, *_) = of.records(TopicName("s.dead.a.1"), 4, events)
    assert decode(first.value)[EVENT].to_list() == ["1", "4"]
    assert (origin_of(first.headers).sink, origin_of(first.headers).writer) == (of.title, of.sink)


def test_the_place_of_a_message_is_read_back() -> None:
    for message in ((0, 0), (3, 2**40)):
        assert message_of(source_of(*message)) == message
    assert message_of(source_of(2, None)) is None
    with pytest.raises(ValueError, match="names no message"):
        message_of("Kafka topic `orders`[0] at 3")


def test_a_key_names_the_place_of_a_request_and_its_content() -> None:
    request = SinkRequest(1, 7, 2, (b"1",))
    others = [
        SinkRequest(0, 7, 2, (b"1",)),
        SinkRequest(1, 8, 2, (b"1",)),
        SinkRequest(1, 7, 3, (b"1",)),
        SinkRequest(1, 7, 2, (b"2",)),
        SinkRequest(1, None, 2, (b"1",)),
    ]
    keys = {each.key("sink") for each in (request, *others)} | {request.key("other")}
    assert len(keys) == len(others) + 2
    assert SinkRequest(1, 7, 2, (b"1",)).key("sink") == request.key("sink")
