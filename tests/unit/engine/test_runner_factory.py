"""The runner factory closes every store that it opened, also for a cancelled caller."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any, cast

from fennel_core.engine.iteration import JobLogic
from fennel_core.engine.memory_broker import MemoryBroker, MemoryLog
from fennel_core.engine.runner import Runner
from fennel_core.engine.runner_factory import RocksStores, SingleThreadPool, SlotRunnerFactory
from fennel_core.engine.state_folders import StateFolders
from fennel_core.hangar.store import Hangar
from fennel_core.vocab.ids import Epoch, JobId, PartitionIndex
from tests.support.runner_world import LIMITS, make_job

JOB, PART = JobId("job"), PartitionIndex(0)


class BusyWorker:
    """A slot's worker thread that is busy until `free` is called."""

    def __init__(self) -> None:
        self.pool, self._free = SingleThreadPool(), threading.Event()

    def take(self) -> asyncio.Task[bool]:
        return asyncio.create_task(self.pool.run(self._free.wait))

    def free(self) -> None:
        self._free.set()


def runner_over(hangar: Hangar) -> Runner:
    return Runner(
        make_job(),
        PART,
        Epoch(1),
        JobLogic(None, None, 1, None),
        hangar,
        MemoryBroker(MemoryLog()),
        SingleThreadPool(),
        LIMITS,
    )


async def test_a_cancelled_runner_closes_its_store_for_the_next_owner(
    tmp_path: Path,
) -> None:
    stores, busy, unused = RocksStores(1 << 20), BusyWorker(), cast(Any, None)
    folders = StateFolders(tmp_path)
    runner_factory = SlotRunnerFactory(
        unused, unused, stores, folders, unused, unused, unused, unused, LIMITS, busy.pool, unused
    )
    runner = runner_over(stores.open(folders.create((JOB, PART), Epoch(1))))
    other = busy.take()
    closing = asyncio.create_task(runner_factory.close(runner))
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    busy.free()
    await other
    held = await busy.pool.run(lambda: folders.take_over((JOB, PART), Epoch(1)))
    assert held is not None
    again = stores.open(held)
    again.close()
    assert runner.hangar is not again, (
        "a reference to the runner remains, as in a traceback or a cycle"
    )
