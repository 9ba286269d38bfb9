"""Hostile extractors against real executors: as root, as an ordinary user, as in a container.

`make compose-test` runs it beside the executors of docker-compose.yml, which `RUNNING` names.

Each is refused or ended with an error to its author, and leaves the executors, the platform's files
and the calls of other workspaces as they were.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest

from fennel_core.executors.client import Callbacks, Executors
from fennel_core.executors.errors import CallFailed, ExecutorCrashed, ExecutorTimeout
from tests.hostile.programs import ONE, PROGRAMS, SECRET_TEXT, SHORT_MS, Program, Target
from tests.support.executors import CLIENT_PYTHON, HostStart, running_host
from tests.support.polling import eventually

ROOT = Path(__file__).parents[2]
SYSTEM_PYTHON = Path("/usr/bin/python3.11")
"""An interpreter that other users can read, unlike one in a home folder."""
CONTAINER_USER = 7400
LIMIT_MS = 10_000
RUNNING = "HOSTILE_EXECUTORS_SOCKET"
"""Variable: the socket of executors that run already, in the process and network namespaces of this
process, and in a folder that it can write.
"""


def hostile(workspace: str) -> Callbacks:
    """Return the callbacks of a hostile workspace; what its programs leave stays in it."""
    return Callbacks(workspace=workspace, secret=lambda name: asyncio.sleep(0, f"LEAK {name}"))


HOSTILE = hostile("hostile")


@dataclass(frozen=True)
class Installation(Target):
    """Running executors."""

    landlock: bool


def starts() -> dict[str, HostStart]:
    """Return the ways to start executors that this machine allows."""
    if RUNNING in os.environ:
        return {"running": HostStart()}
    canary = {"AWS_SECRET_ACCESS_KEY": "canary"}
    if os.getuid() != 0 or not SYSTEM_PYTHON.exists():
        return {
            "plain": HostStart(variables=canary),
            "container": HostStart(variables=canary, module="tests.hostile.contained"),
        }
    (libraries,) = (CLIENT_PYTHON.parents[1] / "lib").glob("python3.11/site-packages")
    variables = canary | {"PYTHONPATH": f"{ROOT}:{libraries}"}
    return {
        "plain": HostStart(variables=canary),
        "root": HostStart(SYSTEM_PYTHON, variables=variables),
        "user": HostStart(SYSTEM_PYTHON, CONTAINER_USER, variables),
        "container": HostStart(
            SYSTEM_PYTHON, CONTAINER_USER, variables, module="tests.hostile.contained"
        ),
    }


@pytest.fixture(scope="module", params=starts())
def installation(request: pytest.FixtureRequest) -> Iterator[Installation]:
    start = starts()[request.param]
    beside = Path(os.environ[RUNNING]).parent if RUNNING in os.environ else None
    folder = Path(tempfile.mkdtemp(prefix="fennel-hostile-", dir=beside))
    secret = folder / "secret"
    secret.write_text(SECRET_TEXT)
    secret.chmod(0o644)
    folder.chmod(0o755)
    if start.user is not None:
        shutil.chown(folder, start.user)
    with (
        socket.create_server(("127.0.0.1", 0)) as service,
        nullcontext(Path(os.environ[RUNNING]))
        if beside
        else running_host(
            folder, start, executor_processes=2, executor_memory_limit_bytes=1 << 29
        ) as at,
    ):
        yield Installation(at, secret, service.getsockname()[1], request.param != "container")
    shutil.rmtree(folder)


@pytest.fixture
async def executors(installation: Installation) -> AsyncIterator[Executors]:
    async with Executors(installation.socket, time_limit_ms=LIMIT_MS) as client:
        yield client


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
async def test_a_hostile_program_is_refused_and_disturbs_nobody(
    installation: Installation, executors: Executors, program: Program
) -> None:
    if program.needs_landlock and not installation.landlock:
        pytest.skip("only Landlock, or what a container does not contain, hides files")
    limit_ms = SHORT_MS if program.error is ExecutorTimeout else LIMIT_MS
    with pytest.raises(program.error, match=program.text or None) as caught:
        await executors.run(
            installation.call(program.body, program.module),
            ONE,
            callbacks=hostile(program.name),
            timeout_ms=limit_ms,
        )
    assert isinstance(caught.value, CallFailed)
    assert "LEAK" not in str(caught.value)
    assert installation.secret.read_text() == SECRET_TEXT
    assert installation.socket.exists()
    fine = await executors.run(
        installation.call("pass"), ONE, callbacks=Callbacks(workspace="neighbour")
    )
    assert fine.to_pydict() == {"F.out": [2]}


async def test_a_kept_connection_does_not_answer_for_another_workspace(
    installation: Installation, executors: Executors
) -> None:
    """The thread keeps a duplicate of the connection and answers whatever comes on it."""
    thief = (
        "kept = os.dup(the(worker.CallChannel)._sock.fileno())\n"
        "    answer = json.dumps({'op': 'answer', 'error': 'raised', 'message': 'STOLEN'})\n"
        "    def steal():\n"
        "        while os.read(kept, 1): os.write(kept, protocol.pack(answer.encode()))\n"
        "    threading.Thread(target=steal, daemon=True).start()"
    )
    await executors.run(installation.call(thief), ONE, callbacks=hostile("thief"))
    for _ in range(20):
        fine = await executors.run(
            installation.call("pass"), ONE, callbacks=Callbacks(workspace="neighbour")
        )
        assert fine.to_pydict() == {"F.out": [2]}


@pytest.mark.parametrize(
    "other",
    [Callbacks(workspace="neighbour"), Callbacks(workspace="hostile", version="main@2")],
    ids=["workspace", "version"],
)
async def test_what_code_leaves_in_its_process_reaches_no_other_scope(
    installation: Installation, executors: Executors, other: Callbacks
) -> None:
    body = "pd.Series.__add__ = lambda a, b: a * 666; sys.modules['left'] = given"
    await executors.run(installation.call(body), ONE, callbacks=HOSTILE)
    seen = installation.call("assert 'left' not in sys.modules")
    assert (await executors.run(seen, ONE, callbacks=other)).to_pydict() == {"F.out": [2]}


FORGED = {
    "behind an answer": (
        "send = worker.CallChannel.send\n"
        "    def twice(self, header, payload=b''):\n"
        "        send(self, header, payload)\n"
        "        if header['op'] == 'answer': send(self, header, batch(666))\n"
        "    worker.CallChannel.send = twice"
    ),
    "after an answer": (
        "send = worker.CallChannel.send\n"
        "    def later(self, header, payload=b''):\n"
        "        send(self, header, payload)\n"
        "        if header['op'] == 'answer': time.sleep(0.1); send(self, header, batch(666))\n"
        "    worker.CallChannel.send = later"
    ),
    "as a malformed message": (
        "send = worker.CallChannel.send\n"
        "    worker.CallChannel.send = lambda self, header, payload=b'': (\n"
        "        send(self, header, payload) if header['op'] != 'answer'\n"
        "        else self._sock.sendall(protocol.pack(b'[]') + protocol.pack(b'{}')))"
    ),
    "as a malformed failure": (
        "send = worker.CallChannel.send\n"
        "    worker.CallChannel.send = lambda self, header, payload=b'': (\n"
        "        send(self, header | {'error': [1]}, payload))"
    ),
}


@pytest.mark.parametrize("forged", FORGED)
async def test_a_forged_answer_reaches_no_other_call_and_costs_its_process(
    installation: Installation, executors: Executors, forged: str
) -> None:
    """The next call of the same version gets its own answer, from a process that sent nothing."""
    callbacks = hostile(f"forged {forged}")
    before = (await executors.report()).ended["malformed"]
    call = installation.call(FORGED[forged])
    if "malformed" in forged:
        with pytest.raises(ExecutorCrashed, match="sent a malformed message"):
            await executors.run(call, ONE, callbacks=callbacks)
    else:
        fine = await executors.run(call, ONE, callbacks=callbacks)
        assert fine.to_pydict() == {"F.out": [2]}

    async def all_is_sent() -> bool:
        return not (await executors.report()).running

    await eventually(all_is_sent, within_s=10, what="the process has sent what it sends")
    plain = installation.call("assert worker.CallChannel.send.__name__ == 'send'")
    for _ in range(3):
        fine = await executors.run(plain, ONE, callbacks=callbacks)
        assert fine.to_pydict() == {"F.out": [2]}

    async def one_has_ended() -> bool:
        return (await executors.report()).ended["malformed"] == before + 1

    await eventually(one_has_ended, within_s=10, what="the process that sent too much has ended")


async def test_code_under_the_digest_of_other_code_does_not_run(
    installation: Installation, executors: Executors
) -> None:
    """The process asks for the text of another workspace's code, and gets that of its own call."""
    victim = installation.call("secret_of_the_victim = 1")
    body = (
        "text = the(worker.CallChannel).request({'op': 'code', 'code': 'x'})[0]['text']\n"
        "    raise Exception('LEAK' if 'of_the_' + 'victim' in text else 'own text')"
    )
    assert (await executors.run(victim, ONE, callbacks=Callbacks(workspace="victim"))).num_rows
    with pytest.raises(CallFailed, match="own text"):
        await executors.run(installation.call(body), ONE, callbacks=HOSTILE)


async def test_a_thread_that_outlives_its_call_does_not_run(
    installation: Installation, executors: Executors
) -> None:
    """An idle process is stopped; the processor time of its workers then stands still."""
    body = "threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()"
    text = installation.call(f"{body}\n    given = given + os.getpid()")
    pid = (await executors.run(text, ONE, callbacks=hostile("threads"))).column("F.out")[
        0
    ].as_py() - 2

    async def stopped() -> bool:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    await eventually(stopped, within_s=10, what="the idle process is stopped")


async def test_the_layers_of_this_machine_are_reported(
    installation: Installation, executors: Executors
) -> None:
    layers = {layer.name: layer.active for layer in (await executors.report()).layers}
    assert layers["seccomp"]
    assert layers["landlock"]
