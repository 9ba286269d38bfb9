"""Changes of dead letters that are sent again come once, and never behind a later one of their key.

An endpoint refuses rows, and takes most of them later. Writers of a sink run at once and are
abandoned, new changes arrive and keys are erased, also while a replay looks for its changes; orders
are given again and again, requests and responses are lost, and letters and orders cannot be
settled. What the receiver has in the end is compared with what the topic has.
"""

from __future__ import annotations

import contextlib
import json

from hypothesis import example, given, settings
from hypothesis import strategies as st

from fennel_core.connections.errors import ConnectionsError
from fennel_core.sinks.errors import SinkError
from fennel_core.sinks.writer import KeyErasures
from fennel_core.vocab.keys import key_bytes
from fennel_core.vocab.versions import decode
from tests.support.http_sink_world import BAD, PARTS, HttpSinkWorld
from tests.support.sink_world import MemoryTopic, frame

WORSE = 8
"""Rows with this value are refused for good."""
KEYS = 3
"""Of each partition."""
faults = st.lists(st.sampled_from([None, None, "lost", "after", "away"]), max_size=12)
commits = st.lists(st.sampled_from([None, "before", "after"]), max_size=6)
settles = st.lists(st.sampled_from([None, "before", "after", "taken"]), max_size=8)
ends = st.lists(st.sampled_from([None, "before", "after"]), max_size=8)
rows = st.tuples(st.integers(0, KEYS - 1), st.sampled_from([0, 0, BAD, BAD, WORSE]))
messages = st.tuples(st.integers(0, PARTS - 1), st.lists(rows, min_size=1, max_size=4))
topics = st.lists(messages, min_size=1, max_size=8)
actions = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["step", "replay", "abandon"]), st.integers(0, 1)),
        st.tuples(st.just("order"), st.just(0)),
        st.tuples(st.just("erase"), st.integers(0, KEYS * PARTS - 1)),
        st.tuples(st.just("log"), messages),
    ),
    max_size=14,
)
intrusions = st.lists(st.sampled_from(["nothing", "step", "overtake", "erase"]), max_size=5)


class Run:
    """One world, what was logged in it, and what was erased."""

    def __init__(self, limit: int) -> None:
        self.world = HttpSinkWorld(MemoryTopic([[] for _ in range(PARTS)]), limit, [], [])
        self.world.bad = (BAD, WORSE)
        self.versions: list[tuple[int, int, int]] = []
        """Key, value and number, which is the event time, in the order of the topic."""
        self.erased: list[int] = []
        self.known: frozenset[int] = frozenset()
        """The keys that were erased before the last action."""
        self.deleted: set[int] = set()
        """The erased keys whose deletes were taken."""
        self.writers = [self.world.writer() for _ in range(2)]
        self.world.receiver.answers = self.answer

    def log(self, part: int, rows: list[tuple[int, int]]) -> None:
        found = []
        for key, value in rows:
            number = 100 + len(self.versions)
            self.versions.append((key * PARTS + part, value or number, number))
            found.append((key * PARTS + part, value or number, number, number, 1))
        self.world.topic.partitions[part].append(frame(found))

    def erase(self, key: int) -> None:
        if key not in self.erased:
            self.erased.append(key)
            (own,) = key_bytes(frame([(key, 0, 0, 0, 1)]), ["user"])
            known = [*self.world.erasures.keys, (len(self.erased), ("user",), own)]
            self.world.erasures = KeyErasures(len(self.erased), known)

    def answer(self, key: str, body: bytes) -> tuple[int, dict[str, str]] | None:
        answer = self.world.refuses(key, body)
        for event in json.loads(body):
            if event["after"] is not None:
                user = event["after"]["user"]
                assert user not in self.known | self.deleted, "rows of erased keys are not sent"
            elif answer is None:
                self.deleted.add(event["before"]["user"])
        return answer

    def step(self, number: int) -> None:
        self.writers[number].step(self.world.erasures)

    def replay(self, number: int) -> None:
        if self.writers[number].session is None:
            return
        try:
            self.world.replay(self.writers[number])
        except (ConnectionsError, SinkError):
            self.writers[number] = self.world.writer()
            raise

    def intrude(self, what: str) -> None:
        """Let something happen while a replay has looked for its changes, or does."""
        if what == "overtake":
            for user in self.waiting():
                self.log(user % PARTS, [(user // PARTS, 0)])
        if what in {"step", "overtake"}:
            with contextlib.suppress(ConnectionsError, SinkError):
                self.world.writer().step(self.world.erasures)
        elif what == "erase" and self.versions:
            self.erase(self.versions[-1][0])

    def waiting(self) -> list[int]:
        """Return the keys of changes of open letters."""
        return sorted({json.loads(text)["after"]["user"] for text in self.left()})

    def left(self) -> set[str]:
        """Return the changes of open letters. One that an erasure has repeated has two letters."""
        return {
            text for letter in self.world.open_letters() for text in decode(letter.value)["event"]
        }

    def act(self, what: str, of) -> None:
        self.known = frozenset(self.erased)
        match what:
            case "step":
                self.step(of)
            case "replay":
                self.replay(of)
            case "abandon":
                self.writers[of] = self.world.writer()
            case "order":
                self.world.order()
            case "erase":
                self.erase(of)
            case "log":
                self.log(*of)

    def finish(self) -> None:
        """Let everything end without faults."""
        world, self.known = self.world, frozenset(self.erased)
        for script in (world.sending, world.committing, world.settling, world.ending):
            script.clear()
        world.meanwhile = lambda: None
        last = world.writer()
        while not last.step(world.erasures).idle:
            pass
        for _ in range(3):  # What is refused again for another reason is another letter.
            world.order()
            while world.replays.orders:
                world.replay(last)

    def check(self) -> None:
        events = [e for e in self.world.receiver.events() if e["source"].get("ts_us") is not None]
        taken = [(e["after"]["user"], e["source"]["ts_us"]) for e in events]
        # A request without the rows of a key that was erased since is another request.
        assert self.erased or len(set(taken)) == len(taken), "each once"
        for key in range(KEYS * PARTS):
            own = [at for user, at in taken if user == key]
            assert own == sorted(own), "in order"
            logged = [(at, value) for user, value, at in self.versions if user == key]
            if logged and key not in self.erased and logged[-1][1] != WORSE:
                assert own[-1] == logged[-1][0], "the last change of each key is there"
            assert {at for at, value in logged if value == WORSE}.isdisjoint(own)
            if key not in self.erased:
                assert set(own) >= {at for at, value in logged if value not in {BAD, WORSE}}
        # What is left open is refused for good, and is the last change of its key.
        last = {key: value for key, value, _ in self.versions}
        for letter in self.world.open_letters():
            assert "422" in letter.origin.reason
            assert letter.origin.sink == "hooks/users"
        assert len(self.left()) <= sum(
            value == WORSE for key, value in last.items() if key not in self.erased
        ), "each letter has an end"


CHANGED = [("step", 0), ("log", (1, [(0, 0), (1, 0)])), ("step", 0), ("erase", 1)]
"""A request of two rows is taken, that is not noted, and the key of one is erased."""

REPEATED = [
    *[("log", (0, [(0, 0), (2, WORSE), (0, 0), (0, 0)])), ("step", 0), ("replay", 0)],
    *[("step", 0), ("erase", 0), ("step", 0)],
]
"""The same with a row that is refused."""


@settings(deadline=None)
@example([(0, [(0, 0)])], 1, [("erase", 0), *CHANGED], [], ["before", None], [], [], [])
@example(
    *([(0, [(0, 0), (0, 0)]), (0, [(0, 0)])], 2, REPEATED),
    *([None] * 6 + ["away"], [None] * 5 + ["after"], [], [], []),
)
@given(topics, st.integers(1, 4), actions, faults, commits, settles, ends, intrusions)
def test_replayed_changes_come_once_and_never_behind_later_ones(
    topic, limit, acts, sending, committing, settling, ending, intrusions
) -> None:
    run = Run(limit)
    for message in topic:
        run.log(*message)
    while not run.writers[0].step(run.world.erasures).idle:
        pass
    run.world.bad = (WORSE,)
    run.world.order()
    world = run.world
    world.sending, world.committing = sending, committing
    world.settling, world.ending = settling, ending
    world.meanwhile = lambda: run.intrude(intrusions.pop() if intrusions else "nothing")
    for what, of in acts:
        with contextlib.suppress(ConnectionsError, SinkError):
            run.act(what, of)
    run.finish()
    run.check()
