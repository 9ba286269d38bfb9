"""Pre-flight checks: problems that would stop a start, found before anything is started.

Each problem is one message that names the next action.
"""

import hashlib
import re
import shutil
import socket
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import psutil

from fennel_core.apps.local.file_layout import FileLayout
from fennel_core.apps.local.host_environment import HostEnvironment
from fennel_core.apps.local.services import FENNEL, Port, Service
from fennel_core.settings.model import MIB, Settings

DISK_NEEDED_BYTES: Final = 1024 * MIB
"""Kafka, Postgres and RocksDB fail badly on a full disk; one GiB holds a day of the demo."""
JAVA_NEEDED: Final = 17
MADE_FROM_REQUIREMENTS: Final = ".requirements"
"""File in the executors' environment: digest of the requirements file that it was made from."""
NO_REQUIREMENTS: Final = "none"


def preflight_problems(
    settings: Settings, layout: FileLayout, host: HostEnvironment, starting: Sequence[Service]
) -> tuple[str, ...]:
    """Return every problem that would stop these services from starting; empty if there is none."""
    return (
        *_container_settings(settings),
        *_disk(layout.data),
        *_java(host),
        *_jars(layout),
        *(
            _executor_environment(settings, layout)
            if any(service.group == FENNEL for service in starting)
            else ()
        ),
        *_shared_ports(starting),
        *(
            problem
            for service in starting
            for port in service.ports
            for problem in _port(service, port)
        ),
    )


def _container_settings(settings: Settings) -> Iterable[str]:
    if settings.published_host is not None or settings.reach_by_name:
        yield (
            "FENNEL_PUBLISHED_HOST and FENNEL_REACH_BY_NAME apply to containers only. "
            "Unset them, and set FENNEL_HOST to make the platform reachable from other machines."
        )


def _disk(folder: Path) -> Iterable[str]:
    free = shutil.disk_usage(folder).free
    if free < DISK_NEEDED_BYTES:
        yield (
            f"The disk of {folder} has {free // MIB} MiB free, and at least "
            f"{DISK_NEEDED_BYTES // MIB} MiB are needed. "
            "Free some space, or set FENNEL_DATA_DIR to a folder on another disk."
        )


def _java(host: HostEnvironment) -> Iterable[str]:
    done = subprocess.run([host.java, "-version"], capture_output=True, text=True, check=False)  # noqa: S603  # a fixed list of arguments, and no shell
    found = re.search(r'version "(\d+)', done.stderr)
    if found is None or int(found.group(1)) < JAVA_NEEDED:
        version = found.group(1) if found else "unknown"
        yield (
            f"Java {JAVA_NEEDED} or newer is needed, and {host.java} is version {version}. "
            "Run `make system`, or set JAVA_HOME."
        )


def _jars(layout: FileLayout) -> Iterable[str]:
    if not (layout.jars / ".made-from").exists():
        yield "The Kafka, S3 and Spark jars are missing: run `make jars`."


def _executor_environment(settings: Settings, layout: FileLayout) -> Iterable[str]:
    python = layout.root / settings.executor_python
    if not python.exists():
        yield f"The client's environment is missing ({python}): run `make env`."
        return
    yield from executor_requirements_problems(settings, layout, python.parent.parent)


def executor_requirements_problems(
    settings: Settings, layout: FileLayout, environment: Path
) -> Iterable[str]:
    """Compare the installation's requirements file with the one of the environment.

    An environment that something else than `make env` made has no record, and is its owner's.
    """
    stamp = environment / MADE_FROM_REQUIREMENTS
    if settings.executor_requirements is None:
        wanted = NO_REQUIREMENTS
    else:
        file = layout.root / settings.executor_requirements
        if not file.is_file():
            yield f"FENNEL_EXECUTOR_REQUIREMENTS={file} does not exist: name a file, or unset it."
            return
        wanted = hashlib.sha256(file.read_bytes()).hexdigest()
    made_from = stamp.read_text() if stamp.exists() else NO_REQUIREMENTS
    if made_from != wanted:
        what = "has changed" if made_from != NO_REQUIREMENTS else "is not installed yet"
        if wanted == NO_REQUIREMENTS:
            what = "is unset, and its packages are still installed"
        yield f"FENNEL_EXECUTOR_REQUIREMENTS {what}: run `make env` with the same value."


def _shared_ports(starting: Sequence[Service]) -> Iterable[str]:
    """Find ports of two services: some are derived from others unless they are set."""
    first: dict[int, tuple[Service, Port]] = {}
    for service in starting:
        for port in service.ports:
            other, others = first.setdefault(port.number, (service, port))
            if others is not port:
                yield (
                    f"Port {port.number} is that of {other.title} ({others.variable}) and of "
                    f"{service.title} ({port.variable}). Set one of them to a free port."
                )


def _port(service: Service, port: Port) -> Iterable[str]:
    if is_free(port.host, port.number):
        return
    owner = _listener(port.number)
    by = f"by pid {owner[0]} ({owner[1]})" if owner else "by another program"
    yield (
        f"Port {port.number}, which {service.title} needs, is in use {by}. Stop that process, or "
        f"set {port.variable} to a free port."
    )


def is_free(host: str, port: int) -> bool:
    """Return whether the port can be bound now; old connections in TIME_WAIT do not count."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _listener(port: int) -> tuple[int, str] | None:
    """Return pid and name of the process that listens on a port, if this user may see it."""
    try:
        for connection in psutil.net_connections(kind="tcp"):
            listens = connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
            if listens and connection.pid is not None:
                return connection.pid, psutil.Process(connection.pid).name()
    except psutil.Error:
        return None
    return None
