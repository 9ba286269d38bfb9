"""The local platform as a whole: `up`, `down`, `status` and `wipe`, for the command line and for
tests.

`up` runs every part on this machine, so it decides every address itself from the ports; other
settings come from `FENNEL_*`. What it decided is written to `<data>/env`, from which anybody can
make the same `Settings`.
"""

import fcntl
import os
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from fennel_core.apps.errors import PlatformLocked, SetupFailed
from fennel_core.apps.local import postgres, processes
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
from fennel_core.apps.local.platform_keys import PlatformKeys, ensure_keys
from fennel_core.apps.local.preflight import preflight_problems
from fennel_core.apps.local.readiness import check_readiness
from fennel_core.apps.local.services import WATCHDOG, Service, process_env, service_table
from fennel_core.apps.local.setup_steps import PlatformContext
from fennel_core.apps.local.start_display import display_for
from fennel_core.settings.model import Settings


def load_context() -> PlatformContext:
    """Reads the settings, makes the folders and keys. Raises HostError and OSError."""
    asked = Settings()
    layout = FileLayout(root=ROOT, data=(ROOT / asked.data_dir).resolve())
    layout.make()
    keys = ensure_keys(layout.secrets)
    return PlatformContext(
        settings=local_settings(asked, layout, keys), layout=layout, keys=keys, host=inspect_host()
    )


def local_settings(asked: Settings, layout: FileLayout, keys: PlatformKeys) -> Settings:
    """The asked settings with every address, folder and password of the local platform put in."""
    return asked.model_copy(
        update={
            "postgres_dsn": SecretStr(postgres.dsn(asked, keys)),
            "kafka_bootstrap": f"{asked.address_of('kafka')}:{asked.kafka_port}",
            "s3_endpoint": f"http://{asked.address_of('s3')}:{asked.s3_port}",
            "s3_secret_key": SecretStr(keys.s3_secret_key),
            "airflow_url": f"http://{asked.address_of('airflow-api')}:{asked.airflow_port}",
            "airflow_password": SecretStr(keys.airflow_password),
            "admin_token": SecretStr(keys.admin_token),
            "secrets_key_file": layout.secrets / "users_secrets_key",
            "data_dir": layout.data,
            "run_dir": layout.run,
            "jars_dir": layout.jars,
            "executor_python": ROOT / asked.executor_python,
            "dev_tokens": asked.dev_tokens
            or ("dev_tokens" not in asked.model_fields_set and asked.only_on_loopback),
        }
    )


@contextmanager
def platform_lock(layout: FileLayout, wait: bool = True) -> Iterator[None]:
    """Who starts or stops parts does so alone. Raises Busy instead of waiting if asked to."""
    with (layout.data / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise PlatformLocked from error
        yield


def up(context: PlatformContext, wanted: Sequence[Service]) -> tuple[StartFailure, ...]:
    """Starts the wanted parts and what they need, shows progress, returns what failed.

    Raises HostError, one sentence per line, if it is clear beforehand that it cannot work.
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
        if sentences := preflight_problems(context.settings, layout, context.host, starting):
            raise SetupFailed("\n".join(sentences))
        write_env_file(layout, process_env(context.settings))
        with display_for(services, layout) as display:
            return Launcher(context, display).run(services)


def running(layout: FileLayout, service: Service) -> RunningService | None:
    record = processes.read_record(layout.pids / service.name)
    return (
        RunningService(record.digest) if record is not None and processes.is_alive(record) else None
    )


def write_env_file(layout: FileLayout, variables: Mapping[str, str]) -> None:
    """`NAME=value` lines, for `Settings(_env_file=…)`; only its owner may read it."""
    new = layout.env_file.with_suffix(".new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.writelines(f"{name}={value}\n" for name, value in variables.items())
    new.replace(layout.env_file)


@dataclass(frozen=True, slots=True)
class StoppedService:
    """A part that ran and does no more. `gently`: nobody had to be killed."""

    name: str
    gently: bool


def down(context: PlatformContext, wanted: Sequence[Service]) -> tuple[StoppedService, ...]:
    """Stops what `up` started among the wanted parts, those who need others first; touches no other
    process.
    """
    layout = context.layout
    known = {service.name for service in service_table(context)}
    with platform_lock(layout):
        stopped: list[StoppedService] = []
        if len(wanted) == len(known):
            # Rows of an earlier table, as Airflow's after a change to the inline orchestrator.
            others = [
                path.name
                for path in sorted(layout.pids.iterdir())
                if path.name not in known and not path.suffix
            ]
            stopped += _stop_all(context, dict.fromkeys(others, signal.SIGTERM))
        # The watch goes first: it would start the others again.
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
    """One row of `status`. `state`: ready, starting, died or stopped; `why` says more where it is
    not ready.
    """

    service: Service
    state: str
    why: str
    pid: int | None
    age_s: float | None
    memory_bytes: int | None
    log: Path


def status(context: PlatformContext) -> tuple[ServiceStatus, ...]:
    """Every part of the table; all health checks are asked at once."""
    services = service_table(context)
    with ThreadPoolExecutor(max_workers=len(services)) as pool:
        return tuple(pool.map(lambda service: _status_of(context.layout, service), services))


def _status_of(layout: FileLayout, service: Service) -> ServiceStatus:
    record = processes.read_record(layout.pids / service.name)
    log = layout.log(service.name)
    if record is None:
        return ServiceStatus(service, "stopped", "", None, None, None, log)
    if not processes.is_alive(record):
        return ServiceStatus(
            service,
            "died",
            f"`fennel-core up` starts it again; see {layout.shown(log)}",
            None,
            None,
            None,
            log,
        )
    why = check_readiness(service.health, processes.began_at(record))
    state = "ready" if why is None else "not ready"
    return ServiceStatus(
        service,
        state,
        why or "",
        record.pid,
        processes.age_s(record),
        processes.memory_bytes(record),
        log,
    )


def wipe(context: PlatformContext) -> None:
    """Deletes data, logs and generated secrets; nothing may run. The installers' tools and the jars
    stay.
    """
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
