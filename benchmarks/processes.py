"""Measure the cost of the platform's processes: CPU over a period, and proportional memory.

Processes are grouped by service: the process that the launcher started (its pid file) with all its
descendants. The engine is shown as driver, JVM and slots. Memory is PSS, so that pages shared by
forked processes count once.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Cost:
    cores: float
    memory_mib: float
    processes: int


def parts(pids: Path) -> dict[str, list[psutil.Process]]:
    """The live processes of each part, by the launcher's pid files."""
    found: dict[str, list[psutil.Process]] = defaultdict(list)
    for file in sorted(pids.iterdir()):
        try:
            root = psutil.Process(json.loads(file.read_text())["pid"])
            family = [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            continue
        for process in family:
            found[_name(file.name, root, process)].append(process)
    return dict(found)


def _name(part: str, root: psutil.Process, process: psutil.Process) -> str:
    if part != "engine":
        return part
    if process == root:
        return "engine driver"
    try:
        return "engine JVM" if "java" in process.name() else "engine slots"
    except psutil.NoSuchProcess:
        return "engine slots"


@contextmanager
def preferred(pids: Path) -> Iterator[None]:
    """Give the platform and this process real-time priority inside the block (root only).

    On a busy machine every hand-over between threads would otherwise wait for a time slice of
    another program, which would dominate the measurement.
    """
    threads = [
        thread.id
        for family in parts(pids).values()
        for process in family
        for thread in process.threads()
    ]
    threads.append(os.getpid())
    _schedule(threads, os.SCHED_RR, 1)
    try:
        yield
    finally:
        _schedule(threads, os.SCHED_OTHER, 0)


def _schedule(threads: Iterable[int], policy: int, priority: int) -> None:
    for thread in threads:
        with suppress(ProcessLookupError):
            os.sched_setscheduler(thread, policy, os.sched_param(priority))


def measure(pids: Path, seconds: float) -> dict[str, Cost]:
    """CPU used over `seconds` from now, in cores, and memory at the end, by part. Processes that
    end during the measurement are not counted.
    """
    watched = parts(pids)
    before = {process: _cpu_s(process) for family in watched.values() for process in family}
    started = time.monotonic()
    time.sleep(seconds)
    took_s = time.monotonic() - started
    costs = {}
    for part, family in watched.items():
        alive = [process for process in family if process.is_running()]
        used_s = sum(max(0.0, _cpu_s(process) - before[process]) for process in alive)
        costs[part] = Cost(used_s / took_s, sum(map(_pss, alive)) / MIB, len(alive))
    return costs


def _cpu_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


def _pss(process: psutil.Process) -> float:
    try:
        return float(process.memory_full_info().pss)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0.0
