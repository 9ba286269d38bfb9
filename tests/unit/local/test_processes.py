"""Real processes: only those in a record are stopped, together with everything they started."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fennel_core.apps.local import processes
from tests.support.polling import eventually_sync

STUBBORN = (
    "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', "
    "flush=True); time.sleep(60)"
)
LEADER_WITH_CHILD = """
import os, subprocess, sys, time
program = "import os,time; os.setpgid(0, 0); print(os.getpid(), flush=True); time.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", program])
time.sleep(60)
"""


@pytest.fixture
def children() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for child in started:
        child.kill()
        child.wait()


def start(children: list[subprocess.Popen[str]], code: str) -> processes.ProcessRecord:
    child = subprocess.Popen(  # noqa: S603  # a program of this test, and no shell
        [sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE, text=True
    )
    children.append(child)
    return processes.describe(child.pid, "digest", None)


def line(children: list[subprocess.Popen[str]]) -> str:
    out = children[-1].stdout
    assert out is not None
    return out.readline()


def test_a_process_is_alive_until_it_is_stopped(children: list[subprocess.Popen[str]]) -> None:
    started = start(children, "import time; time.sleep(60)")
    assert processes.is_alive(started)
    assert processes.stop(started, signal.SIGTERM, 5)
    assert not processes.is_alive(started)


def test_a_process_that_ignores_the_signal_is_killed_after_the_grace_period(
    children: list[subprocess.Popen[str]],
) -> None:
    started = start(children, STUBBORN)
    assert line(children) == "up\n"
    began = time.monotonic()
    assert not processes.stop(started, signal.SIGTERM, 0.5)
    assert not processes.is_alive(started)
    assert 0.4 < time.monotonic() - began < 5


def test_children_that_left_the_process_group_are_stopped_too(
    children: list[subprocess.Popen[str]],
) -> None:
    started = start(children, LEADER_WITH_CHILD)
    grandchild = int(line(children))
    assert os.getpgid(grandchild) == grandchild
    processes.stop(started, signal.SIGTERM, 5)
    assert not processes.is_running(grandchild)


def test_children_that_outlive_their_leader_are_found(
    children: list[subprocess.Popen[str]],
) -> None:
    started = start(children, LEADER_WITH_CHILD)
    grandchild = int(line(children))
    os.kill(started.pid, signal.SIGKILL)
    children[-1].wait()
    assert processes.session_members(started) == (grandchild,)
    processes.stop(started, signal.SIGTERM, 5)
    assert processes.session_members(started) == ()


def test_a_recycled_pid_is_never_touched(children: list[subprocess.Popen[str]]) -> None:
    innocent = start(children, "import time; time.sleep(60)")
    earlier = replace(innocent, started_s=innocent.started_s - 0.01)
    assert not processes.is_alive(earlier)
    assert processes.stop(earlier, signal.SIGTERM, 0.5)
    assert processes.is_alive(innocent)


def test_a_record_of_an_earlier_boot_matches_no_process(
    children: list[subprocess.Popen[str]],
) -> None:
    innocent = start(children, "import time; time.sleep(60)")
    earlier = replace(innocent, boot_id="another")
    assert processes.session_members(earlier) == ()
    processes.stop(earlier, signal.SIGTERM, 0.5)
    assert processes.is_alive(innocent)


def test_a_record_is_read_back_and_a_truncated_one_is_none(
    tmp_path: Path, children: list[subprocess.Popen[str]]
) -> None:
    started = start(children, "import time; time.sleep(60)")
    processes.write_record(tmp_path / "query", started)
    assert processes.read_record(tmp_path / "query") == started
    (tmp_path / "query").write_text('{"pid": 1')
    assert processes.read_record(tmp_path / "query") is None
    assert processes.read_record(tmp_path / "absent") is None


def test_a_process_just_started_has_an_age_near_zero_and_uses_memory(
    children: list[subprocess.Popen[str]],
) -> None:
    started = start(children, "import time; time.sleep(60)")
    assert abs(processes.began_at(started).timestamp() - time.time()) < 2
    # The share of pages is small until the child has loaded its program.
    eventually_sync(lambda: processes.memory_bytes(started) > 1_000_000)
