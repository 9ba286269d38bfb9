"""The watchdog restarts crashed services, gives up on those that keep crashing, and leaves stopped
ones alone.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType

import pytest

from fennel_core.apps.local import processes, watchdog
from fennel_core.apps.local.file_layout import FileLayout
from fennel_core.apps.local.host_environment import HostEnvironment
from fennel_core.apps.local.platform import platform_lock
from fennel_core.apps.local.platform_keys import ensure_keys
from fennel_core.apps.local.readiness import HttpOk
from fennel_core.apps.local.services import INFRA, Service
from fennel_core.apps.local.setup_steps import PlatformContext
from fennel_core.apps.local.watchdog import (
    LONGEST_PAUSE_S,
    STEADY_S,
    TRIES,
    Watchdog,
    after_crash,
    has_given_up,
)
from fennel_core.settings.model import Settings

RECORD = processes.ProcessRecord(pid=1, started_s=0.01, boot_id="b", digest="d", port=None)
STEADY = (sys.executable, "-c", "import time; time.sleep(60)")


def test_pauses_double_up_to_a_bound() -> None:
    crashes, pauses = None, []
    for _ in range(8):
        crashes = after_crash(crashes, RECORD, now_s=100.0, lived_s=0.1)
        pauses.append(crashes.again_at_s - 100.0)
    assert pauses == [1, 2, 4, 8, 16, LONGEST_PAUSE_S, LONGEST_PAUSE_S, LONGEST_PAUSE_S]


def test_a_long_run_resets_the_crash_count() -> None:
    crashes = None
    for _ in range(TRIES):
        crashes = after_crash(crashes, RECORD, now_s=0.0, lived_s=0.1)
    assert after_crash(crashes, RECORD, now_s=0.0, lived_s=STEADY_S).in_a_row == 1


def test_it_gives_up_after_a_number_of_crashes() -> None:
    crashes = None
    verdicts = []
    for _ in range(TRIES + 1):
        crashes = after_crash(crashes, RECORD, now_s=0.0, lived_s=0.0)
        verdicts.append(has_given_up(crashes))
    assert verdicts == [False] * TRIES + [True]


@pytest.fixture
def context(tmp_path: Path) -> Iterator[PlatformContext]:
    layout = FileLayout(root=tmp_path, data=tmp_path / "data")
    layout.make()
    yield PlatformContext(
        Settings(), layout, ensure_keys(layout.secrets), HostEnvironment("java", (), 0)
    )
    for path in layout.pids.iterdir():
        record = processes.read_record(path)
        assert record is not None
        processes.stop(record, watchdog.signal.SIGKILL, 1)


def watching(
    context: PlatformContext, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> tuple[Watchdog, Path]:
    service = Service("p", "P", INFRA, command, MappingProxyType({}), HttpOk("http://127.0.0.1:1/"))
    monkeypatch.setattr(watchdog, "service_table", lambda _: (service,))
    return Watchdog(context), context.layout.pids / "p"


def dead(path: Path) -> processes.ProcessRecord:
    record = processes.ProcessRecord(
        pid=2**22, started_s=0.01, boot_id=processes.boot_id(), digest="d", port=None
    )
    processes.write_record(path, record)
    return record


def test_a_service_without_a_record_is_not_started(
    context: PlatformContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, path = watching(context, monkeypatch, STEADY)
    subject.check(0.0)
    subject.check(100.0)
    assert not path.exists()


def test_a_crashed_service_is_restarted_after_the_pause(
    context: PlatformContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, path = watching(context, monkeypatch, STEADY)
    crashed = dead(path)
    subject.check(0.0)
    assert processes.read_record(path) == crashed
    subject.check(1.1)
    record = processes.read_record(path)
    assert record is not None
    assert processes.is_alive(record)


def test_nothing_is_restarted_while_another_process_holds_the_platform_lock(
    context: PlatformContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, path = watching(context, monkeypatch, STEADY)
    crashed = dead(path)
    subject.check(0.0)
    with platform_lock(context.layout):
        subject.check(1.1)
        assert processes.read_record(path) == crashed
    subject.check(1.2)
    assert processes.read_record(path) != crashed


def test_a_service_that_keeps_crashing_is_not_restarted_for_ever(
    context: PlatformContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, path = watching(context, monkeypatch, (sys.executable, "-c", "raise SystemExit(1)"))
    dead(path)
    starts, now_s = set(), 0.0
    while not ("p" in subject.memory and has_given_up(subject.memory["p"])):
        now_s += LONGEST_PAUSE_S
        assert now_s < 100 * LONGEST_PAUSE_S
        subject.check(now_s)
        record = processes.read_record(path)
        assert record is not None
        starts.add(record.pid)
        while processes.is_alive(record):
            pass
    assert len(starts) == TRIES + 1
