"""User code in the tasks of a real Spark application: as root and as an ordinary user.

Tasks have executors of their own, which treat hostile programs like the service does, and of which
nothing is left once the task has ended, whatever way it ended.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fennel_core.executors import task_sandbox
from fennel_core.executors.errors import ExecutorUnavailable
from fennel_core.executors.internal_errors import SandboxUnavailable
from fennel_core.executors.launch import ExecutorLimits
from fennel_core.executors.task_sandbox import TaskSandbox, tables_of
from tests.hostile.programs import PROGRAMS, SECRET_TEXT, Program
from tests.hostile.spark_tasks import ROWS
from tests.support.executors import CLIENT_PYTHON
from tests.support.polling import eventually_sync

pytestmark = pytest.mark.long
SPARK_FOLDERS = "SPARK_LOCAL_DIRS"
ROOT = Path(__file__).parents[2]
SYSTEM_PYTHON = Path("/usr/bin/python3.11")
"""An interpreter that other users can read, unlike one in a home folder."""
ORDINARY_USER = pwd.getpwnam("nobody").pw_uid
"""Java needs a user with a name."""
RUNS_WITHIN_S = 400


@dataclass(frozen=True)
class SparkRun:
    """The reports of `spark_tasks` by job."""

    reports: Mapping[str, Any]


def packages_of(python: Path) -> Path:
    (found,) = (python.parents[1] / "lib").glob("python3.11/site-packages")
    return found


def users() -> list[Any]:
    """As root, also as an ordinary user."""
    if os.getuid() == 0 and SYSTEM_PYTHON.exists():
        return [ORDINARY_USER, None]
    return [None]


def start_as_user(folder: Path, user: int) -> tuple[list[str], dict[str, str], Path]:
    """Return interpreter, variables and executor interpreter for a user that cannot read ours."""
    executor = folder / "python"
    packages = packages_of(CLIENT_PYTHON)
    executor.write_text(
        f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{packages}" exec {SYSTEM_PYTHON} "$@"\n'
    )
    executor.chmod(0o755)
    for path in (folder, folder / "tmp"):
        shutil.chown(path, user)
    paths = f"{ROOT}:{packages_of(Path(sys.executable))}"
    variables = {"PYTHONPATH": paths, "PYSPARK_PYTHON": str(SYSTEM_PYTHON), "HOME": str(folder)}
    return [str(SYSTEM_PYTHON)], variables, executor


@pytest.fixture(scope="module", params=users(), ids=lambda user: "self" if user is None else "user")
def spark_run(request: pytest.FixtureRequest) -> Iterator[SparkRun]:
    with tempfile.TemporaryDirectory(prefix="fennel-spark-") as name:
        folder = Path(name)
        (folder / "tmp").mkdir()
        python, executor = [sys.executable], CLIENT_PYTHON
        variables = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
        if request.param is not None:
            python, variables, executor = start_as_user(folder, request.param)
        variables |= {"TMPDIR": str(folder / "tmp"), "SPARK_LOCAL_IP": "127.0.0.1"}
        with socket.create_server(("127.0.0.1", 0)) as service:
            port = str(service.getsockname()[1])
            done = subprocess.run(  # noqa: S603  # a program of this test, and no shell
                [*python, "-m", "tests.hostile.spark_tasks", str(folder), str(executor), port],
                # The folder of another test's Spark may be one that only its user may enter.
                env={name: value for name, value in os.environ.items() if name != SPARK_FOLDERS}
                | {"AWS_SECRET_ACCESS_KEY": "canary"}
                | variables,
                user=request.param,
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=RUNS_WITHIN_S,
                check=False,
            )
        assert done.returncode == 0, done.stderr[-8_000:]
        yield SparkRun({file.stem: json.loads(file.read_text()) for file in folder.glob("*.json")})


def test_a_task_calls_user_code_on_thousands_of_rows_at_a_time(spark_run: SparkRun) -> None:
    rows = spark_run.reports["doubled"]
    assert sorted(row["id"] for row in rows) == list(range(ROWS))
    assert all(row["double"] == 2 * row["id"] for row in rows)
    assert {row["called_with"] for row in rows} == {4096, ROWS // 2 % 4096}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_hostile_program_in_a_task_is_refused(spark_run: SparkRun, program: Program) -> None:
    (seen,) = [row for row in spark_run.reports["attacked"] if row["program"] == program.name]
    kinds = program.error if isinstance(program.error, tuple) else (program.error,)
    assert seen["error"] in {kind.__name__ for kind in kinds}, seen
    with pytest.raises(AssertionError, match=program.text):
        raise AssertionError(seen["text"])
    assert "LEAK" not in seen["text"]
    assert json.loads(seen["neighbour"]) == {"F.out": [2]}


def test_nothing_of_the_platform_was_changed(spark_run: SparkRun) -> None:
    assert spark_run.reports["secret"] == SECRET_TEXT


def test_a_task_whose_rows_are_not_all_read_ends_its_processes(spark_run: SparkRun) -> None:
    assert [row["id"] for row in spark_run.reports["abandoned"]] == [0]


def test_a_task_that_is_killed_takes_its_processes_with_it(spark_run: SparkRun) -> None:
    """The program itself waits until the processes and the folder of the task are gone."""
    assert "Python worker exited unexpectedly" in spark_run.reports["killed"]


def limits(python: Path) -> ExecutorLimits:
    return ExecutorLimits(python, 1, 1_000, 1 << 29, 100)


def test_a_missing_executor_environment_is_named(tmp_path: Path) -> None:
    with pytest.raises(ExecutorUnavailable, match="no executor environment at"):
        TaskSandbox.start(limits(tmp_path / "python"))


HOLDS_A_SANDBOX = """
import sys
from pathlib import Path
from fennel_core.executors.launch import ExecutorLimits
from fennel_core.executors.task_sandbox import TaskSandbox
sandbox = TaskSandbox.start(ExecutorLimits(Path(sys.argv[1]), 1, 1_000, 1 << 29, 100))
print(sandbox.socket.parent, flush=True)
sys.stdin.read()
"""


def test_a_task_that_is_killed_with_its_process_group_leaves_no_folder() -> None:
    """As `pyspark.daemon` does with its workers when the application ends."""
    with subprocess.Popen(  # noqa: S603  # a program of this test, and no shell
        [sys.executable, "-c", HOLDS_A_SANDBOX, str(CLIENT_PYTHON)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    ) as task:
        assert task.stdout is not None
        folder = Path(task.stdout.readline().strip())
        assert folder.is_dir()
        os.killpg(task.pid, signal.SIGKILL)
        eventually_sync(lambda: not folder.exists(), what="the executors have cleaned up")


@pytest.mark.parametrize(
    ("program", "error", "text"),
    [
        ("exit 3", ExecutorUnavailable, "ended while they started"),
        (
            f'exec {sys.executable} -c "import os; '
            "os.write(int(os.environ['FENNEL_EXECUTORS_OWNER']), b'no seccomp here')\"",
            SandboxUnavailable,
            "no seccomp here",
        ),
        ("exec sleep 60", ExecutorUnavailable, "did not start within"),
    ],
    ids=["ends", "refuses", "hangs"],
)
def test_executors_that_do_not_start_are_reported_and_leave_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    program: str,
    error: type[Exception],
    text: str,
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{program}\n")
    python.chmod(0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(task_sandbox, "END_WITHIN_S", 0.1)
    monkeypatch.setattr(task_sandbox, "START_WITHIN_S", 0.5 if "sleep" in program else 30)
    with pytest.raises(error, match=text):
        TaskSandbox.start(limits(python))
    assert list(tmp_path.iterdir()) == [python]


@pytest.mark.parametrize(
    ("given", "most_bytes", "expected"),
    [
        ([3, 3, 3], 1 << 20, [4, 4, 1]),
        ([9], 1 << 20, [4, 4, 1]),
        ([0, 4, 0], 1 << 20, [4]),
        ([], 1 << 20, []),
        ([5], 16, [2, 2, 1]),
        ([2], 1, [1, 1]),
    ],
)
def test_rows_are_joined_and_cut_to_the_size_of_a_call(
    given: list[int], most_bytes: int, expected: list[int]
) -> None:
    numbers = iter(range(100))
    batches = [
        pa.RecordBatch.from_pydict({"n": pa.array([next(numbers) for _ in range(n)], pa.int64())})
        for n in given
    ]
    tables = list(tables_of(batches, most_rows=4, most_bytes=most_bytes))
    assert [len(table) for table in tables] == expected
    assert [n for table in tables for n in table.column("n").to_pylist()] == list(range(sum(given)))
