"""The responses of a slot whose local state proves damaged during a read."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest

from fennel_core.connections.frames import RemoteError
from fennel_core.connections.slot_protocol import RefusalCode
from fennel_core.engine.service import SlotService
from fennel_core.engine.supervisor import HostedPartition
from fennel_core.hangar.store import HangarCorrupt
from fennel_core.vocab.ids import Epoch, JobId, PartitionIndex

KEY = (JobId("job"), PartitionIndex(0))


class DamagedStep:
    """A served step on which every read fails on a damaged block."""

    def lookup(self, reads: Any, keys: Any, as_of: Any) -> Any:
        raise HangarCorrupt("block checksum mismatch")

    def row_pages(self, reads: Any, as_of: Any, limit: int) -> Any:
        raise HangarCorrupt("block checksum mismatch")
        yield []


@dataclass
class Job:
    id: JobId = KEY[0]


@dataclass
class Runner:
    """The attributes of a runner that the service uses."""

    status: str = "running"
    hangar: None = None
    part: PartitionIndex = KEY[1]
    job: Job = field(default_factory=Job)
    step: DamagedStep = field(default_factory=DamagedStep)
    discarded: list[str] = field(default_factory=list)

    def discard_state(self, why: str) -> None:
        self.discarded.append(why)

    def view(self) -> Any:
        return nullcontext(self.hangar)


class Supervisor:
    def __init__(self, runner: Any) -> None:
        self.hosted = {KEY: HostedPartition(Epoch(1), runner=runner)}

    def lease_is_live(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("op", "argument"),
    [
        ("lookup", {"items": [[*KEY, [b"k"], 0]]}),
        ("scan", {"job": KEY[0], "part": KEY[1], "as_of": 0, "limit": 9}),
    ],
)
async def test_a_read_of_a_damaged_block_rebuilds_the_state_and_is_refused_for_a_retry(
    op: str, argument: Any
) -> None:
    runner = Runner()
    supervisor: Any = Supervisor(runner)
    unused: Any = None
    with pytest.raises(RemoteError, match="local state is damaged") as refused:
        await SlotService(supervisor, unused, unused)(op, argument)
    assert refused.value.remote_code == RefusalCode.NOT_OWNER
    assert runner.discarded == ["block checksum mismatch"]
