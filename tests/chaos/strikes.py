"""Faults of a chaos run: which part is struck, when and how, and when it is ready again.

The plan is a function of the seed. Kinds come from shuffled decks, so all are equally frequent. A
strike kills with -9 or freezes (SIGSTOP) for some seconds. Nothing here restarts a part: the
platform has to.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

import psutil

from fennel_core.apps.local import processes
from fennel_core.apps.local.file_layout import FileLayout
from fennel_core.apps.local.readiness import check_readiness
from fennel_core.apps.local.services import Service

FREEZE_SHARE: Final = 0.25
FROZEN_S: Final = (1.0, 15.0)
CHECK_S: Final = 0.2
LONGEST_RECOVERY_S: Final = 180.0
"""Without another strike on the part, or on a part that it needs."""
LONGEST_RUN_S: Final = 600.0
"""As long as a run that is killed before it reports is believed to start, and the next one takes.
"""


class Kind(StrEnum):
    """A kind of part; the values of services are their names in the service table."""

    SLOT = "slot"
    JVM = "jvm"
    ENGINE = "engine"
    KAFKA = "kafka"
    POSTGRES = "postgres"
    S3 = "s3"
    INGEST = "ingest"
    QUERY = "query"
    QUERY_HELPER = "query-helper"
    DEFINITION = "definition"
    SCHEDULER = "airflow-scheduler"
    SOURCES = "sources"
    SOURCES_WORKER = "sources-worker"
    CHANGE_ENGINE = "change-engine"
    TABLE_RUN = "table-run"


ENGINE_KINDS: Final = frozenset({Kind.SLOT, Kind.JVM, Kind.ENGINE})
CONNECTOR_KINDS: Final = (
    *(Kind.SOURCES, Kind.SOURCES_WORKER, Kind.CHANGE_ENGINE),
    Kind.TABLE_RUN,
)
"""Parts that only work where there are sources and sinks."""
TRAFFIC_KINDS: Final = tuple(kind for kind in Kind if kind not in CONNECTOR_KINDS)
PART_OF: Final = {
    Kind.QUERY_HELPER: Kind.QUERY,
    Kind.SOURCES_WORKER: Kind.SOURCES,
    Kind.CHANGE_ENGINE: Kind.SOURCES,
    Kind.TABLE_RUN: Kind.DEFINITION,
}
TABLE_PROGRAM: Final = "scheduled_source.py"
"""The program of a run of a table's source, a process of the definition server without Airflow."""

CHANGE_JARS: Final = "/changes/debezium-"
"""In the command of the JVM that reads the changes of tables."""


@dataclass(frozen=True, slots=True)
class Strike:
    """One planned fault. `frozen_s`: how long the part is frozen; None if it is killed.

    `choice`: a number that selects one of several candidates.
    """

    at_s: float
    kind: Kind
    frozen_s: float | None
    choice: int


def plan_strikes(seed: int, seconds: float, count: int, of: Sequence[Kind]) -> list[Strike]:
    """Return `count` faults of these kinds in the order of their times."""
    luck = random.Random(seed)  # noqa: S311  # repeatable, and no secret
    kinds: list[Kind] = []
    while len(kinds) < count:
        deck = list(of)
        luck.shuffle(deck)
        kinds += deck
    times = sorted(luck.uniform(0.0, seconds) for _ in range(count))
    return [
        Strike(
            at_s,
            kind,
            luck.uniform(*FROZEN_S) if luck.random() < FREEZE_SHARE else None,
            luck.randrange(1_000_000),
        )
        for at_s, kind in zip(times, kinds, strict=False)
    ]


@dataclass
class Recoveries:
    """Measured recoveries. `seconds`: per kind, from the kill or the thaw until it was ready,
    further strikes in between included.

    `overlapping`: strikes while another part was not ready yet. `lost`: strikes after which the
    part did not come back. `skipped`: strikes that were left out, because they found no process of
    a part that was down; `made_up`: of those that were left out at first.
    """

    seconds: dict[Kind, list[float]] = field(default_factory=dict)
    done: int = 0
    frozen: int = 0
    overlapping: int = 0
    skipped: int = 0
    made_up: int = 0
    lost: list[str] = field(default_factory=list)
    open: int = 0


class Striker:
    """Carries out strikes on the services of one local platform."""

    def __init__(
        self,
        layout: FileLayout,
        services: Sequence[Service],
        unhealthy: Callable[[Kind], str | None] = lambda _: None,
        patience_s: float = 0.0,
    ) -> None:
        """`unhealthy`: what else is wrong after a strike on a kind; may block. `patience_s`: how
        long a strike waits for a process of its part.
        """
        self._layout, self._unhealthy, self._patience_s = layout, unhealthy, patience_s
        self._services: Mapping[str, Service] = {each.name: each for each in services}
        self._over_at: dict[str, float] = {}
        self._left_out: list[Strike] = []
        self.result = Recoveries()

    async def run(self, plan: Sequence[Strike], make_up_s: float = 0.0) -> None:
        """Carry out the plan and wait until each struck part is ready again.

        Strikes that found no process are made up for then, as long as `make_up_s` have not passed.
        """
        await self._carry_out(plan)
        give_up = time.monotonic() + make_up_s
        while self._left_out and time.monotonic() < give_up:
            again, self._left_out, done = self._left_out, [], self.result.done
            print(f"{len(again)} faults found no process; they are made up for", flush=True)
            await self._carry_out([replace(strike, at_s=0.0) for strike in again])
            self.result.made_up += self.result.done - done
        self.result.skipped = len(self._left_out)

    async def _carry_out(self, plan: Sequence[Strike]) -> None:
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for strike in plan:
                await asyncio.sleep(max(0.0, began + strike.at_s - time.monotonic()))
                group.create_task(self._strike(strike))

    async def _strike(self, strike: Strike) -> None:
        service = self._service_of(strike)
        pids = await self._found(strike, service)
        if not pids:
            self._left_out.append(strike)
            return
        self.result.overlapping += self.result.open > 0
        self.result.open += 1
        self.result.done += 1
        how = "killed" if strike.frozen_s is None else f"frozen for {strike.frozen_s:.1f} s"
        print(f"{strike.at_s:7.1f} s  {strike.kind} of {service.name} {how}", flush=True)
        try:
            if strike.frozen_s is None:
                _signal(pids, signal.SIGKILL)
            else:
                self.result.frozen += 1
                _signal(pids, signal.SIGSTOP)
                await asyncio.sleep(strike.frozen_s)
                _signal(pids, signal.SIGCONT)
            self._over_at[service.name] = time.monotonic()
            await self._ready_again(strike, service)
        finally:
            self.result.open -= 1

    async def _found(self, strike: Strike, service: Service) -> list[int]:
        give_up = time.monotonic() + self._patience_s
        while not (pids := self._pids_of(strike, service)) and time.monotonic() < give_up:
            await asyncio.sleep(CHECK_S)
        return pids

    async def _ready_again(self, strike: Strike, service: Service) -> None:
        began = time.monotonic()
        why: str | None = "not checked"
        await asyncio.sleep(CHECK_S)  # until the process table shows the kill
        while why is not None:
            longest_s = LONGEST_RUN_S if strike.kind is Kind.TABLE_RUN else LONGEST_RECOVERY_S
            if time.monotonic() - self._undisturbed_since(service) > longest_s:
                self.result.lost.append(f"{service.name} after {strike.kind} was struck: {why}")
                return
            why = await asyncio.to_thread(self._problem, service)
            why = why or await asyncio.to_thread(self._unhealthy, strike.kind)
            await asyncio.sleep(CHECK_S)
        self.result.seconds.setdefault(strike.kind, []).append(time.monotonic() - began)

    def _undisturbed_since(self, service: Service) -> float:
        """Return when the last strike on the service, or on one that it needs, was over."""
        above = [self._undisturbed_since(self._services[name]) for name in service.needs]
        return max(self._over_at.get(service.name, 0.0), *above, 0.0)

    def _problem(self, service: Service) -> str | None:
        record = processes.read_record(self._layout.pids / service.name)
        if record is None or not processes.is_alive(record):
            return "its process does not run"
        return check_readiness(service.readiness, processes.began_at(record))

    def _service_of(self, strike: Strike) -> Service:
        if strike.kind in PART_OF:
            return self._services[PART_OF[strike.kind]]
        if strike.kind not in ENGINE_KINDS:
            return self._services[strike.kind]
        engines = [
            self._services[name] for name in sorted(self._services) if name.startswith("engine")
        ]
        return engines[strike.choice % len(engines)]

    def _pids_of(self, strike: Strike, service: Service) -> list[int]:
        record = processes.read_record(self._layout.pids / service.name)
        if record is None:
            return []
        members = list(processes.session_members(record))
        match strike.kind:
            case Kind.JVM:
                return [pid for pid in members if "SparkSubmit" in _command(pid)][:1]
            case Kind.CHANGE_ENGINE:
                return [pid for pid in members if CHANGE_JARS in _command(pid)][:1]
            case Kind.QUERY_HELPER:
                return [pid for pid in members if "--helper" in _command(pid)][:1]
            case Kind.SLOT | Kind.SOURCES_WORKER:
                daemons = [pid for pid in members if "pyspark.daemon" in _command(pid)]
                slots = sorted(pid for pid in daemons if _parent(pid) in daemons)
                return [slots[strike.choice // 2 % len(slots)]] if slots else []
            case Kind.TABLE_RUN:
                return [
                    pid
                    for root in _family([record.pid])
                    if TABLE_PROGRAM in _command(root)
                    for pid in _family([root])
                ]
            case Kind.POSTGRES:  # its processes have sessions of their own
                return _family(members)
            case _:
                return members


def _family(pids: Sequence[int]) -> list[int]:
    """Return the processes and all that they have started, each once."""
    found = dict.fromkeys(pids)
    for pid in pids:
        with suppress(psutil.Error):
            found |= {each.pid: None for each in psutil.Process(pid).children(recursive=True)}
    return list(found)


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _command(pid: int) -> str:
    with suppress(psutil.Error):
        return " ".join(psutil.Process(pid).cmdline())
    return ""


def _parent(pid: int) -> int:
    with suppress(psutil.Error):
        return int(psutil.Process(pid).ppid())
    return 0
