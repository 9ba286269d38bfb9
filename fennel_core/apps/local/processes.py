"""Processes we started, and how to be sure that it is them.

Theory. A pid alone names nothing: it is given to another program once ours has ended. A pid
together with the kernel's start time of the process names one process until the next boot, and the
boot has an id. Each part leads a session of its own; whatever it starts stays in that session (also
programs that change their process group, as Spark's Python daemon does), so a session's members are
what has to be stopped. Linux only: this reads /proc.
"""

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
POLL_S: Final = 0.05
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """What a pid file holds: who was started, when by the kernel's clock, with which command and
    environment (as a digest).
    """

    pid: int
    start_ticks: int
    boot_id: str
    digest: str
    port: int | None


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """The part of /proc/<pid>/stat we need. `start_ticks`: clock ticks after boot."""

    state: str
    session: int
    start_ticks: int
    rss_bytes: int


def boot_id() -> str:
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def read_stat(pid: int) -> ProcessStat | None:
    """None if there is no such process (any more)."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in brackets may hold spaces and brackets; fields count from behind its last one.
    values = text.rpartition(")")[2].split()
    return ProcessStat(
        state=values[0],
        session=int(values[3]),
        start_ticks=int(values[19]),
        rss_bytes=int(values[21]) * PAGE_BYTES,
    )


def describe(pid: int, digest: str, port: int | None) -> ProcessRecord:
    """The record of a process just started. Raises ProcessLookupError if it is gone already."""
    stat = read_stat(pid)
    if stat is None:
        raise ProcessLookupError(pid)
    return ProcessRecord(
        pid=pid, start_ticks=stat.start_ticks, boot_id=boot_id(), digest=digest, port=port
    )


def write_record(path: Path, started: ProcessRecord) -> None:
    new = path.with_suffix(".new")
    new.write_text(json.dumps(asdict(started)))
    new.replace(path)


def read_record(path: Path) -> ProcessRecord | None:
    """None if there is no record, or one that was cut short by a full disk."""
    try:
        return ProcessRecord(**json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (json.JSONDecodeError, TypeError):
        return None


def is_alive(started: ProcessRecord) -> bool:
    """Whether exactly this process still runs; a zombie does not, another program with its pid is
    not it.
    """
    if started.boot_id != boot_id():
        return False
    stat = read_stat(started.pid)
    return stat is not None and stat.start_ticks == started.start_ticks and stat.state not in "ZX"


def session_members(started: ProcessRecord) -> tuple[int, ...]:
    """Pids of the session it led, itself included; empty if its pid has gone to another program.

    The kernel gives no pid away while a session bears its number, so living members without their
    leader are still ours.
    """
    if started.boot_id != boot_id():
        return ()
    leader = read_stat(started.pid)
    if leader is not None and leader.start_ticks != started.start_ticks:
        return ()
    found = []
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (stat := read_stat(int(entry.name))) is not None:
            ours = (
                stat.session == started.pid
                and stat.start_ticks >= started.start_ticks
                and stat.state not in "ZX"
            )
            found += [int(entry.name)] if ours else []
    return tuple(found)


def memory_bytes(started: ProcessRecord) -> int:
    """Memory of the session, bytes: each process's proportional share, so that pages of forked
    children count once in all.

    Resident memory stands in where the kernel does not tell us shares.
    """
    return sum(_memory_of(pid) for pid in session_members(started))


def _memory_of(pid: int) -> int:
    try:
        for line in (PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:  # it ended, or it is not ours to look into
        stat = read_stat(pid)
        return stat.rss_bytes if stat is not None else 0
    return 0


def age_s(started: ProcessRecord) -> float:
    """Seconds since it started, on the kernel's clock."""
    up = float((PROC / "uptime").read_text().split()[0])
    return max(0.0, up - started.start_ticks / TICKS_PER_S)


def began_at(started: ProcessRecord) -> datetime:
    """When it started, by the wall clock."""
    return datetime.now(UTC) - timedelta(seconds=age_s(started))


def stop(started: ProcessRecord, gentle: signal.Signals, grace_s: float) -> bool:
    """Asks the leader to end, then its whole session, then kills what is left. True if nobody had
    to be killed.

    The leader is asked alone first: it knows best how to end its children. What outlives it is
    asked as well.
    """
    deadline = time.monotonic() + grace_s
    if is_alive(started):
        _signal(started.pid, gentle)
        _wait(lambda: not is_alive(started), deadline)
    for pid in session_members(started):
        _signal(pid, signal.SIGTERM)
    _wait(lambda: not session_members(started), min(deadline, time.monotonic() + grace_s / 4))
    left = session_members(started)
    for pid in left:
        _signal(pid, signal.SIGKILL)
    _wait(lambda: not session_members(started), time.monotonic() + 5)
    return not left


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _wait(done: Callable[[], bool], deadline: float) -> None:
    while not done() and time.monotonic() < deadline:
        time.sleep(POLL_S)
