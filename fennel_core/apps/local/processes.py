"""Identify, inspect and stop the processes that the launcher started.

A pid alone does not identify a process: the kernel reuses it. A pid together with the process's
start time identifies it until the next boot, and the kernel gives each boot an id. The start time
is kept relative to the boot, so that a step of the wall clock does not change it.

Each service leads a session of its own. Its children stay in that session, also those that change
their process group (as Spark's Python daemon does), so stopping a service means stopping the
members of its session. Linux only: psutil knows neither boot ids nor sessions.
"""

import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import psutil

BOOT_ID_FILE: Final = Path("/proc/sys/kernel/random/boot_id")
POLL_S: Final = 0.05
SAME_START_S: Final = 0.005
"""Half of the kernel's clock tick: two readings of one start time differ only by float rounding."""


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """Content of a pid file.

    `started_s`: start time in seconds after boot. `digest`: hash of command, environment and ports.
    """

    pid: int
    started_s: float
    boot_id: str
    digest: str
    port: int | None


def boot_id() -> str:
    """Return the kernel's id of the present boot."""
    return BOOT_ID_FILE.read_text().strip()


def describe(pid: int, digest: str, port: int | None) -> ProcessRecord:
    """Return the record of a process just started; raises ProcessLookupError if it has ended."""
    started_s = _started_s(pid)
    if started_s is None:
        raise ProcessLookupError(pid)
    return ProcessRecord(pid, started_s, boot_id(), digest, port)


def write_record(path: Path, record: ProcessRecord) -> None:
    """Write the pid file atomically."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(asdict(record)))
    new.replace(path)


def read_record(path: Path) -> ProcessRecord | None:
    """Return the record, or None if there is none or a full disk cut it short."""
    try:
        return ProcessRecord(**json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (json.JSONDecodeError, TypeError):
        return None


def is_running(pid: int) -> bool:
    """Return whether a process with this pid exists and is not a zombie."""
    try:
        return bool(psutil.Process(pid).status() not in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD})
    except psutil.NoSuchProcess:
        return False


def is_alive(record: ProcessRecord) -> bool:
    """Return whether exactly this process still runs: not a zombie, not a reused pid."""
    if record.boot_id != boot_id() or not is_running(record.pid):
        return False
    started_s = _started_s(record.pid)
    return started_s is not None and abs(started_s - record.started_s) < SAME_START_S


def session_members(record: ProcessRecord) -> tuple[int, ...]:
    """Return the pids of the session that the process leads or led, itself included.

    Empty if its pid was reused. The kernel does not reuse a pid while a session has that number, so
    living members without their leader still belong to the service.
    """
    if record.boot_id != boot_id():
        return ()
    leader_started_s = _started_s(record.pid)
    if leader_started_s is not None and abs(leader_started_s - record.started_s) >= SAME_START_S:
        return ()
    return tuple(pid for pid in psutil.pids() if _belongs(pid, record))


def _belongs(pid: int, record: ProcessRecord) -> bool:
    try:
        if os.getsid(pid) != record.pid:
            return False
    except ProcessLookupError:
        return False
    started_s = _started_s(pid)
    return (
        started_s is not None and started_s >= record.started_s - SAME_START_S and is_running(pid)
    )


def _started_s(pid: int) -> float | None:
    """Return the start time in seconds after boot, or None if there is no such process.

    psutil adds the boot time to the kernel's number; subtracting it again leaves a value that does
    not move with the wall clock.
    """
    try:
        return round(float(psutil.Process(pid).create_time() - psutil.boot_time()), 2)
    except psutil.NoSuchProcess:
        return None


def memory_bytes(record: ProcessRecord) -> int:
    """Return the memory of the session, bytes.

    Each process counts with its proportional share, so that pages shared with forked children count
    once. Resident memory takes its place where the kernel denies access to the shares.
    """
    return sum(_memory_of(pid) for pid in session_members(record))


def _memory_of(pid: int) -> int:
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        try:
            return int(process.memory_full_info().pss)
        except psutil.AccessDenied:
            return int(process.memory_info().rss)
    return 0


def age_s(record: ProcessRecord) -> float:
    """Return the seconds since the process started, by the kernel's clock."""
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - record.started_s)


def began_at(record: ProcessRecord) -> datetime:
    """Return when the process started, by the wall clock."""
    return datetime.now(UTC) - timedelta(seconds=age_s(record))


def stop(record: ProcessRecord, gentle: signal.Signals, grace_s: float) -> bool:
    """Stop the leader, then its session, then kill what remains after `grace_s`.

    The leader gets the signal alone first, because it knows best how to stop its children; the
    members that outlive it get SIGTERM. Returns True if nothing had to be killed.
    """
    deadline = time.monotonic() + grace_s
    if is_alive(record):
        _signal(record.pid, gentle)
        _wait(lambda: not is_alive(record), deadline)
    for pid in session_members(record):
        _signal(pid, signal.SIGTERM)
    _wait(lambda: not session_members(record), min(deadline, time.monotonic() + grace_s / 4))
    remaining = session_members(record)
    for pid in remaining:
        _signal(pid, signal.SIGKILL)
    _wait(lambda: not session_members(record), time.monotonic() + 5)
    return not remaining


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _wait(done: Callable[[], bool], deadline: float) -> None:
    while not done() and time.monotonic() < deadline:
        time.sleep(POLL_S)
