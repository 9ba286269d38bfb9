"""Programs whose request is cancelled end soon, in order or by signals, and release the request."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import psutil
import pytest

from fennel_core.connections.errors import SystemUnavailable
from fennel_core.offline import request_row, run_watch
from fennel_core.offline.request_row import NewRequest, OfflineRequest, RequestDefinition
from fennel_core.offline.request_store import MemoryRequests
from fennel_core.offline.run_watch import RunWatch, family_of
from fennel_core.vocab.ids import BranchName, WorkspaceId
from tests.support.polling import eventually, eventually_sync

ASKED = RequestDefinition(("F.k",), ("F.v",), "at", "default", 1, "in", 0, 0)
CHILD = "import time; print('ready', flush=True); time.sleep(60)"
IGNORES = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" + CHILD


def parent_of(child: str) -> str:
    """Return a program that ends at SIGTERM and whose child runs another one."""
    return f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"


class Away(MemoryRequests):
    """A store that cannot be read once."""

    failures = 1

    async def read(self, id_: str) -> OfflineRequest | None:
        if self.failures:
            self.failures -= 1
            raise SystemUnavailable("Postgres")
        return await super().read(id_)


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_watch, "WATCH_S", 0.01)
    monkeypatch.setattr(run_watch, "GRACE_S", 0.1)
    monkeypatch.setattr(run_watch, "TERMINATE_S", 0.3)


async def running(store: MemoryRequests) -> MemoryRequests:
    """Return the store with a request that a run has claimed."""
    place = (WorkspaceId("shop"), BranchName("main"))
    await store.add(NewRequest("q1", *place, "ada", ASKED), 1)
    await store.change("q1", request_row.claimed)
    return store


async def cancelled(store: MemoryRequests) -> None:
    await store.change("q1", request_row.cancelled)


async def has_lease(store: MemoryRequests) -> bool:
    row = await MemoryRequests.read(store, "q1")
    assert row is not None
    return row.lease_until is not None


@pytest.fixture
def program(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(  # noqa: S603  # this interpreter, and no shell
        [sys.executable, "-c", parent_of(request.param)], stdout=subprocess.PIPE
    ) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == b"ready\n"
        family = family_of(started.pid)
        assert len(family) == 2
        yield started
        for each in family:
            if each.is_running():
                each.kill()


def clock() -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("program", [CHILD, IGNORES], indirect=True, ids=["ends", "ignores"])
async def test_a_cancelled_program_ends_with_all_its_processes_and_releases_its_request(
    program: subprocess.Popen[bytes],
) -> None:
    store, ended = await running(MemoryRequests(clock)), asyncio.Event()
    family = family_of(program.pid)
    watch = asyncio.create_task(RunWatch(store, "q1", lambda: family_of(program.pid)).run(ended))
    await asyncio.sleep(0.05)  # some looks at the state
    assert program.poll() is None, "nothing was cancelled"
    await cancelled(store)
    await asyncio.to_thread(program.wait, 10)
    await eventually(lambda: not any(map(is_alive, family)), what="no process is left")
    assert await has_lease(store), "the task that started the program has not seen its end"
    ended.set()
    await watch
    assert not await has_lease(store)


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_a_program_that_ends_in_order_gets_no_signal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_watch, "GRACE_S", 5.0)
    away, ended = Away(clock), asyncio.Event()
    store = await running(away)
    signalled: list[Any] = []

    def family() -> list[psutil.Process]:
        signalled.append(1)
        return []

    watch = asyncio.create_task(RunWatch(store, "q1", family).run(ended))
    await eventually(lambda: not away.failures, what="Postgres was away")
    await cancelled(store)
    await asyncio.sleep(0.05)  # it is noticed, and the grace period has begun
    ended.set()
    await asyncio.wait_for(watch, 2)
    assert signalled == []
    assert not await has_lease(store)


async def test_a_request_that_ends_otherwise_keeps_its_lease() -> None:
    store, ended = await running(MemoryRequests(clock)), asyncio.Event()
    ended.set()
    await RunWatch(store, "q1", list).run(ended)
    assert await has_lease(store), "another run may have claimed it"


def test_a_program_that_has_ended_has_no_processes() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:  # this interpreter, and no shell
        pass
    eventually_sync(lambda: family_of(ended.pid) == [])
