"""The priority of long calls, on processes of this test."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from fennel_core.executors import call_priority
from fennel_core.executors.call_priority import cpu_s_of, lower_priority


@pytest.fixture
def sleeping() -> Iterator[int]:
    """Yield the id of a process that waits."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid
        process.kill()


def test_a_thread_that_has_just_ended_leaves_the_others_to_be_set(
    sleeping: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise one such thread counted as a refusal, and no priority was restored any more."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    monkeypatch.setattr(call_priority.os, "listdir", lambda _: [str(ended.pid), str(sleeping)])
    assert lower_priority(sleeping)
    assert os.getpriority(os.PRIO_PROCESS, sleeping) == call_priority.LONG_CALL_NICENESS


def test_a_process_that_has_ended_has_no_priority_and_has_not_computed() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert lower_priority(ended.pid)
    assert cpu_s_of(ended.pid) == 0


def test_the_time_that_a_process_computes_is_its_own_and_not_that_of_this_one(
    sleeping: int,
) -> None:
    assert cpu_s_of(os.getpid()) > 0
    assert cpu_s_of(sleeping) < cpu_s_of(os.getpid())
    assert cpu_s_of(0) == 0, "its process has no id yet"
