"""Reads of a slot: long ones give way to everything else and still see one state; they go on
without a live lease, and end when another slot owns the partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import pytest
import structlog

from fennel_core.connections.frames import RemoteError
from fennel_core.connections.slot_protocol import RefusalCode
from fennel_core.engine import service as service_module
from fennel_core.engine.service import SLICE_KEYS, SlotService
from fennel_core.engine.state_progress import PartitionState
from fennel_core.engine.supervisor import HostedPartition
from fennel_core.hangar.memory import MemoryHangar
from fennel_core.hangar.store import WriteBatch
from fennel_core.operators.gradual import Gradual
from fennel_core.operators.step import GradualLookupStep, LookupStep, Outcome, StateReader
from fennel_core.vocab.ids import Epoch, JobId, Offset, PartitionIndex

KEY = (JobId("job"), PartitionIndex(0))
PIECES = 7
KEYS = [b"%04d" % n for n in range(10 * SLICE_KEYS)]


class PlainStep:
    """The value of a key is its row."""

    def lookup(
        self, reads: StateReader, keys: Sequence[bytes], as_of: Sequence[int]
    ) -> list[bytes | None]:
        return reads.get_many(keys)

    def row_pages(
        self, reads: StateReader, as_of: int, limit: int
    ) -> Iterator[list[tuple[bytes, bytes]]]:
        start = b""
        while page := reads.scan(start, b"\xff", limit=SLICE_KEYS):
            yield page
            start = page[-1][0] + b"\0"


class LargeKeyStep(GradualLookupStep):
    """A step whose keys are so large that each is read in pieces."""

    def lookup_gradually(
        self, reads: StateReader, keys: Sequence[bytes], as_of: Sequence[int]
    ) -> Gradual[list[bytes | None]]:
        found = []
        for _ in range(PIECES):
            found = reads.get_many(keys)
            yield
        return found


@dataclass
class Job:
    id: JobId = KEY[0]


class Runner:
    """The attributes of a runner that reads use, over a state of equal values."""

    def __init__(self) -> None:
        self.hangar = MemoryHangar()
        self.hangar.write(WriteBatch(dict.fromkeys(KEYS, b"0")))
        self.state = PartitionState(self.hangar, Epoch(1))
        self.status, self.part, self.job = "running", KEY[1], Job()
        self.step: LookupStep = PlainStep()

    def view(self) -> AbstractContextManager[StateReader]:
        return self.state.view()

    async def iterate(self, value: bytes) -> None:
        """Apply an iteration that changes every key, deletes one and adds another."""
        puts = dict.fromkeys([*KEYS[1:], b"0000+" + value], value)
        await self.state.apply(1, Outcome(puts, frozenset(KEYS[:1])), 0, {}, Offset(0))


@dataclass
class Supervisor:
    hosted: dict[Any, HostedPartition]
    live: bool = True

    def lease_is_live(self) -> bool:
        return self.live


@dataclass
class World:
    runner: Runner = field(default_factory=Runner)

    def __post_init__(self) -> None:
        self.supervisor = Supervisor({KEY: HostedPartition(Epoch(1), runner=self.runner)})  # type: ignore[arg-type]  # has what reads use
        unused: Any = None
        self.service = SlotService(self.supervisor, unused, unused)  # type: ignore[arg-type]  # as above

    def start(self, op: str) -> asyncio.Task[Any]:
        argument = {
            "lookup": {"items": [[*KEY, KEYS, 0]]},
            "scan": {"job": KEY[0], "part": KEY[1], "as_of": 0, "limit": 1000},
        }[op]
        return asyncio.create_task(self.service(op, argument))


@pytest.fixture(autouse=True)
def every_step_is_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "SLICE_S", 0.0)


@pytest.mark.parametrize("op", ["lookup", "scan"])
async def test_a_long_read_gives_way_to_the_writer_and_sees_no_half_iteration(op: str) -> None:
    world = World()
    reading = world.start(op)
    turns = 0
    while not reading.done():
        await asyncio.sleep(0)
        turns += 1
        await world.runner.iterate(b"%d" % turns)
    assert turns >= len(KEYS) / SLICE_KEYS, "each slice is a turn"
    rows = reading.result()["rows"]
    shown = rows[0] if op == "lookup" else [row for _, row in rows]
    assert shown == [b"0"] * len(KEYS), "the state at its beginning"
    assert not world.runner.state._views, "a view ends with its read"


async def test_a_read_of_one_large_key_gives_way_between_its_pieces_and_sees_one_state() -> None:
    world = World()
    world.runner.step = LargeKeyStep()
    reading = asyncio.create_task(world.service("lookup", {"items": [[*KEY, KEYS[:1], 0]]}))
    turns = 0
    while not reading.done():
        await asyncio.sleep(0)
        turns += 1
        await world.runner.iterate(b"%d" % turns)
    assert turns >= PIECES
    assert reading.result()["rows"] == [[b"0"]], "the state at its beginning"


async def test_a_read_of_one_large_key_is_refused_when_its_runner_ends_between_its_pieces() -> None:
    world = World()
    world.runner.step = LargeKeyStep()
    reading = asyncio.create_task(world.service("lookup", {"items": [[*KEY, KEYS[:1], 0]]}))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    world.supervisor.hosted[KEY] = HostedPartition(Epoch(2), runner=Runner())  # type: ignore[arg-type]  # as above
    with pytest.raises(RemoteError) as refused:
        await reading
    assert refused.value.remote_code == RefusalCode.NOT_OWNER


@pytest.mark.parametrize("op", ["lookup", "scan"])
async def test_a_cancelled_read_ends_between_two_slices(op: str) -> None:
    world = World()
    reading = world.start(op)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert not world.runner.state._views


@pytest.mark.parametrize("op", ["lookup", "scan"])
async def test_a_read_is_refused_when_its_runner_ends_in_between(op: str) -> None:
    world = World()
    reading = world.start(op)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    world.supervisor.hosted[KEY] = HostedPartition(Epoch(2), runner=Runner())  # type: ignore[arg-type]  # as above
    with pytest.raises(RemoteError) as refused:
        await reading
    assert refused.value.remote_code == RefusalCode.NOT_OWNER


@pytest.mark.parametrize("op", ["lookup", "scan"])
async def test_reads_go_on_and_are_marked_when_the_lease_has_ended(op: str) -> None:
    world = World()
    assert (await world.start(op))["stale"] is False
    world.supervisor.live = False
    assert (await world.start(op))["stale"] is True
    world.supervisor.hosted[KEY].lost = True
    with pytest.raises(RemoteError) as refused:
        await world.start(op)
    assert refused.value.remote_code == RefusalCode.NOT_OWNER


@pytest.mark.parametrize(
    ("op", "argument"),
    [("positions", {"items": [KEY]}), ("wait", {"items": [[*KEY, {}]], "timeout_ms": 10})],
)
async def test_positions_and_waits_need_a_live_lease(op: str, argument: Any) -> None:
    world = World()
    world.supervisor.live = False
    with pytest.raises(RemoteError, match="lease") as refused:
        await world.service(op, argument)
    assert refused.value.remote_code == RefusalCode.NOT_OWNER


async def test_a_step_that_holds_the_slot_is_logged_with_its_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service_module, "LONG_STEP_S", -1.0)
    with structlog.testing.capture_logs() as logs:
        await World().service("lookup", {"items": [[*KEY, KEYS[:1], 0]]})
    assert [(each["job"], each["part"], each["keys"]) for each in logs] == [(*KEY, 1)]
