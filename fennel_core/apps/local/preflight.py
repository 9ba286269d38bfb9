"""What can be known to go wrong before anything is started, each as one sentence that says what to
do.
"""

import re
import shutil
import socket
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from fennel_core.apps.local.file_layout import FileLayout
from fennel_core.apps.local.host_environment import HostEnvironment
from fennel_core.apps.local.services import FENNEL, Port, Service
from fennel_core.settings.model import MIB, Settings

DISK_NEEDED_BYTES: Final = 1024 * MIB
"""Kafka, Postgres and RocksDB all stop badly on a full disk; one GiB is a day of the demo's data
and logs.
"""
JAVA_NEEDED: Final = 17


def preflight_problems(
    settings: Settings, layout: FileLayout, host: HostEnvironment, starting: Sequence[Service]
) -> tuple[str, ...]:
    """Everything that stands in the way of starting these parts; empty if nothing does."""
    return (
        *_containers_only(settings),
        *_disk(layout.data),
        *_java(host),
        *_jars(layout),
        *(
            _executor_environment(settings, layout)
            if any(service.group == FENNEL for service in starting)
            else ()
        ),
        *(
            sentence
            for service in starting
            for port in service.ports
            for sentence in _port(service, port, settings.host)
        ),
    )


def _containers_only(settings: Settings) -> Iterable[str]:
    if settings.published_host is not None or settings.reach_by_name:
        yield (
            "FENNEL_PUBLISHED_HOST and FENNEL_REACH_BY_NAME describe containers, and "
            "here parts run on the machine itself: unset them, "
            "and set FENNEL_HOST if others shall reach it."
        )


def _disk(folder: Path) -> Iterable[str]:
    free = shutil.disk_usage(folder).free
    if free < DISK_NEEDED_BYTES:
        yield (
            f"The disk that holds {folder} has {free // MIB} MiB free and at least "
            f"{DISK_NEEDED_BYTES // MIB} MiB are needed: "
            "free some space, or set FENNEL_DATA_DIR to another disk."
        )


def _java(host: HostEnvironment) -> Iterable[str]:
    said = subprocess.run(
        [host.java, "-version"], capture_output=True, text=True, check=False
    ).stderr
    found = re.search(r'version "(\d+)', said)
    if found is None or int(found.group(1)) < JAVA_NEEDED:
        version = found.group(1) if found else "unknown"
        yield (
            f"Java {JAVA_NEEDED} or newer is needed and {host.java} is version "
            f"{version}: run `make system`, or set JAVA_HOME."
        )


def _jars(layout: FileLayout) -> Iterable[str]:
    if not (layout.jars / ".made-from").exists():
        yield "The Kafka, S3 and Spark jars are missing: run `make jars`."


def _executor_environment(settings: Settings, layout: FileLayout) -> Iterable[str]:
    python = layout.root / settings.executor_python
    if not python.exists():
        yield f"The client's environment is missing ({python}): run `make env`."


def _port(service: Service, port: Port, host: str) -> Iterable[str]:
    if is_free(host, port.number):
        return
    owner = _owner(port.number)
    by = f"by pid {owner[0]} ({owner[1]})" if owner else "by another program"
    yield (
        f"Port {port.number}, which {service.title} wants, is in use {by}: stop that, or "
        f"set {port.variable} to a free port."
    )


def is_free(host: str, port: int) -> bool:
    """Whether it can be bound now; connections of the past in TIME_WAIT do not count."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _owner(port: int) -> tuple[int, str] | None:
    """Pid and name of who listens on a port, if we may know."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            words = line.split()
            if int(words[1].rpartition(":")[2], 16) == port and words[3] == "0A":
                inodes.add(f"socket:[{words[9]}]")
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and inodes & _sockets(process):
            return int(process.name), (process / "comm").read_text().strip()
    return None


def _sockets(process: Path) -> set[str]:
    targets = set()
    try:
        for link in (process / "fd").iterdir():
            with suppress(FileNotFoundError):  # closed between listing and reading
                targets.add(str(link.readlink()))
    except OSError:  # it ended, or it is somebody else's
        return set()
    return targets
