"""The watchdog restarts crashed services without end and leaves stopped ones alone."""

import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import MappingProxyType

import pytest

from fennel_core.apps.local import processes, watchdog
from fennel_core.apps.local.file_layout import FileLayout
from fennel_core.apps.local.host_environment import HostEnvironment
from fennel_core.apps.local.platform import platform_lock
from fennel_core.apps.local.platform_keys import ensure_keys
from fennel_core.apps.local.readiness import HeartbeatFile
from fennel_core.apps.local.restart_policy import (
    LONGEST_PAUSE_S,
    STEADY_S,
    Observation,
    Pausing,
    Phase,
    Restarting,
    Running,
    Starting,
    Supervised,
    Waiting,
    failed,
    observed,
    restarted,
)
from fennel_core.apps.local.restart_reports import (
    RestartReport,
    next_action,
    read_reports,
    write_reports,
)
from fennel_core.apps.local.services import INFRA, Service
from fennel_core.apps.local.setup_steps import PlatformContext
from fennel_core.apps.local.watchdog import Watchdog
from fennel_core.settings.model import Settings

STEADY = (sys.executable, "-c", "import time; time.sleep(60)")
ENDS = (sys.executable, "-c", "raise SystemExit(1)")
UP = Observation(alive=True, ready=True, dependency_down=None)
UNREADY = Observation(alive=True, ready=None, dependency_down=None)
ENDED = Observation(alive=False, ready=None, dependency_down=None)
BLOCKED = Observation(alive=False, ready=None, dependency_down="postgres")


def test_pauses_double_up_to_a_bound() -> None:
    state, pauses = Supervised(Starting()), []
    for _ in range(8):
        state = failed(state, 100.0)
        assert isinstance(state.phase, Pausing)
        pauses.append(state.phase.until_s - 100.0)
    assert pauses == [1, 2, 4, 8, 16, LONGEST_PAUSE_S, LONGEST_PAUSE_S, LONGEST_PAUSE_S]


@pytest.mark.parametrize(
    ("before", "seen", "after"),
    [
        (Starting(), UNREADY, Starting()),
        (Starting(), UP, Running(50.0)),
        (Starting(), ENDED, Pausing(54.0)),
        (Starting(), BLOCKED, Waiting("postgres")),
        (Running(49.0), UP, Running(49.0)),
        (Running(49.0), ENDED, Pausing(54.0)),
        (Running(50.0 - STEADY_S), ENDED, Pausing(51.0)),
        (Running(49.0), BLOCKED, Waiting("postgres")),
        (Waiting("postgres"), BLOCKED, Waiting("postgres")),
        (Waiting("postgres"), ENDED, Restarting()),
        (Waiting("postgres"), UNREADY, Starting()),
        (Pausing(51.0), ENDED, Pausing(51.0)),
        (Pausing(50.0), ENDED, Restarting()),
        (Pausing(50.0), BLOCKED, Waiting("postgres")),
        (Pausing(51.0), UNREADY, Starting()),
        (Restarting(), ENDED, Restarting()),
        (Restarting(), BLOCKED, Waiting("postgres")),
        (Restarting(), UNREADY, Starting()),
    ],
)
def test_each_state_and_observation(before: Phase, seen: Observation, after: Phase) -> None:
    assert observed(Supervised(before, failures=2), seen, 50.0).phase == after


def test_the_end_of_a_service_whose_dependency_is_down_counts_as_no_failure() -> None:
    state = Supervised(Running(0.0))
    for _ in range(20):
        state = observed(state, BLOCKED, 50.0)
        state = observed(state, ENDED, 50.0)
        assert isinstance(state.phase, Restarting)
        state = observed(restarted(state), UP, 50.0)
    assert (state.failures, state.restarts) == (0, 20)


@pytest.mark.parametrize("seed", range(20))
def test_every_service_runs_again_after_any_series_of_kills(seed: int) -> None:
    """A model of Postgres and a dependent: 62 kills in 300 s, then each must be ready in 60 s."""
    luck = random.Random(seed)  # noqa: S311  # repeatable, and no secret
    names = ("postgres", "scheduler")
    alive = dict.fromkeys(names, True)
    ready_at_s = dict.fromkeys(names, 0.0)
    states = {name: Supervised(Starting()) for name in names}
    kills = sorted((luck.uniform(0, 300), luck.choice(names)) for _ in range(62))
    now_s = 0.0
    while now_s < 360.0:
        now_s += 0.2
        while kills and kills[0][0] <= now_s:
            alive[kills.pop(0)[1]] = False
        postgres_up = alive["postgres"] and now_s >= ready_at_s["postgres"]
        if not postgres_up and luck.random() < 0.05:
            alive["scheduler"] = False  # it ends without its database
        for name in names:
            down = "postgres" if name == "scheduler" and not postgres_up else None
            ready = now_s >= ready_at_s[name] and down is None
            states[name] = observed(states[name], Observation(alive[name], ready, down), now_s)
            if isinstance(states[name].phase, Restarting):
                states[name] = restarted(states[name])
                alive[name], ready_at_s[name] = True, now_s + luck.uniform(0.5, 8.0)
    assert [type(states[name].phase) for name in names] == [Running, Running]


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


def service(context: PlatformContext, name: str, command: tuple[str, ...], *needs: str) -> Service:
    beat = HeartbeatFile(context.layout.run / f"{name}.beat", every_s=1000.0)
    return Service(name, name, INFRA, command, MappingProxyType({}), beat, needs=needs)


@pytest.fixture
def watching(
    context: PlatformContext, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Watchdog]]:
    made: list[Watchdog] = []

    def watch(*services: Service) -> Watchdog:
        monkeypatch.setattr(watchdog, "service_table", lambda _: services)
        made.append(Watchdog(context))
        return made[-1]

    yield watch
    for subject in made:
        subject.close()


def dead(context: PlatformContext, name: str) -> processes.ProcessRecord:
    record = processes.ProcessRecord(
        pid=2**22, started_s=0.01, boot_id=processes.boot_id(), digest="d", port=None
    )
    processes.write_record(context.layout.pids / name, record)
    return record


def record_of(context: PlatformContext, name: str) -> processes.ProcessRecord:
    record = processes.read_record(context.layout.pids / name)
    assert record is not None
    return record


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)  # a check of a real process or file


def test_a_service_without_a_record_is_not_started(
    context: PlatformContext, watching: Callable[..., Watchdog]
) -> None:
    subject = watching(service(context, "p", STEADY))
    subject.check(0.0)
    subject.check(100.0)
    assert not (context.layout.pids / "p").exists()
    assert subject.states == {}


def test_a_crashed_service_is_restarted_after_the_pause(
    context: PlatformContext, watching: Callable[..., Watchdog]
) -> None:
    subject = watching(service(context, "p", STEADY))
    crashed = dead(context, "p")
    subject.check(0.0)
    assert record_of(context, "p") == crashed
    subject.check(1.1)
    assert processes.is_alive(record_of(context, "p"))
    assert subject.states["p"] == Supervised(Starting(), failures=1, restarts=1)


def test_nothing_is_restarted_while_another_process_holds_the_platform_lock(
    context: PlatformContext, watching: Callable[..., Watchdog]
) -> None:
    subject = watching(service(context, "p", STEADY))
    crashed = dead(context, "p")
    subject.check(0.0)
    with platform_lock(context.layout):
        subject.check(1.1)
        assert record_of(context, "p") == crashed
    subject.check(1.2)
    assert record_of(context, "p") != crashed


def test_a_service_that_keeps_crashing_is_restarted_at_the_longest_pause_for_ever(
    context: PlatformContext, watching: Callable[..., Watchdog]
) -> None:
    subject = watching(service(context, "p", ENDS))
    dead(context, "p")
    now_s = 0.0
    while subject.states.get("p", Supervised(Starting())).restarts < 12:
        assert now_s < 30 * LONGEST_PAUSE_S
        subject.check(now_s)
        until(lambda: not processes.is_alive(record_of(context, "p")))
        now_s += LONGEST_PAUSE_S / 2
    assert now_s > 8 * LONGEST_PAUSE_S


def test_a_service_waits_for_its_dependency_and_is_restarted_as_soon_as_it_is_ready(
    context: PlatformContext, watching: Callable[..., Watchdog]
) -> None:
    subject = watching(
        service(context, "postgres", STEADY), service(context, "p", STEADY, "postgres")
    )
    dead(context, "postgres")
    dead(context, "p")
    subject.check(0.0)
    subject.check(1.1)  # starts Postgres, which is not ready without its heartbeat
    assert processes.is_alive(record_of(context, "postgres"))

    def waits() -> bool:
        subject.check(2.0)
        return subject.states["p"].phase == Waiting("postgres")

    until(waits)
    (context.layout.run / "postgres.beat").touch()

    def runs() -> bool:
        subject.check(2.0)
        return processes.is_alive(record_of(context, "p"))

    until(runs)
    assert subject.states["p"] == Supervised(Starting(), failures=0, restarts=1)


def test_the_reports_name_restarts_and_the_next_attempt(
    context: PlatformContext, watching: Callable[..., Watchdog]
) -> None:
    subject = watching(service(context, "p", STEADY), service(context, "q", STEADY, "p"))
    dead(context, "p")
    dead(context, "q")
    subject.check(7.0)
    write_reports(context.layout, subject.reports(7.0, 1000.0))
    assert read_reports(context.layout) == {
        "p": RestartReport(restarts=0, failures=1, next_attempt=1001.0, waiting_for=None),
        "q": RestartReport(restarts=0, failures=0, next_attempt=None, waiting_for="p"),
    }


@pytest.mark.parametrize(
    ("report", "text"),
    [
        (None, "the watchdog does not run, so restart it with `fennel-core up`"),
        (RestartReport(3, 2, 1012.0, None), "the watchdog restarts it in 12 s (attempt 3)"),
        (RestartReport(3, 2, 990.0, None), "the watchdog restarts it in 0 s (attempt 3)"),
        (RestartReport(0, 0, None, "kafka"), "the watchdog restarts it when `kafka` is ready"),
    ],
)
def test_status_says_who_restarts_a_service_and_when(
    report: RestartReport | None, text: str
) -> None:
    assert next_action(report, 1000.0) == text
