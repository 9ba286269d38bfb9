"""A server that receives a stop signal closes its resources."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.polling import eventually_sync
from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parents[3]
SERVER = """
import asyncio
import sys
from pathlib import Path

from fennel_core.apps.http_protection import Protection
from fennel_core.apps.serve import serve_http


async def app(scope, receive, send):
    await asyncio.sleep(0.2)  # the request is under way when the signal arrives
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"done"})


async def main(port, closed):
    stopping_s = -1.0
    try:
        stopping_s = await serve_http(app, "127.0.0.1", port, protection=Protection(), grace_s=5)
    finally:
        await asyncio.sleep(0)
        Path(closed).write_text(str(stopping_s))


asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
"""


def connected(port: int) -> socket.socket | None:
    try:
        return socket.create_connection(("127.0.0.1", port))
    except ConnectionRefusedError:
        return None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_finishes_the_request_and_runs_the_callers_cleanup(
    number: signal.Signals, tmp_path: Path
) -> None:
    port, closed = free_port(), tmp_path / "closed"
    process = subprocess.Popen(  # noqa: S603  # a program of this test, and no shell
        [sys.executable, "-c", SERVER, str(port), str(closed)],
        cwd=ROOT,
    )
    try:
        clients: list[socket.socket] = []
        eventually_sync(lambda: (client := connected(port)) and clients.append(client) is None)
        with clients[0] as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            # The server reads the request before the signal, as both wait for its event loop.
            process.send_signal(number)
            response = b"".join(iter(lambda: client.recv(4096), b""))
        assert response.startswith(b"HTTP/1.1 200")
        assert response.endswith(b"done\r\n0\r\n\r\n")
        assert process.wait(10) == 0
        assert 0.1 < float(closed.read_text()) < 5, "since the signal, with the request of 0.2 s"
    finally:
        process.kill()
        process.wait()
