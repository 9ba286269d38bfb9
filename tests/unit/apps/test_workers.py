"""Several workers behind one port: supervised, stopped together, and counted as one server."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fennel_core.apps.workers import (
    LONGEST_PAUSE_S,
    HelperResources,
    bound_socket,
    inherited_resources,
    restart_pause_s,
)
from tests.support.polling import eventually_sync
from tests.support.ports import free_port

STARTS_WITHIN_S = 60.0
"""Its imports take seconds of a busy machine."""
ROOT = Path(__file__).resolve().parents[3]
PARENT = """
import asyncio, os, sys
from fennel_core.apps import workers
workers.FIRST_PAUSE_S = 0.05
memory = os.memfd_create("shared")
port = workers.bound_socket("127.0.0.1", int(sys.argv[1]))
helpers = int(sys.argv[2])
run = workers.run_workers("served", 2, port, grace_s=5, memory=memory, helpers=helpers)
sys.exit(asyncio.run(run))
"""
WORKER = """
import sys
from pathlib import Path

if Path("broken").exists() and "--helper" not in sys.argv:
    sys.exit(3)

import asyncio, os
from fennel_core.apps.http_protection import Protection
from fennel_core.apps.serve import serve_http
from fennel_core.apps.workers import HelperResources, inherited_resources, stop_with_parent
from fennel_core.telemetry import metrics

async def app(scope, receive, send):
    if scope["path"] == "/slow":
        Path("slow").touch()
        while not Path("go").exists():
            await asyncio.sleep(0.01)
    if scope["path"] == "/metrics":
        body = metrics.render()
    else:
        metrics.STALE_READS.inc()
        body = str(os.getpid()).encode()
    headers = [(b"connection", b"close")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})

async def main():
    stop_with_parent()
    inherited = inherited_resources(sys.argv[1:])
    if isinstance(inherited, HelperResources):
        Path(f"helper-{os.getpid()}").write_text(inherited.address)
        await asyncio.Event().wait()
    Path(f"addresses-{os.getpid()}").write_text(" ".join(inherited.helpers))
    listener = inherited.listener
    await serve_http(app, "", 0, protection=Protection(), grace_s=5, listener=listener)

asyncio.run(main())
"""


class Server:
    def __init__(self, folder: Path, helpers: int) -> None:
        self.folder, self.port = folder, free_port()
        (folder / "served.py").write_text(WORKER)
        self.parent = subprocess.Popen(  # noqa: S603  # a program of this test, and no shell
            [sys.executable, "-c", PARENT, str(self.port), str(helpers)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": f"{folder}:{ROOT}", "TMPDIR": str(folder)},
        )

    def get(self, path: str = "/") -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=20) as answer:
            text: str = answer.read().decode()
            return text

    def responds(self) -> bool:
        try:
            self.get("/metrics")
        except OSError:
            return False
        return True

    def workers(self) -> list[int]:
        """Return the pids of the workers that run."""
        listed = Path(f"/proc/{self.parent.pid}/task/{self.parent.pid}/children").read_text()
        return [int(pid) for pid in listed.split() if alive(int(pid))]

    def helpers(self) -> dict[int, str]:
        """Return the addresses of the helpers that run, by pid."""
        written = {
            int(path.name.removeprefix("helper-")): path.read_text()
            for path in self.folder.glob("helper-*")
        }
        return {pid: address for pid, address in written.items() if address and alive(pid)}

    def served_by(self, pid: int) -> str:
        """Return the response of the one worker that is not frozen."""
        others = [other for other in self.workers() if other != pid]
        for other in others:
            os.kill(other, signal.SIGSTOP)
        try:
            return self.get()
        finally:
            for other in others:
                os.kill(other, signal.SIGCONT)

    def counted(self) -> float:
        found = re.search(r"^fennel_stale_reads_counter (\S+)$", self.get("/metrics"), re.M)
        return float(found[1]) if found else 0.0


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@contextmanager
def running(folder: Path, helpers: int = 0) -> Iterator[Server]:
    server = Server(folder, helpers)
    try:
        yield server
    finally:
        server.parent.kill()
        server.parent.wait()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running(tmp_path) as made:
        eventually_sync(made.responds, within_s=STARTS_WITHIN_S)
        eventually_sync(lambda: len(made.workers()) == 2)
        # Both listen: each responds while the other is frozen.
        for pid in made.workers():
            made.served_by(pid)
        yield made


def test_each_worker_serves_the_port_and_metrics_are_those_of_all(server: Server) -> None:
    before = server.counted()
    pids = server.workers()
    assert [server.served_by(pid) for pid in pids] == [str(pid) for pid in pids]
    assert server.counted() == before + 2


def test_a_worker_that_dies_is_restarted_and_its_counts_stay(server: Server) -> None:
    before, [first, second] = server.counted(), server.workers()
    os.kill(first, signal.SIGKILL)
    assert server.get() == str(second)
    os.kill(second, signal.SIGSTOP)
    try:
        third = server.get()
    finally:
        os.kill(second, signal.SIGCONT)
    assert third not in {str(first), str(second)}
    assert server.counted() == before + 2
    assert server.parent.poll() is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_finishes_requests_and_stops_every_worker(
    server: Server, number: signal.Signals
) -> None:
    pids = server.workers()
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n")
        eventually_sync((server.folder / "slow").exists)
        server.parent.send_signal(number)
        eventually_sync(lambda: not server.responds())
        (server.folder / "go").touch()
        response = b"".join(iter(lambda: client.recv(4096), b""))
    assert response.startswith(b"HTTP/1.1 200")
    assert server.parent.wait(20) == 0
    assert [pid for pid in pids if alive(pid)] == []
    assert list(server.folder.glob("fennel-workers-*")) == []


@pytest.mark.parametrize("helpers", [0, 1])
def test_without_a_worker_the_parent_ends(tmp_path: Path, helpers: int) -> None:
    # The parent ends when both are gone at one time, which is when the doubled pauses exceed the
    # time from start to failure. So they fail before their imports, which take seconds.
    (tmp_path / "broken").touch()
    with running(tmp_path, helpers) as server:
        assert server.parent.wait(2 * STARTS_WITHIN_S) == 1


def test_a_helper_that_dies_is_restarted_at_its_address_and_workers_stay(tmp_path: Path) -> None:
    with running(tmp_path, helpers=1) as server:
        eventually_sync(server.responds, within_s=STARTS_WITHIN_S)
        eventually_sync(lambda: len(server.helpers()) == 1, within_s=STARTS_WITHIN_S)
        workers = set(server.workers()) - set(server.helpers())
        [(first, address)] = server.helpers().items()
        pid = int(server.get())
        assert (tmp_path / f"addresses-{pid}").read_text() == address
        os.kill(first, signal.SIGKILL)
        eventually_sync(
            lambda: list(server.helpers()) not in ([], [first]), within_s=STARTS_WITHIN_S
        )
        assert list(server.helpers().values()) == [address]
        assert set(server.workers()) - set(server.helpers()) == workers
        server.parent.send_signal(signal.SIGTERM)
        assert server.parent.wait(20) == 0


def test_no_worker_outlives_a_parent_that_was_killed(server: Server) -> None:
    pids = server.workers()
    server.parent.kill()
    server.parent.wait()
    eventually_sync(lambda: not any(map(alive, pids)))


def test_a_port_in_use_is_refused_before_any_worker_starts(server: Server) -> None:
    with pytest.raises(OSError, match="in use"):
        bound_socket("127.0.0.1", server.port)


def test_pauses_double_up_to_a_limit() -> None:
    assert [restart_pause_s(failures) for failures in (1, 2, 3)] == [1.0, 2.0, 4.0]
    assert restart_pause_s(1000) == LONGEST_PAUSE_S


def test_a_process_without_a_parent_is_refused() -> None:
    with pytest.raises(ValueError, match="started by its parent"):
        inherited_resources([])


def test_a_helper_is_told_its_address_and_the_memory() -> None:
    assert inherited_resources(["--helper", "3", "a.sock"]) == HelperResources("a.sock", 3)
