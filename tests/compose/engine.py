"""A Docker engine for the test: the one that runs, or one of our own that is gone afterwards with
all it holds.

Our own listens on a socket in a private folder, so that nobody else meets it, and keeps its images
and volumes in a folder of the checkout. The engine rewrites the machine's packet filter; what stood
there before is put back.
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
NEEDED: Final = ("docker", "debootstrap", "iptables-save")
PACKAGES: Final = "docker.io docker-compose debootstrap iptables iproute2"


class Unable(Exception):
    """This machine cannot run the test; the text is one sentence that says what to do."""


def run(*words: str, env: dict[str, str] | None = None, quiet: bool = False) -> str:
    """Standard output of a command that must succeed; its complaints are shown unless they are part
    of an answer.
    """
    done = subprocess.run(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if quiet else None,
        text=True,
        env=env,
        check=False,
    )
    if done.returncode != 0:
        raise Unable(
            f"`{' '.join(words)}` ended with {done.returncode}: "
            f"{(done.stdout + (done.stderr or ''))[-2000:].strip()}"
        )
    return done.stdout


def compose_program() -> list[str]:
    """Version 2 where there is one, else version 1."""
    if (
        subprocess.run(
            ["docker", "compose", "version"], capture_output=True, check=False
        ).returncode
        == 0
    ):
        return ["docker", "compose"]
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    raise Unable(f"Compose is missing: run apt-get install -y --no-install-recommends {PACKAGES}")


@contextmanager
def docker_engine(data: Path, *, keep: bool) -> Iterator[dict[str, str]]:
    """Variables with which `docker` and `docker-compose` reach an engine. `data`: where our own
    keeps everything; removed unless `keep`.
    """
    if missing := [name for name in NEEDED if shutil.which(name) is None]:
        raise Unable(
            f"{', '.join(missing)} is missing: run apt-get install -y "
            f"--no-install-recommends {PACKAGES}"
        )
    if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0:
        print("Docker: the engine of this machine")
        yield {}
        return
    if os.getuid() != 0 or shutil.which("dockerd") is None:
        raise Unable(
            "No Docker engine answers, and only root with `dockerd` can start one: "
            "start yours and run again."
        )
    data.mkdir(parents=True, exist_ok=True, mode=0o700)
    packet_filter = _packet_filter()
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
        process = subprocess.Popen(
            ["dockerd", "--host", address, *folders],
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            _wait_until_ready(process, {"DOCKER_HOST": address}, log.name)
            print(f"Docker: an engine of our own ({log.name})")
            yield {"DOCKER_HOST": address}
        finally:
            process.terminate()
            process.wait(STOP_S)
            subprocess.run(["ip", "link", "delete", "docker0"], capture_output=True, check=False)
            subprocess.run(["iptables-restore"], input=packet_filter, text=True, check=True)
    if not keep:
        shutil.rmtree(data)


def _packet_filter() -> str:
    """For `iptables-restore`, which leaves a table alone that its input does not name: one that is
    empty now is named as empty.
    """
    found = run("iptables-save")
    return found + "".join(
        f"*{table}\nCOMMIT\n" for table in ("filter", "nat") if f"*{table}\n" not in found
    )


def _wait_until_ready(process: subprocess.Popen[bytes], env: dict[str, str], log: str) -> None:
    deadline = time.monotonic() + READY_S
    while (
        subprocess.run(
            ["docker", "info"], env={**os.environ, **env}, capture_output=True, check=False
        ).returncode
        != 0
    ):
        if process.poll() is not None or time.monotonic() > deadline:
            raise Unable(f"The Docker engine did not start: see {log}")
        time.sleep(0.3)
