"""A Docker engine for the test: the running one, or a temporary one.

The temporary engine listens on a socket in a private folder and keeps its images and volumes in a
folder of the checkout. It changes the machine's packet filter and forwards packets, which is undone
afterwards.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

READY_S: Final = 60.0
STOP_S: Final = 60.0
FORWARDING: Final = Path("/proc/sys/net/ipv4/ip_forward")
NEEDED: Final = ("docker", "debootstrap", "iptables-save")
PACKAGES: Final = "docker.io docker-compose debootstrap iptables iproute2"


class CannotRun(Exception):
    """Raised when this machine cannot run the test; the text names the next action."""


def run(*words: str, env: dict[str, str] | None = None, quiet: bool = False) -> str:
    """Return the standard output of a command that must succeed; `quiet` hides its errors."""
    done = subprocess.run(  # noqa: S603  # a program of this test, and no shell
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if quiet else None,
        text=True,
        env=env,
        check=False,
    )
    if done.returncode != 0:
        raise CannotRun(
            f"`{' '.join(words)}` ended with {done.returncode}: "
            f"{(done.stdout + (done.stderr or ''))[-2000:].strip()}"
        )
    return done.stdout


def compose_program() -> list[str]:
    """Return the command of Compose 2, or of Compose 1 if only that is installed."""
    if (
        subprocess.run(
            ["docker", "compose", "version"],  # noqa: S607  # found on the PATH, as by its users
            capture_output=True,
            check=False,
        ).returncode
        == 0
    ):
        return ["docker", "compose"]
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    raise CannotRun(
        f"Compose is missing: run apt-get install -y --no-install-recommends {PACKAGES}"
    )


@contextmanager
def docker_engine(data: Path, *, keep: bool) -> Iterator[dict[str, str]]:
    """Yield the variables with which `docker` reaches an engine.

    `data`: folder of a temporary engine, removed unless `keep`.
    """
    if missing := [name for name in NEEDED if shutil.which(name) is None]:
        raise CannotRun(
            f"{', '.join(missing)} is missing: run apt-get install -y "
            f"--no-install-recommends {PACKAGES}"
        )
    if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0:  # noqa: S607  # found on the PATH, as by its users
        print("Docker: the running engine")
        yield {}
        return
    if os.getuid() != 0 or shutil.which("dockerd") is None:
        raise CannotRun(
            "No Docker engine responds, and only root with `dockerd` can start one. "
            "Start yours and run again."
        )
    data.mkdir(parents=True, exist_ok=True, mode=0o700)
    packet_filter, forwarding = _packet_filter(), FORWARDING.read_text()
    with (
        tempfile.TemporaryDirectory(prefix="fennel-docker-") as run_folder,
        (data.parent / "dockerd.log").open("w") as log,
    ):
        address = f"unix://{run_folder}/docker.sock"
        folders = [
            "--data-root",
            str(data),
            "--exec-root",
            f"{run_folder}/exec",
            "--pidfile",
            f"{run_folder}/pid",
        ]
        process = subprocess.Popen(  # noqa: S603  # a program of this test, and no shell
            ["dockerd", "--host", address, *folders],  # noqa: S607  # found on the PATH, as by its users
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            _wait_until_ready(process, {"DOCKER_HOST": address}, log.name)
            print(f"Docker: a temporary engine ({log.name})")
            yield {"DOCKER_HOST": address}
        finally:
            process.terminate()
            process.wait(STOP_S)
            subprocess.run(["ip", "link", "delete", "docker0"], capture_output=True, check=False)  # noqa: S607  # found on the PATH, as by its users
            subprocess.run(["iptables-restore"], input=packet_filter, text=True, check=True)  # noqa: S607  # found on the PATH, as by its users
            FORWARDING.write_text(forwarding)
    if not keep:
        shutil.rmtree(data)


def _packet_filter() -> str:
    """Return the packet filter for `iptables-restore`.

    A table that is empty now is listed as empty, because tables not listed are not changed.
    """
    found = run("iptables-save")
    return found + "".join(
        f"*{table}\nCOMMIT\n" for table in ("filter", "nat") if f"*{table}\n" not in found
    )


def _wait_until_ready(process: subprocess.Popen[bytes], env: dict[str, str], log: str) -> None:
    deadline = time.monotonic() + READY_S
    while (
        subprocess.run(
            ["docker", "info"],  # noqa: S607  # found on the PATH, as by its users
            env={**os.environ, **env},
            capture_output=True,
            check=False,
        ).returncode
        != 0
    ):
        if process.poll() is not None or time.monotonic() > deadline:
            raise CannotRun(f"The Docker engine did not start. See {log}")
        time.sleep(0.3)  # not `eventually_sync`: the failure is CannotRun
