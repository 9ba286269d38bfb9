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

from fennel_core.apps.local import postgres, processes
from fennel_core.apps.local.checks import complaints
from fennel_core.apps.local.decide import Decision, Running, decide, stopping_waves, with_needs
from fennel_core.apps.local.health import ask
from fennel_core.apps.local.host import HostError, look_around
from fennel_core.apps.local.keys import Keys, ensure_keys
from fennel_core.apps.local.launch import Failure, Launch
from fennel_core.apps.local.layout import ROOT, Layout
from fennel_core.apps.local.parts import WATCH, Part, process_env, table
from fennel_core.apps.local.progress import display_for
from fennel_core.apps.local.steps import Machine
from fennel_core.settings.model import Settings


def machine_here() -> Machine:
    """Reads the settings, makes the folders and keys. Raises HostError and OSError."""
    asked = Settings()
    layout = Layout(root=ROOT, data=(ROOT / asked.data_dir).resolve())
    layout.make()
    keys = ensure_keys(layout.secrets)
    return Machine(
        settings=local_settings(asked, layout, keys), layout=layout, keys=keys, host=look_around()
    )


def local_settings(asked: Settings, layout: Layout, keys: Keys) -> Settings:
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


class Busy(Exception):
    """Somebody else is starting or stopping parts."""


@contextmanager
def only_one(layout: Layout, wait: bool = True) -> Iterator[None]:
    """Who starts or stops parts does so alone. Raises Busy instead of waiting if asked to."""
    with (layout.data / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise Busy from error
        yield


def up(machine: Machine, wanted: Sequence[Part]) -> tuple[Failure, ...]:
    """Starts the wanted parts and what they need, shows progress, returns what failed.

    Raises HostError, one sentence per line, if it is clear beforehand that it cannot work.
    """
    layout = machine.layout
    rows = table(machine)
    parts = with_needs(rows, [*wanted, *(row for row in rows if row.name == WATCH)])
    with only_one(layout):
        starting = [part for part in parts if decide(part, running(layout, part)) is Decision.START]
        if sentences := complaints(machine.settings, layout, machine.host, starting):
            raise HostError("\n".join(sentences))
        write_env_file(layout, process_env(machine.settings))
        with display_for(parts, layout) as display:
            return Launch(machine, display).run(parts)


def running(layout: Layout, part: Part) -> Running | None:
    record = processes.read_record(layout.pids / part.name)
    return Running(record.digest) if record is not None and processes.is_alive(record) else None


def write_env_file(layout: Layout, variables: Mapping[str, str]) -> None:
    """`NAME=value` lines, for `Settings(_env_file=…)`; only its owner may read it."""
    new = layout.env_file.with_suffix(".new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.writelines(f"{name}={value}\n" for name, value in variables.items())
    new.replace(layout.env_file)


@dataclass(frozen=True, slots=True)
class Stopped:
    """A part that ran and does no more. `gently`: nobody had to be killed."""

    name: str
    gently: bool


def down(machine: Machine, wanted: Sequence[Part]) -> tuple[Stopped, ...]:
    """Stops what `up` started among the wanted parts, those who need others first; touches no other
    process.
    """
    layout = machine.layout
    known = {part.name for part in table(machine)}
    with only_one(layout):
        stopped: list[Stopped] = []
        if len(wanted) == len(known):
            # Rows of an earlier table, as Airflow's after a change to the inline orchestrator.
            others = [
                path.name
                for path in sorted(layout.pids.iterdir())
                if path.name not in known and not path.suffix
            ]
            stopped += _stop_all(machine, dict.fromkeys(others, signal.SIGTERM))
        # The watch goes first: it would start the others again.
        stopped += _stop_all(
            machine, {part.name: part.stop_signal for part in wanted if part.name == WATCH}
        )
        for wave in stopping_waves([part for part in wanted if part.name != WATCH]):
            stopped += _stop_all(machine, {part.name: part.stop_signal for part in wave})
    return tuple(stopped)


def _stop_all(machine: Machine, signals: Mapping[str, signal.Signals]) -> list[Stopped]:
    def stop_one(name: str) -> Stopped | None:
        path = machine.layout.pids / name
        record = processes.read_record(path)
        there = record is not None and bool(processes.members(record))
        gently = (
            processes.stop(record, signals[name], machine.settings.shutdown_grace_s)
            if record is not None
            else True
        )
        path.unlink(missing_ok=True)
        return Stopped(name, gently) if there else None

    with ThreadPoolExecutor(max_workers=max(1, len(signals))) as pool:
        return [stopped for stopped in pool.map(stop_one, signals) if stopped is not None]


@dataclass(frozen=True, slots=True)
class PartStatus:
    """One row of `status`. `state`: ready, starting, died or stopped; `why` says more where it is
    not ready.
    """

    part: Part
    state: str
    why: str
    pid: int | None
    age_s: float | None
    memory_bytes: int | None
    log: Path


def status(machine: Machine) -> tuple[PartStatus, ...]:
    """Every part of the table; all health checks are asked at once."""
    parts = table(machine)
    with ThreadPoolExecutor(max_workers=len(parts)) as pool:
        return tuple(pool.map(lambda part: _status_of(machine.layout, part), parts))


def _status_of(layout: Layout, part: Part) -> PartStatus:
    record = processes.read_record(layout.pids / part.name)
    log = layout.log(part.name)
    if record is None:
        return PartStatus(part, "stopped", "", None, None, None, log)
    if not processes.is_alive(record):
        return PartStatus(
            part,
            "died",
            f"`fennel-core up` starts it again; see {layout.shown(log)}",
            None,
            None,
            None,
            log,
        )
    why = ask(part.health, processes.began_at(record))
    state = "ready" if why is None else "not ready"
    return PartStatus(
        part,
        state,
        why or "",
        record.pid,
        processes.age_s(record),
        processes.memory_bytes(record),
        log,
    )


def wipe(machine: Machine) -> None:
    """Deletes data, logs and generated secrets; nothing may run. The installers' tools and the jars
    stay.
    """
    keep = {"jars", "tools"} if machine.layout.data == ROOT / ".fennel" else set()
    for path in machine.layout.data.iterdir():
        if path.name in keep:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    if machine.layout.run.exists():
        shutil.rmtree(machine.layout.run)
