"""A receiver that remembers keys has each change of a topic once and in order per key.

Writers of an HTTP sink run at once and are abandoned; requests are refused, lost, answered by
nothing, or taken although the response is lost; positions cannot be written, or are, although the
response is lost. Rows that are refused for good are dead letters, once.
"""

from __future__ import annotations

import contextlib
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from fennel_core.connections.errors import ConnectionsError
from fennel_core.sinks import http
from fennel_core.sinks.errors import SinkError
from fennel_core.sinks.positions import SinkPosition
from fennel_core.sinks.writer import NO_ERASURES, KeyErasures
from fennel_core.vocab.keys import key_bytes
from tests.support.http_sink_world import BAD, PARTS, HttpSinkWorld
from tests.support.sink_world import MemoryTopic, frame


@st.composite
def topics(draw):
    """Partitions of messages with versions of keys of their own; values count up, or are `BAD`."""
    number, partitions = 100, []
    for part in range(PARTS):
        messages = []
        for _ in range(draw(st.integers(0, 5))):
            versions = []
            for _ in range(draw(st.integers(1, 5))):
                number += 1
                key = draw(st.integers(0, 2)) * PARTS + part
                value = draw(st.sampled_from([number, number, number, BAD]))
                versions.append((key, value, number, number, 1))
            messages.append(versions)
        partitions.append(messages)
    return partitions


def times(events):
    found = {}
    for event in events:
        row = event["after"] or event["before"]
        found.setdefault(row["user"], []).append(event["source"].get("ts_us"))
    return found


sending = st.lists(st.sampled_from([None, None, "lost", "after", "away"]), max_size=20)
committing = st.lists(st.sampled_from([None, None, "before", "after"]), max_size=10)
lengths = st.lists(st.integers(0, 2), max_size=20)
"""Of each partition in each read; 0: it is not read."""
orders = st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=15)


@settings(deadline=None)
@given(topics(), st.integers(1, 4), sending, committing, orders, lengths)
def test_each_change_is_taken_once_and_in_order(
    partitions, limit, sending, committing, orders, lengths
) -> None:
    messages = [[frame(m) for m in messages] for messages in partitions]
    topic = MemoryTopic(messages, lambda: lengths.pop() if lengths else 2)
    world = HttpSinkWorld(topic, limit, sending, committing)
    writers = [world.writer() for _ in range(3)]
    for number, abandoned in orders:
        try:
            writers[number].step(NO_ERASURES)
        except (ConnectionsError, SinkError):
            if abandoned:
                writers[number] = world.writer()
    sending.clear()
    lengths.clear()
    committing.clear()
    last = world.writer()
    while not last.step(NO_ERASURES).idle:
        pass
    versions = [v for part in partitions for m in part for v in m]
    want: dict[int, list[int]] = {}
    for key, value, at, *_ in versions:
        if value != BAD:
            want.setdefault(key, []).append(at)
    taken = times(world.receiver.events())
    assert {key: sorted(all_) for key, all_ in taken.items()} == want, "each once"
    # A writer that was overtaken may send what it had begun; what it sends is known by then.
    assert taken == want, "in order"
    dead = sorted(json.loads(each.event)["source"]["ts_us"] for each in world.deliveries.refused)
    assert dead == sorted(at for _, value, at, *_ in versions if value == BAD)
    if versions:
        assert world.deliveries.positions[-1].events == len(versions)
        assert not world.deliveries.positions[-1].begun


def test_a_large_message_goes_on_within_it() -> None:
    versions = [(1, n, n, n, 1) for n in range(20, 40)]
    world = HttpSinkWorld(MemoryTopic([[frame(versions)]]), 2, [*["away"], *[None] * 6], [])
    writer = world.writer()
    with contextlib.suppress(SinkError):
        writer.step(NO_ERASURES)
    position = world.deliveries.positions[-1]
    assert position.begun == {0: (0, 12)}
    assert position.next == {0: 0}
    sent = len(world.receiver.requests)
    again = world.writer()
    while not again.step(NO_ERASURES).idle:
        pass
    assert len(world.receiver.requests) == sent + 4, "what was sent is not sent again"
    assert world.deliveries.positions[-1].events == len(versions)


def test_a_message_that_is_begun_stays_so_while_others_are_read() -> None:
    large, other = [(1, n, n, n, 1) for n in range(20, 40)], [(2, 50, 50, 50, 1)]
    large[0] = (1, BAD, 20, 20, 1)
    lengths = [0, 2]
    topic = MemoryTopic([[frame(other)], [frame(large)]], lambda: lengths.pop(0) if lengths else 2)
    world = HttpSinkWorld(topic, 2, [*["away"], *[None] * 7], [])
    with contextlib.suppress(SinkError):
        world.writer().step(NO_ERASURES)
    begun = dict(world.deliveries.positions[-1].begun)
    assert list(begun) == [1]
    lengths += [2, 0]
    again = world.writer()
    again.step(NO_ERASURES)
    assert world.deliveries.positions[-1].begun == begun
    while not again.step(NO_ERASURES).idle:
        pass
    assert len(world.deliveries.refused) == 1
    assert world.deliveries.positions[-1].events == len(large) + len(other)


def test_an_erasure_within_a_message_loses_no_other_row() -> None:
    versions = [(n % 4, n, n, n, 1) for n in range(20, 32)]
    world = HttpSinkWorld(MemoryTopic([[frame(versions)]]), 5, [], ["before"])
    writer = world.writer()
    with contextlib.suppress(ConnectionsError):
        writer.step(NO_ERASURES)
    assert world.receiver.bodies, "requests were taken that no position knows"
    (key,) = key_bytes(frame([(1, 0, 0, 0, 1)]), ("user",))
    erased = KeyErasures(1, [(1, ("user",), key)])
    world.deliveries.positions.append(SinkPosition("https://a.example/users"))
    again = world.writer()
    while not again.step(erased).idle:
        pass
    others = {at for user, _, at, *_ in versions if user != 1}
    taken = times(world.receiver.events())
    assert {at for user, all_ in taken.items() if user != 1 for at in all_} == others
    deletes = [e for e in world.receiver.events() if e["op"] == "d"]
    assert [e["before"]["user"] for e in deletes] == [1]
    assert "ts_ms" not in deletes[0]


def test_requests_are_cut_by_rows_and_bytes(monkeypatch) -> None:
    monkeypatch.setattr(http, "REQUEST_BYTES", 10)
    assert list(http._sizes([b"123456"] * 3, 5)) == [1, 1, 1]
    assert list(http._sizes([b"1", b"2", b"x" * 20, b"3"], 5)) == [2, 1, 1]
    assert list(http._sizes([b"1"] * 5, 2)) == [2, 2, 1]
    assert not list(http._sizes([], 2))
