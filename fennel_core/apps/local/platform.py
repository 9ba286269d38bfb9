"""The local platform as a whole: `up`, `down`, `status` and `wipe`.

`up` runs every service on this machine, so it derives every address from the ports, except Kafka's
if topics are on a cluster (`kafka_users.py`). Other settings come from `FENNEL_*`. The result is
written to `<data>/env`, from which another process can create the same `Settings`.
"""

import fcntl
import os
import shutil
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import SecretStr

from fennel_core.apps.errors import PlatformLocked, SetupFailed
from fennel_core.apps.local import kafka_users, postgres, processes
from fennel_core.apps.local.file_layout import ROOT, FileLayout
from fennel_core.apps.local.host_environment import inspect_host
from fennel_core.apps.local.launch_plan import (
    LaunchAction,
    RunningService,
    launch_action,
    stop_waves,
    with_dependencies,
)
from fennel_core.apps.local.launcher import Launcher, StartFailure
from fennel_core.apps.local.platform_keys import PlatformKeys, load_keys
from fennel_core.apps.local.preflight import preflight_problems
from fennel_core.apps.local.readiness import check_readiness
from fennel_core.apps.local.restart_reports import RestartReport, next_action, read_reports
from fennel_core.apps.local.services import WATCHDOG, Service, process_env, service_table
from fennel_core.apps.local.setup_steps import PlatformContext
from fennel_core.apps.local.start_display import display_for
from fennel_core.settings.model import Settings


def load_context() -> PlatformContext:
    """Read the settings and create folders and keys; raises SetupFailed and OSError.

    What only a start needs is checked by `up`, so that `down` and `status` do not depend on it.
    """
    given = Settings()
    layout = FileLayout(root=ROOT, data=(ROOT / given.data_dir).resolve())
    layout.make()
    keys, host = load_keys(layout.secrets), inspect_host()
    layout.hide_data(others_enter=host.owner_uid != os.getuid())
    return PlatformContext(
        settings=local_settings(given, layout, keys), layout=layout, keys=keys, host=host
    )


def local_settings(given: Settings, layout: FileLayout, keys: PlatformKeys) -> Settings:
    """Return the settings with every address, folder and password of the local platform."""
    if given.kafka_passwords_dir is not None:
        given = kafka_users.on_cluster(given, ROOT)
    return given.model_copy(
        update={
            "postgres_dsn": SecretStr(postgres.dsn(given, keys)),
            "kafka_bootstrap": given.kafka_bootstrap
            if given.kafka_passwords_dir is not None
            else f"{given.broker_address}:{given.kafka_port}",
            "s3_endpoint": f"http://{given.address_of('s3')}:{given.s3_port}",
            "s3_secret_key": SecretStr(keys.s3_secret_key),
            "airflow_url": f"http://{given.address_of('airflow-api')}:{given.airflow_port}",
            "airflow_password": SecretStr(keys.airflow_password),
            "admin_token": SecretStr(keys.admin_token),
            "admin_token_sha256": keys.admin_token_sha256 or given.admin_token_sha256,
            "secrets_key_file": (layout.secrets / "users_secrets_key")
            if keys.users_secrets_key
            else None,
            "data_dir": layout.data,
            "run_dir": layout.run,
            "jars_dir": layout.jars,
            "executor_python": ROOT / given.executor_python,
            "dev_tokens": given.dev_tokens
            or ("dev_tokens" not in given.model_fields_set and given.only_on_loopback),
        }
    )


@contextmanager
def platform_lock(layout: FileLayout, wait: bool = True) -> Iterator[None]:
    """Hold the lock for starting and stopping; without `wait` raises PlatformLocked."""
    with (layout.data / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise PlatformLocked from error
        yield


def up(context: PlatformContext, wanted: Sequence[Service]) -> tuple[StartFailure, ...]:
    """Start the wanted services and their dependencies, show progress, and return the failures.

    Raises SetupFailed, one problem per line, if the pre-flight checks find any.
    """
    layout = context.layout
    rows = service_table(context)
    services = with_dependencies(rows, [*wanted, *(row for row in rows if row.name == WATCHDOG)])
    with platform_lock(layout):
        starting = [
            service
            for service in services
            if launch_action(service, running(layout, service)) is LaunchAction.START
        ]
        problems = (
            *kafka_users.problems(context.settings, [service.name for service in services]),
            *preflight_problems(context.settings, layout, context.host, starting),
        )
        if problems:
            raise SetupFailed("\n".join(problems))
        write_env_file(layout, process_env(context.settings))
        with display_for(services, layout) as display:
            return Launcher(context, display).run(services)


def running(layout: FileLayout, service: Service) -> RunningService | None:
    """Return the service as it runs now, or None if it does not run."""
    record = processes.read_record(layout.pids / service.name)
    return (
        RunningService(record.digest) if record is not None and processes.is_alive(record) else None
    )


def write_env_file(layout: FileLayout, variables: Mapping[str, str]) -> None:
    """Write `NAME=value` lines for `Settings(_env_file=…)`, readable by the owner only."""
    new = layout.env_file.with_suffix(".new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.writelines(f"{name}={value}\n" for name, value in variables.items())
    new.replace(layout.env_file)


@dataclass(frozen=True, slots=True)
class StoppedService:
    """A service that was stopped. `gently`: without SIGKILL."""

    name: str
    gently: bool


def down(context: PlatformContext, wanted: Sequence[Service]) -> tuple[StoppedService, ...]:
    """Stop those of the wanted services that `up` started, dependents first, and nothing else."""
    layout = context.layout
    known = {service.name for service in service_table(context)}
    with platform_lock(layout):
        stopped: list[StoppedService] = []
        if len(wanted) == len(known):
            # Services of an earlier table, such as Airflow's after a change to FENNEL_ORCHESTRATOR.
            others = [
                path.name
                for path in sorted(layout.pids.iterdir())
                if path.name not in known and not path.suffix
            ]
            stopped += _stop_all(context, dict.fromkeys(others, signal.SIGTERM))
        # The watchdog first: it would restart the others.
        stopped += _stop_all(
            context,
            {service.name: service.stop_signal for service in wanted if service.name == WATCHDOG},
        )
        for wave in stop_waves([service for service in wanted if service.name != WATCHDOG]):
            stopped += _stop_all(context, {service.name: service.stop_signal for service in wave})
    return tuple(stopped)


def _stop_all(
    context: PlatformContext, signals: Mapping[str, signal.Signals]
) -> list[StoppedService]:
    def stop_one(name: str) -> StoppedService | None:
        path = context.layout.pids / name
        record = processes.read_record(path)
        there = record is not None and bool(processes.session_members(record))
        gently = (
            processes.stop(record, signals[name], context.settings.shutdown_grace_s)
            if record is not None
            else True
        )
        path.unlink(missing_ok=True)
        return StoppedService(name, gently) if there else None

    with ThreadPoolExecutor(max_workers=max(1, len(signals))) as pool:
        return [stopped for stopped in pool.map(stop_one, signals) if stopped is not None]


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """One row of `status`.

    `state`: ready, not ready, died or stopped; `why`: the problem; `restarts`: by the watchdog.
    """

    service: Service
    state: str
    why: str
    pid: int | None
    age_s: float | None
    memory_bytes: int | None
    log: Path
    restarts: int = 0


def status(context: PlatformContext) -> tuple[ServiceStatus, ...]:
    """Return the status of every service; the readiness checks run in parallel."""
    services = service_table(context)
    layout = context.layout
    watchdog = processes.read_record(layout.pids / WATCHDOG)
    watched = watchdog is not None and processes.is_alive(watchdog)
    reports = read_reports(layout) if watched else {}

    def status_of(service: Service) -> ServiceStatus:
        found = _status_of(layout, service, reports.get(service.name))
        missing = kafka_users.missing_password(service.name, context.settings)
        return replace(found, why="; ".join(why for why in (found.why, missing) if why))

    with ThreadPoolExecutor(max_workers=len(services)) as pool:
        return tuple(pool.map(status_of, services))


def _status_of(layout: FileLayout, service: Service, report: RestartReport | None) -> ServiceStatus:
    record = processes.read_record(layout.pids / service.name)
    log = layout.log(service.name)
    restarts = 0 if report is None else report.restarts
    if record is None:
        return ServiceStatus(service, "stopped", "", None, None, None, log)
    if not processes.is_alive(record):
        action = f"{next_action(report, time.time())}; see {layout.shown(log)}"
        return ServiceStatus(service, "died", action, None, None, None, log, restarts)
    why = check_readiness(service.readiness, processes.began_at(record))
    return ServiceStatus(
        service,
        "ready" if why is None else "not ready",
        why or "",
        record.pid,
        processes.age_s(record),
        processes.memory_bytes(record),
        log,
        restarts,
    )


def wipe(context: PlatformContext) -> None:
    """Delete data, logs and generated secrets, but not jars and installers; nothing may run."""
    keep = {"jars", "tools"} if context.layout.data == ROOT / ".fennel" else set()
    for path in context.layout.data.iterdir():
        if path.name in keep:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    if context.layout.run.exists():
        shutil.rmtree(context.layout.run)
