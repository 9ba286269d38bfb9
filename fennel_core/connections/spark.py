"""Start the Spark applications of the platform: engine, history writer and streaming sources."""

from __future__ import annotations

import os
import re
import sys
from typing import Final

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from fennel_core.settings.model import Settings

LOCAL_MASTER: Final = re.compile(r"local(\[[0-9*]+(,[0-9]+)?\])?")
"""Masters for which Spark makes a secret; `local-cluster` is none of them."""
DRIVER_MEMORY: Final = "512m"
"""The smallest heap that Spark starts with."""
JVM_EXIT_ERRORS: Final = (Py4JError, ConnectionError, EOFError)
"""What py4j raises when the JVM has exited; on shutdown it may exit before this process."""
KAFKA_JARS: Final = (
    "spark-sql-kafka-*",
    "spark-token-provider-kafka-*",
    "kafka-clients-*",
    "commons-pool2-*",
)
DRIVER_OPTIONS: Final = "spark.driver.extraJavaOptions"
SHORT_JVM: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Options of a JVM that ends before code that is compiled again would pay."""


def has_exited(spark: SparkSession) -> bool:
    """Return whether Spark's JVM has exited, or the application was stopped; blocks."""
    try:
        context = spark.sparkContext._jsc  # None once this process has stopped it
        return context is None or bool(context.sc().isStopped())
    except JVM_EXIT_ERRORS:
        return True


def kafka_jars(settings: Settings) -> list[str]:
    """Return the jars of Spark's Kafka connector."""
    jars = [
        str(path)
        for pattern in KAFKA_JARS
        for path in sorted((settings.jars_dir / "spark").glob(f"{pattern}.jar"))
    ]
    assert len(jars) >= len(KAFKA_JARS), "Spark's Kafka connector is missing: run `make jars`"
    return jars


def mysql_jars(settings: Settings) -> list[str]:
    """Return the JDBC driver of MySQL and MariaDB; empty if it was not installed."""
    return [str(path) for path in sorted((settings.jars_dir / "mysql").glob("*.jar"))]


def session_builder(
    settings: Settings, *, app_name: str, local_master: str
) -> SparkSession.Builder:
    """Return a builder with the configuration that every Spark application of ours shares.

    `local_master` is the master to use unless `spark-submit` or SPARK_MASTER gives another one.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Without SPARK_LOCAL_IP, Spark resolves the machine's own name and binds to the result.
    os.environ.setdefault("SPARK_LOCAL_IP", settings.host)
    master = os.environ.get("SPARK_MASTER", local_master)
    return (
        SparkSession.builder.appName(app_name)
        .master(master)
        # Spark makes the secret of a local master itself. Another master is configured by its
        # operator (spark.authenticate.secret), who also decides whether it authenticates.
        .config("spark.authenticate", LOCAL_MASTER.fullmatch(master) is not None)
        .config("spark.driver.memory", DRIVER_MEMORY)
        .config("spark.driver.bindAddress", settings.host)
        .config("spark.driver.host", settings.host)
        .config("spark.ui.enabled", False)
        .config("spark.ui.showConsoleProgress", False)
        .config("spark.sql.warehouse.dir", str((settings.data_dir / "spark-warehouse").resolve()))
    )


def keep_submitted_master() -> None:
    """Use the master that `spark-submit` was given, which a builder would replace by its own."""
    SparkContext._ensure_initialized()
    master = SparkConf().get("spark.master")
    if master is not None:
        os.environ["SPARK_MASTER"] = master
