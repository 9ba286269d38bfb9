"""Executors of a task: their folder, and their end, without a host."""

import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fennel_core.executors import task_sandbox
from fennel_core.executors.errors import ExecutorUnavailable
from fennel_core.executors.task_sandbox import TaskSandbox


def test_a_folder_for_a_socket_has_a_short_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("long" * 25)))
    monkeypatch.setattr(task_sandbox, "FALLBACK", str(tmp_path))
    folder = task_sandbox._private_folder()
    assert folder.parent == tmp_path


def test_the_longest_path_that_is_used_can_be_listened_on(monkeypatch: pytest.MonkeyPatch) -> None:
    rest = len("/") + len("/fennel-task-xxxxxxxx/executors.sock")
    with tempfile.TemporaryDirectory(prefix="f", dir="/tmp") as short:
        long = Path(short, "n" * (task_sandbox.SOCKET_PATH_BYTES - rest - len(short)))
        long.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(long))
        folder = task_sandbox._private_folder()
        assert folder.parent == long
        path = task_sandbox._socket_in(folder)
        assert len(str(path)) == task_sandbox.SOCKET_PATH_BYTES
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))


def test_without_any_folder_the_error_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    monkeypatch.setattr(task_sandbox, "FALLBACK", str(tmp_path / "absent"))
    with pytest.raises(ExecutorUnavailable, match="TMPDIR"):
        task_sandbox._private_folder()


def test_it_can_be_closed_twice_and_ends_the_host_whatever_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, (owner, owned) = tmp_path / "folder", socket.socketpair()
    folder.mkdir()
    program = "import socket; socket.socket(fileno=0).recv(1)"
    host = subprocess.Popen([sys.executable, "-c", program], stdin=owned)  # noqa: S603  # this interpreter, and no shell
    owned.close()
    sandbox = TaskSandbox(host, owner, folder, 1000)

    async def failing() -> None:
        raise ConnectionResetError

    monkeypatch.setattr(sandbox._executors, "close", failing)
    with pytest.raises(ConnectionResetError):
        sandbox.close()
    with pytest.raises(RuntimeError, match="Runner is closed"):
        sandbox._runner.get_loop()
    assert host.returncode == 0
    assert not folder.exists()
    sandbox.close()
