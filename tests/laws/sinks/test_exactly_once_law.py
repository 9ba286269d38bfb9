"""A sink has each change of a topic once and in order per key, whatever its writers do.

Writers read batches of any length, run at once, lose responses, are refused and are abandoned. The
oracle is made of each message alone; who reads the sink by the documented rule has the dataset.
"""

import itertools
import json
import re
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from fennel_core.connections.errors import ConnectionsError
from fennel_core.sinks.changes import events_of
from fennel_core.sinks.delta_rows import DeltaForm
from fennel_core.sinks.writer import NO_ERASURES
from fennel_core.vocab.change_columns import change_columns
from tests.support.sink_world import USERS, MemoryTopic, SinkWorld, frame, shown

PARTS = 2


@st.composite
def topics(draw):
    """Partitions of messages: upserts, deletes, late rows; and earlier versions that are corrected,
    moved in time, or withdrawn.
    """
    partitions = []
    for part in range(PARTS):
        alive, number, messages = [], 0, []
        for _ in range(draw(st.integers(0, 6))):
            versions = []
            for _ in range(draw(st.integers(1, 3))):
                number += 1
                key = draw(st.integers(0, 2)) * PARTS + part
                value, at = draw(st.none() | st.integers(0, 9)), draw(st.integers(0, 5))
                kind = draw(st.sampled_from(["add", "correct", "move", "withdraw"]))
                added = (key, value, at, number)
                if alive and kind != "add":
                    old = alive.pop(draw(st.integers(0, len(alive) - 1)))
                    versions.append((*old, -1))
                    corrected = (old[0], value, *old[2:])
                    moved = (old[0], value, at, number)
                    added = {"correct": corrected, "move": moved}.get(kind)
                if added is not None:
                    versions.append((*added, 1))
                    alive.append(added)
            messages.append(versions)
        partitions.append(messages)
    return partitions


def taken(plus, minus, group):
    """Remove the pairs of additions and retractions with an equal group, and return them."""
    pairs = []
    for new in list(plus):
        old = next((each for each in minus if group(each) == group(new)), None)
        if old is not None:
            pairs.append((new, old))
            plus.remove(new)
            minus.remove(old)
    return pairs


def expected(versions):
    """Return the events of one message, by key, by the table of `sinks.changes`."""
    found = {}
    for key in sorted({v[0] for v in versions}):
        # Python's sort is stable, as is that of a frame.
        own = sorted((v for v in versions if v[0] == key), key=lambda v: v[2:4])
        plus, minus = ([v[:4] for v in own if v[4] == sign] for sign in (1, -1))
        taken(plus, minus, lambda v: v)
        pairs = taken(plus, minus, lambda v: v[2:4])
        pairs += taken(plus, minus, lambda v: v[2])
        pairs += taken(plus, minus, lambda v: v[0])
        pairs += [(new, None) for new in plus]
        events = [(key, "d", old[1], None) for old in minus]
        for new, old in sorted(pairs, key=lambda pair: pair[0][2:4]):
            before = None if old is None else old[1]
            op = "d" if new[1] is None else "c" if before is None else "u"
            events.append((key, op, before, new[1]))
        found[key] = events
    return {key: events for key, events in found.items() if events}


def replayed(records):
    """Return the row of each key that has one, by the rule of docs/connectors.md."""
    keys = {}
    for record in records:
        event = json.loads(record.value)
        source, versions = event["source"], keys.setdefault(record.key, {})
        if (gone := source["withdrawn"]) is not None:
            del versions[gone["ts_us"], gone["position"]]
        if not source["retraction"]:
            versions[source["ts_us"], source["position"]] = event["after"]
    latest = {key: versions[max(versions)] for key, versions in keys.items() if versions}
    return {json.loads(key)["user"]: row["age"] for key, row in latest.items() if row}


def current(partitions):
    """Return the value of each key that has one: that of its latest version as of now."""
    net = Counter()
    for *version, sign in itertools.chain(*itertools.chain(*partitions)):
        net[tuple(version)] += sign
    latest = {}
    for key, value, *at in (version for version, count in net.items() if count):
        latest[key] = max(latest.get(key, ([-1], None)), (at, value), key=lambda each: each[0])
    return {key: value for key, (_, value) in latest.items() if value is not None}


def documented(rows):
    """Return the row of each key that has one, by the SQL of docs/connectors.md."""
    text = (Path(__file__).parents[3] / "docs" / "connectors.md").read_text()
    (query,) = re.findall(r"```sql\n(WITH valid.*?)```", text, re.DOTALL)
    columns = [name for name in change_columns(USERS).names if name != USERS.timestamp]
    with closing(sqlite3.connect(":memory:")) as database:
        database.row_factory = sqlite3.Row
        database.execute(f"CREATE TABLE adults ({', '.join(columns)})")
        values = [
            [str(v) if hasattr(v, "tzinfo") else v for v in map(r.get, columns)] for r in rows
        ]
        marks = ", ".join("?" * len(columns))
        database.executemany(f"INSERT INTO adults VALUES ({marks})", values)  # noqa: S608  # no value
        found = database.execute(query.replace("name", "user")).fetchall()
        return {row["user"]: row["age"] for row in found}


def by_key(records):
    found = {}
    for event in shown(records):
        found.setdefault(event[0], []).append(event)
    return found


@settings(deadline=None)
@given(topics(), st.lists(st.integers(1, 3), max_size=30))
def test_rows_of_a_table_of_changes_give_the_dataset_as_of_now(partitions, lengths) -> None:
    messages = [[frame(m) for m in messages] for messages in partitions]
    reader = MemoryTopic(messages, lambda: lengths.pop() if lengths else 3).open({})
    rows = []
    while not (read := reader.read().frame).is_empty():
        batch = DeltaForm(USERS).changes(read, events_of(read, USERS), len(rows))
        rows += batch.rows.to_pylist()
    assert [row["_event"] for row in rows] == list(range(len(rows)))
    assert documented(rows) == current(partitions)


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
    assert replayed(sink.log.records) == current(partitions)
    if sink.log.positions:
        assert sink.log.positions[-1].events == len(sink.log.records)
