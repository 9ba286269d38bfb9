"""A Spark program whose tasks call user code; `test_spark_tasks` runs it as root and as a user.

    python -m tests.hostile.spark_tasks FOLDER EXECUTOR_PYTHON PORT

It writes what each of its jobs saw to `FOLDER/<job>.json`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil
import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from fennel_core.executors.calls import AssignCall
from fennel_core.executors.client import Callbacks
from fennel_core.executors.errors import CallFailed, ExecutorTimeout
from fennel_core.executors.launch import ExecutorLimits
from fennel_core.executors.task_sandbox import TaskSandbox
from fennel_core.vocab.dtypes import Field, Int
from fennel_core.wire.pycode import PyCode
from tests.hostile.programs import ONE, PROGRAMS, SECRET_TEXT, SHORT_MS, Program, Target
from tests.support.polling import eventually_sync

ROWS: Final = 30_000
LIMITS: Final = {"processes": 1, "time_limit_ms": 10_000, "calls_per_process": 10_000}
MEMORY_BYTES: Final = 1 << 29
TEXT: Final = "def run(df):\n    return df.assign(double=df['id'] * 2)\n"
DOUBLE: Final = AssignCall(
    PyCode("run", "", "", TEXT, "import pandas as pd\n", (), ()),
    "Dataset",
    (Field("id", Int()),),
    Field("double", Int()),
)
SHAPE: Final = "id long, double long, called_with long, process long"


@dataclass(frozen=True)
class Jobs:
    """What tasks need; pickled to them."""

    folder: Path
    python: Path
    port: int

    def start(self) -> TaskSandbox:
        return TaskSandbox.start(
            ExecutorLimits(python=self.python, memory_bytes=MEMORY_BYTES, **LIMITS)
        )

    def double(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Double each id."""
        with self.start() as sandbox:
            self.note_processes()
            for each in sandbox.run_batches(DOUBLE, batches, callbacks=Callbacks(workspace="w")):
                rows = len(each.rows)
                table = each.rows.append_column("double", each.result.column("double"))
                table = table.append_column("called_with", pa.array([rows] * rows, pa.int64()))
                table = table.append_column("process", pa.array([os.getpid()] * rows, pa.int64()))
                yield from table.to_batches()

    def attack(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run every hostile program, and a call of another workspace after each."""
        del batches
        with self.start() as sandbox:
            self.note_processes()
            target = Target(sandbox.socket, self.folder / "secret", self.port)
            for program in PROGRAMS:
                yield pa.RecordBatch.from_pylist([self.run_program(sandbox, target, program)])

    def run_program(self, sandbox: TaskSandbox, target: Target, program: Program) -> dict[str, str]:
        limit_ms = SHORT_MS if program.error is ExecutorTimeout else None
        error, text = "none", ""
        try:
            sandbox.run(
                target.call(program.body, program.module),
                ONE,
                callbacks=Callbacks(workspace=program.name, secret=leaking),
                timeout_ms=limit_ms,
            )
        except CallFailed as failed:
            error, text = type(failed).__name__, str(failed)
        fine = sandbox.run(target.call("pass"), ONE, callbacks=Callbacks(workspace="neighbour"))
        neighbour = json.dumps(fine.to_pydict())
        return {"program": program.name, "error": error, "text": text, "neighbour": neighbour}

    def wait_to_be_killed(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run an endless loop; the test kills this task in the meantime."""
        endless = Target(Path("/"), Path("/"), 0).call("while True: pass")
        with self.start() as sandbox:
            self.note_processes()
            (self.folder / "task.pid").write_text(str(os.getpid()))
            sandbox.run(endless, ONE, callbacks=Callbacks(workspace="w"), timeout_ms=60_000)
        yield from batches

    def note_processes(self) -> None:
        """Write the processes that this task has started, so that their end can be seen."""
        noted = [[each.pid, each.create_time()] for each in started_by(os.getpid())]
        assert len(noted) >= 2, "a host and a template"
        (self.folder / f"processes-{os.getpid()}-{time.monotonic_ns()}").write_text(
            json.dumps(noted)
        )


async def leaking(name: str) -> str:
    return f"LEAK {name}"


def started_by(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def still_running(folder: Path) -> list[Any]:
    """Return the noted processes that have not ended."""
    found = []
    for file in folder.glob("processes-*"):
        for pid, created in json.loads(file.read_text()):
            try:
                process = psutil.Process(pid)
                if process.create_time() == created and process.status() != "zombie":
                    found.append([pid, process.status(), process.cmdline()])
            except psutil.NoSuchProcess:
                continue
    return found


def leftovers(folder: Path) -> list[str]:
    return [str(each) for each in (folder / "tmp").glob("fennel-task-*")]


def all_gone(folder: Path) -> None:
    eventually_sync(
        lambda: not still_running(folder) and not leftovers(folder),
        within_s=15,
        what="the processes and the folder of the task are gone",
    )


def report(folder: Path, name: str, found: object) -> None:
    (folder / f"{name}.json").write_text(json.dumps(found))


def killed_task(spark: SparkSession, jobs: Jobs) -> str:
    """Kill the Python process of a task in the middle of a call; return the job's error."""
    failed: list[str] = []

    def run() -> None:
        try:
            spark.range(10).mapInArrow(jobs.wait_to_be_killed, "id long").collect()
        except Py4JJavaError as error:
            failed.append(str(error.java_exception))

    job = threading.Thread(target=run)
    job.start()
    pid_file = jobs.folder / "task.pid"
    eventually_sync(pid_file.exists, within_s=60, what="the task runs")
    pid = int(pid_file.read_text())
    eventually_sync(
        lambda: any(each.cpu_times().user > 0.5 for each in workers_of(pid)),
        within_s=30,
        what="the endless loop runs",
    )
    os.kill(pid, signal.SIGKILL)
    all_gone(jobs.folder)
    job.join(60)
    return failed[0]


def workers_of(pid: int) -> list[psutil.Process]:
    """Return the workers: the children of the template, which is the child of the host."""
    return [each for each in started_by(pid) if each.parent() and each.parent().ppid() != pid]


def main() -> None:
    jobs = Jobs(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
    (jobs.folder / "secret").write_text(SECRET_TEXT)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", False)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "512m")
        .config("spark.jars.ivy", str(jobs.folder / "ivy"))
        .config("spark.sql.warehouse.dir", str(jobs.folder / "warehouse"))
        .getOrCreate()
    )
    doubled = spark.range(ROWS, numPartitions=2).mapInArrow(jobs.double, SHAPE).collect()
    all_gone(jobs.folder)
    report(jobs.folder, "doubled", [row.asDict() for row in doubled])
    shape = "program string, error string, text string, neighbour string"
    attacked = spark.range(1, numPartitions=1).mapInArrow(jobs.attack, shape).collect()
    all_gone(jobs.folder)
    report(jobs.folder, "attacked", [row.asDict() for row in attacked])
    first = spark.range(ROWS, numPartitions=1).mapInArrow(jobs.double, SHAPE).take(1)
    all_gone(jobs.folder)
    report(jobs.folder, "abandoned", [row.asDict() for row in first])
    report(jobs.folder, "killed", killed_task(spark, jobs))
    report(jobs.folder, "secret", (jobs.folder / "secret").read_text())
    spark.stop()


if __name__ == "__main__":
    main()
