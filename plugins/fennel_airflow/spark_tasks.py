"""Tasks that run a Spark application with the Spark provider's `SparkSubmitOperator`.

Each uses the connection `spark_default`, which is local unless FENNEL_OFFLINE_MASTER names another
master. The driver is a process of the task, so its log is the task's log.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any, Final

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException

from fennel_airflow.tasks import ACCEPT, REQUEST_ID

COMPUTE: Final = "compute"
COMPACT: Final = "compact"
READ: Final = "read"
CONNECTION: Final = "spark_default"
OFFLINE_MEMORY: Final = os.environ.get("FENNEL_OFFLINE_MEMORY") or "2g"
"""`Settings.offline_memory`, read from the environment as in `factory`; a test compares the two."""
READ_CONF: Final = {
    "spark.log.level": "WARN",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
}
"""With `connections.spark.SHORT_JVM`, written here as above."""
PULLED_ID: Final = f"{{{{ ti.xcom_pull(task_ids='{ACCEPT}', key='{REQUEST_ID}') }}}}"


def job_file(name: str) -> str:
    """Return a program of `fennel_core/apps/spark_jobs`, without importing the platform."""
    found = importlib.util.find_spec("fennel_core")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("the package fennel_core is not installed in Airflow's Python")
    return str(Path(found.origin).parent / "apps" / "spark_jobs" / f"{name}.py")


class SubmitProgram(SparkSubmitOperator):
    """Submits a program of the platform with the `spark-submit` beside the task's Python."""

    def execute(self, context: Context) -> None:
        """Submit the application and wait for its end."""
        os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        super().execute(context)


class ComputeFeatures(SubmitProgram):
    """Computes one request; one that has failed is not tried again, a cancelled one is stopped."""

    def execute(self, context: Context) -> None:
        """Submit the application and wait for its end."""
        from fennel_airflow import offline_bodies

        [request_id] = self.application_args
        try:
            if not offline_bodies.is_cancelled(request_id):
                with offline_bodies.watched(request_id):
                    super().execute(context)
        except AirflowException:
            offline_bodies.raise_failure(request_id)
            if not offline_bodies.is_cancelled(request_id):
                raise
        offline_bodies.raise_failure(request_id)  # of a request that had failed before
        offline_bodies.log_outcome(request_id)


class ReadTable(SubmitProgram):
    """Reads one table to its end; the log shows rows, cursor and what a run waits for."""

    def execute(self, context: Context) -> None:
        """Submit the application and wait for its end."""
        from fennel_airflow import source_bodies

        self.jars = source_bodies.driver_jars()
        super().execute(context)


def compute_features() -> Any:
    """Return the task that computes the accepted request."""
    return ComputeFeatures(
        task_id=COMPUTE,
        conn_id=CONNECTION,
        application=job_file("offline_query"),
        application_args=[PULLED_ID],
        name=f"offline query {PULLED_ID}",
        driver_memory=OFFLINE_MEMORY,
        conf={"spark.log.level": "WARN"},
    )


def compact_history() -> Any:
    """Return the task that removes rows of erased keys and merges small files of history."""
    return SubmitProgram(
        task_id=COMPACT,
        conn_id=CONNECTION,
        application=job_file("history_maintenance"),
        name="history maintenance",
        conf={"spark.log.level": "WARN"},
    )


def read_tables(sources: Any) -> Any:
    """Return the tasks that read `sources`, one each: pairs of a raw topic and a run."""
    return ReadTable.partial(
        task_id=READ,
        conn_id=CONNECTION,
        application=job_file("scheduled_source"),
        name="scheduled source",
        conf=READ_CONF,
    ).expand(application_args=sources)
