"""Calls and the calls after them when the process below dies, hangs or runs out of memory."""

import asyncio
import os
import socket
import subprocess
import time
from pathlib import Path

import pyarrow as pa
import pytest

from fennel_core.executors import client as client_module
from fennel_core.executors import launch, protocol
from fennel_core.executors.calls import ExtractCall, WarmCall
from fennel_core.executors.client import Callbacks, Executors
from fennel_core.executors.errors import (
    CodeImportFailed,
    ExecutorCrashed,
    ExecutorOutOfMemory,
    ExecutorTimeout,
    ExecutorUnavailable,
    UserCodeFailed,
)
from fennel_core.executors.protocol import TS
from fennel_core.settings.model import Settings
from fennel_core.vocab.dtypes import Field, Int
from fennel_core.wire.pycode import PyCode
from tests.support.executors import CLIENT_PYTHON, running_host
from tests.support.polling import eventually

IMPORTS = "import os, time, ctypes, threading\nimport pandas as pd\n"
MIB = 1 << 20
PATIENT_MS = 10_000
"""For calls that a busy machine may delay."""
PAUSE_S = 0.1
"""`router.DISRUPTION_PAUSE_S`; that module needs the client's environment."""


def calling(body: str, module_level: str = "") -> ExtractCall:
    text = (
        f"{module_level}\ndef run(ts, given):\n    {body}\n    return pd.Series(given + "
        "1, name='F.out')\n"
    )
    return ExtractCall(
        PyCode("run", "", "", text, IMPORTS, (), ()),
        "F",
        "e",
        (Field("F.given", Int()),),
        (Field("F.out", Int()),),
        (),
    )


ONE = pa.table({TS: pa.array([0], pa.timestamp("us", "UTC")), "F.given": [1]})
FINE = calling("pass")


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    """One worker per workspace, so that the next call must meet the replacement."""
    with running_host(
        tmp_path_factory.mktemp("ex"),
        executor_processes=1,
        executor_memory_limit_bytes=512 * MIB,
        executor_calls_per_process=50,
    ) as path:
        yield path


@pytest.fixture
async def executors(one_process: Path):
    async with Executors(one_process, time_limit_ms=1_000) as client:
        yield client


async def succeeds(executors: Executors) -> bool:
    return (await executors.run(FINE, ONE)).to_pydict() == {"F.out": [2]}


@pytest.mark.parametrize(
    ("body", "error", "text"),
    [
        ("os._exit(3)", ExecutorCrashed, "exited with status 3"),
        ("ctypes.string_at(0)", ExecutorCrashed, "SIGSEGV"),
        ("time.sleep(30)", ExecutorTimeout, "longer than its limit of 1000 ms"),
        ("bytearray(4 << 30)", ExecutorOutOfMemory, "ran out of memory"),
        ("1 / 0", UserCodeFailed, "division by zero"),
        ("raise SystemExit(1)", UserCodeFailed, "failed to run with error: 1"),
    ],
)
async def test_the_call_fails_with_its_reason_and_the_next_one_succeeds(
    executors, body, error, text
):
    with pytest.raises(error, match=text):
        await executors.run(calling(body), ONE)
    assert await succeeds(executors)


async def test_a_failed_load_is_reported_and_retried(executors):
    call = calling("pass", module_level="import a_package_nobody_has")
    for _ in range(2):
        with pytest.raises(CodeImportFailed, match="No module named 'a_package_nobody_has'"):
            await executors.run(call, ONE)
    assert await succeeds(executors)


async def test_a_cancelled_call_frees_its_process(executors):
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(executors.run(calling("time.sleep(0.9)"), ONE), 0.1)
    async with asyncio.timeout(0.5):
        assert await succeeds(executors)


LOWERED = "(os.getpriority(os.PRIO_PROCESS, 0) == 15)"


async def test_a_long_call_gives_way_to_short_ones(executors: Executors) -> None:
    """It returns when its priority has been lowered. Only root can raise it again."""
    body = f"while not {LOWERED}: pass"
    await executors.run(calling(body), ONE, timeout_ms=PATIENT_MS)
    if os.getuid() == 0:
        short = calling(f"given = given + {LOWERED}")
        # The next call may be as long: it starts where the last one ended.
        for inherited in (1, 0):
            answer = await executors.run(short, ONE, timeout_ms=PATIENT_MS)
            assert answer.to_pydict() == {"F.out": [2 + inherited]}


async def test_a_call_that_waits_is_not_a_long_one(executors: Executors) -> None:
    """On a busy machine every call waits; a lower priority would make the next one wait, too."""
    workspace = Callbacks(workspace="waits")
    for body in ("time.sleep(0.2)", "pass"):
        call = calling(f"{body}\n    given = given + {LOWERED}")
        answer = await executors.run(call, ONE, callbacks=workspace, timeout_ms=PATIENT_MS)
        assert answer.to_pydict() == {"F.out": [2]}


def test_executors_whose_owner_has_ended_meanwhile_leave_nothing_behind(tmp_path: Path) -> None:
    folder, (owner, owned) = tmp_path / "folder", socket.socketpair()
    folder.mkdir()
    owner.close()
    settings = Settings(executor_python=CLIENT_PYTHON, executor_processes=1)
    limits = launch.ExecutorLimits.of(settings)
    variables = launch.environment(limits, folder / "executors.sock", os.environ)
    variables[protocol.OWNER_ENV] = str(owned.fileno())
    ended = subprocess.run(  # noqa: S603  # a fixed list of arguments, and no shell
        launch.command(limits),
        env=variables,
        cwd=tmp_path,
        pass_fds=(owned.fileno(),),
        timeout=60,
        check=False,
    )
    owned.close()
    assert ended.returncode == 0
    assert not folder.exists()


async def test_code_that_ends_its_processes_is_paused_and_no_other_workspace(
    executors: Executors,
) -> None:
    """Otherwise a workspace could keep the machine busy with the start of processes."""
    ends, hostile = calling("os._exit(1)"), Callbacks(workspace="hostile")

    async def started() -> int:
        return (await executors.report()).started

    before, began = await started(), time.monotonic()
    for _ in range(5):
        with pytest.raises(ExecutorCrashed):
            await executors.run(ends, ONE, callbacks=hostile)
        assert await succeeds(executors)
    # At least, on any machine: each call after the first one has waited.
    assert time.monotonic() - began >= 4 * PAUSE_S
    assert await started() - before <= 5 + 1, "one for each, and one for the other workspace"


async def test_cancelled_calls_that_wait_leave_the_queue(executors: Executors) -> None:
    long = asyncio.create_task(executors.run(calling("time.sleep(0.3)"), ONE))
    waiting = [asyncio.create_task(executors.run(FINE, ONE)) for _ in range(10)]

    async def queued(count: int) -> bool:
        return (await executors.report()).waiting == count

    await eventually(lambda: queued(10))
    before = (await executors.report()).ended["unreachable"]
    for each in waiting:
        each.cancel()
    await eventually(lambda: queued(0))
    await long
    assert await succeeds(executors)
    assert (await executors.report()).ended["unreachable"] == before


async def test_a_call_without_a_free_process_in_time_is_unavailable(executors):
    long = asyncio.create_task(executors.run(calling("time.sleep(0.8)"), ONE))
    await asyncio.sleep(0.1)  # the first call has taken the only process
    with pytest.raises(ExecutorUnavailable, match="no executor became free within 200 ms"):
        await executors.run(FINE, ONE, timeout_ms=200)
    assert (await long).to_pydict() == {"F.out": [2]}


async def test_a_worn_process_is_replaced_between_calls(executors):
    pids = set()
    call = ExtractCall(
        PyCode("run", "", "", "def run(ts, given):\n    return "
            "pd.Series([os.getpid()], name='F.out')\n", IMPORTS, (), ()),
        "F", "pid", (Field("F.given", Int()),), (Field("F.out", Int()),), (),
    )  # fmt: skip
    for _ in range(120):
        pids.update((await executors.run(call, ONE)).column("F.out").to_pylist())
    assert 2 < len(pids) < 6


async def test_user_code_starts_no_process(executors: Executors) -> None:
    body = "subprocess.Popen(['sleep', '60'])"
    with pytest.raises(UserCodeFailed, match="Operation not permitted"):
        await executors.run(calling(body, module_level="import subprocess"), ONE)
    assert await succeeds(executors)


async def test_code_can_be_loaded_before_its_first_call(executors):
    call = calling("pass", module_level=f"UNIQUE = {id(object())}")
    assert (await executors.run(WarmCall(call.code, "F.e", "F.e"), None)).num_rows == 0
    assert (await executors.run(call, ONE)).num_rows == 1


async def test_calls_beyond_the_processes_wait_in_turn(executors):
    answers = await asyncio.gather(
        *(executors.run(calling("time.sleep(0.01)"), ONE) for _ in range(20))
    )
    assert [a.num_rows for a in answers] == [1] * 20


async def test_a_client_reconnects_to_a_restarted_host(tmp_path):
    async with Executors(tmp_path / "executors.sock", time_limit_ms=10_000) as executors:
        with pytest.raises(ExecutorUnavailable, match="no executor host listens"):
            await executors.run(FINE, ONE)
        for _ in range(2):
            with running_host(tmp_path, executor_processes=1):
                assert await succeeds(executors)


async def test_an_input_may_be_given_twice(executors):
    text = "def run(ts, a, b):\n    return pd.Series(a * 10 + b, name='F.out')\n"
    given = Field("F.given", Int())
    call = ExtractCall(
        PyCode("run", "", "", text, IMPORTS, (), ()),
        "F",
        "twice",
        (given, given),
        (Field("F.out", Int()),),
        (),
    )
    stamps = pa.array([0], pa.timestamp("us", "UTC"))
    twice = pa.Table.from_arrays([stamps, pa.array([4]), pa.array([4])], [TS, "F.given", "F.given"])
    assert (await executors.run(call, twice)).to_pydict() == {"F.out": [44]}


async def test_many_rows_pass_both_ways(executors):
    rows = 200_000
    table = pa.table({TS: pa.array([0] * rows, pa.timestamp("us", "UTC")), "F.given": range(rows)})
    assert (await executors.run(FINE, table)).column("F.out").to_pylist() == list(
        range(1, rows + 1)
    )


async def test_a_waiting_share_gets_its_turn_before_the_rest_of_a_longer_line(
    tmp_path: Path,
) -> None:
    finished: list[str] = []
    slow = calling("time.sleep(0.2)")  # the time that a call occupies a worker

    async def call(client: Executors, workspace: str) -> None:
        await client.run(slow, ONE, callbacks=Callbacks(workspace=workspace))
        finished.append(workspace)

    with running_host(tmp_path, executor_processes=1) as path:
        async with Executors(path, time_limit_ms=10_000) as client:
            # Two workspaces occupy the two workers: the one of the setting, and the reserved one.
            both = ("many", "more") * 6
            many = [asyncio.create_task(call(client, workspace)) for workspace in both]
            await asyncio.gather(*many[:1])
            await call(client, "one")
            assert len(finished) <= 8, "it did not wait for the whole lines"
            await asyncio.gather(*many)


async def test_a_workspace_that_occupies_all_its_executors_delays_no_other_one(
    tmp_path: Path,
) -> None:
    """Its calls come from two platform processes, so they are of two shares."""
    slow = calling("time.sleep(5)")  # the time that a call occupies a worker
    greedy = Callbacks(workspace="greedy")
    with running_host(tmp_path, executor_processes=2) as path:
        async with (
            Executors(path, time_limit_ms=10_000) as first,
            Executors(path, time_limit_ms=10_000) as second,
        ):
            many = [
                asyncio.create_task(client.run(slow, ONE, callbacks=greedy))
                for _ in range(20)
                for client in (first, second)
            ]
            await first.run(FINE, ONE, callbacks=Callbacks(workspace="other"))
            assert not any(task.done() for task in many)
            for task in many:
                task.cancel()
            await asyncio.gather(*many, return_exceptions=True)


async def test_a_module_that_sleeps_at_import_occupies_no_other_worker(tmp_path: Path) -> None:
    sleepy = calling("pass", "time.sleep(2)")
    with running_host(tmp_path, executor_processes=2) as path:
        async with Executors(path, time_limit_ms=10_000) as client:
            await client.run(sleepy, ONE)
            both = [client.run(calling(f"given = given + {n} - {n}"), ONE) for n in range(2)]
            async with asyncio.timeout(2):
                await asyncio.gather(*both)


async def test_a_call_that_finds_no_connection_fails_at_its_limit(tmp_path: Path) -> None:
    with running_host(tmp_path, executor_processes=2) as path:
        async with Executors(path, time_limit_ms=10_000, connections=1) as client:
            holding = asyncio.create_task(client.run(calling("time.sleep(1)"), ONE))
            await eventually(lambda: client._capacity._free == 0)
            with pytest.raises(ExecutorUnavailable, match="no connection"):
                await client.run(FINE, ONE, timeout_ms=20)
            await holding


async def test_an_answer_over_the_limit_fails_the_call(
    executors: Executors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "MAX_ANSWER_BYTES", 10)
    with pytest.raises(UserCodeFailed, match="more than the limit of 10"):
        await executors.run(FINE, ONE)
    monkeypatch.undo()
    assert await succeeds(executors)
