"""A sink has each change of a topic once and in order per key, whatever its writers do.

Writers read batches of any length, run at once, lose responses, are refused and are abandoned. The
oracle is made of each message alone.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from fennel_core.connections.errors import ConnectionsError
from fennel_core.sinks.writer import NO_ERASURES
from tests.support.sink_world import MemoryTopic, SinkWorld, frame, shown

PARTS = 2


@st.composite
def topics(draw):
    """Partitions of messages: upserts, deletes, and corrections of earlier versions."""
    partitions = []
    for part in range(PARTS):
        alive, number, messages = [], 0, []
        for _ in range(draw(st.integers(0, 6))):
            versions = []
            for _ in range(draw(st.integers(1, 3))):
                number += 1
                key = draw(st.integers(0, 2)) * PARTS + part
                value = draw(st.none() | st.integers(0, 9))
                if alive and draw(st.booleans()):
                    old = alive.pop(draw(st.integers(0, len(alive) - 1)))
                    versions.append((*old, -1))
                    added = (old[0], value, old[2], old[3])
                else:
                    added = (key, value, draw(st.integers(0, 5)), number)
                versions.append((*added, 1))
                alive.append(added)
            messages.append(versions)
        partitions.append(messages)
    return partitions


def expected(versions):
    """Return the events of one message, by key, by the table of `sinks.changes`."""
    found = {}
    for key in sorted({v[0] for v in versions}):
        own = [v for v in versions if v[0] == key]
        groups = {}
        for _, value, at, position, sign in own:
            plus, minus = groups.setdefault(at, ([], []))
            (plus if sign > 0 else minus).append((position, value))
        removals, additions = [], []
        for at in sorted(groups):
            # Python's sort is stable, as is that of a frame.
            plus, minus = (sorted(side, key=lambda each: each[0]) for side in groups[at])
            for n in range(max(len(plus), len(minus))):
                new = plus[n] if n < len(plus) else None
                old = minus[n] if n < len(minus) else None
                if new == old:
                    continue
                before = None if old is None else old[1]
                after = None if new is None else new[1]
                if after is not None:
                    event = [(key, "c" if before is None else "u", before, after)]
                elif new is None and before is None:
                    continue
                else:
                    event = [(key, "d", before, None), (key, None)]
                (removals if new is None else additions).append(((at, (new or old)[0], n), event))
        for side in (removals, additions):
            for _, event in sorted(side, key=lambda each: each[0]):
                found.setdefault(key, []).extend(event)
    return found


def by_key(records):
    found = {}
    for event in shown(records):
        found.setdefault(event[0], []).append(event)
    return found


faults = st.lists(st.sampled_from([None, None, "before", "after"]), max_size=12)
orders = st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=20)


@settings(deadline=None)
@given(topics(), faults, orders, st.lists(st.integers(0, 3), max_size=30))
def test_each_change_is_there_once_and_in_order(partitions, faults, orders, lengths) -> None:
    messages = [[frame(m) for m in messages] for messages in partitions]
    topic = MemoryTopic(messages, lambda: lengths.pop() if lengths else 3)
    sink = SinkWorld(topic, fault=lambda: faults.pop() if faults else None)
    writers = [sink.writer() for _ in range(3)]
    for number, abandoned in orders:
        try:
            writers[number].step(NO_ERASURES)
        except ConnectionsError:
            if abandoned:
                writers[number] = sink.writer()
    faults.clear()
    lengths.clear()
    last = sink.writer()
    while not last.step(NO_ERASURES).idle:
        pass
    want = {}
    for part in partitions:
        for versions in part:
            for key, events in expected(versions).items():
                want.setdefault(key, []).extend(events)
    assert by_key(sink.log.records) == want
    if sink.log.positions:
        written = [e for e in shown(sink.log.records) if len(e) > 2]
        assert sink.log.positions[-1].events == len(written)
