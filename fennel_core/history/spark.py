"""Spark: one Structured Streaming query per round, from where the rows end to where the topics end.

Theory. Spark's connector gives each (topic, partition) with something to read a task of its own;
Python workers decode, write and upload; the driver adds the rows. Where a query starts is told by
the rows and never by its checkpoint: each query has a new, empty one, which lives as long as the
query and serves only to divide a large backlog into batches and to say where each of them ends. So
the checkpoint cannot disagree with the rows, and topics come and go between queries without
anybody's doing. What a batch covers again (a repeated or overtaken one) is trimmed by its floors,
read anew for each batch.

The Parquet is written by the workers with Polars and boto3, as everywhere else in the platform: a
writer of Spark's own would need a second set of S3 settings and jars, names its files itself, and
commits by renaming, which is another truth beside the rows.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from fennel_core.connections import s3
from fennel_core.history.backlog import Backlog
from fennel_core.history.kafka import CONTROL_HEADER
from fennel_core.history.roll import (
    RollPlan,
    TopicLayout,
    decode_proposals,
    encode_proposals,
    records_of,
    roll,
)
from fennel_core.history.store import HistoryFile
from fennel_core.history.writer import BatchPublisher, RollFailed
from fennel_core.settings.model import MIB, Settings
from fennel_core.vocab.ids import Offset, PartitionIndex, TopicName, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from mypy_boto3_s3 import S3Client

CONNECTOR_JARS: Final = (
    "spark-sql-kafka-*",
    "spark-token-provider-kafka-*",
    "kafka-clients-*",
    "commons-pool2-*",
)
DRIVER_MEMORY: Final = "512m"
"""The least Spark starts with; what it does not need it gives back."""
TASK_ATTEMPTS: Final = 2
"""A worker that was killed is tried again here; whatever else fails, the next round does over."""
ARROW_MESSAGES: Final = 64
ARROW_BYTES: Final = 32 * MIB
"""A worker is handed so many messages at once, which bounds its memory and the JVM's beside one
file's messages.
"""
SCHEMA: Final = (
    "topic string, part int, first_offset bigint, next_offset bigint, object_key string,"
    " row_count bigint, size_bytes bigint, min_ts bigint, max_ts bigint"
)
ERROR_LINES: Final = 20
OFFSETS_VERSION: Final = "v1"

JVM_GONE: Final = (Py4JError, ConnectionError, EOFError)
"""How py4j says that the JVM has gone."""

Floors = Callable[[list[TopicPartition]], Mapping[TopicPartition, Offset]]
"""Where the rows of these partitions end now."""
Publish = Callable[[list[HistoryFile], Mapping[TopicPartition, Offset]], None]
"""Add the rows of these files, in order; the second are the ends of the batch's ranges."""


class JvmExited(Exception):
    """Spark's JVM has ended: this process is of no use any more."""


class SparkRoller:
    """See `history.flow.Roller`. Spark starts with the first partition that is due: a platform
    without rows has no JVM for them.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._spark: SparkSession | None = None

    async def roll(
        self,
        due: Mapping[TopicPartition, Backlog],
        layouts: Mapping[TopicName, TopicLayout],
        rows: BatchPublisher,
    ) -> None:
        loop = asyncio.get_running_loop()

        def floors(places: list[TopicPartition]) -> Mapping[TopicPartition, Offset]:
            return asyncio.run_coroutine_threadsafe(rows.floors(places), loop).result()

        def publish(files: list[HistoryFile], ends: Mapping[TopicPartition, Offset]) -> None:
            asyncio.run_coroutine_threadsafe(rows.publish(files, ends), loop).result()

        await asyncio.to_thread(self._run, due, layouts, floors, publish)

    def _run(
        self,
        due: Mapping[TopicPartition, Backlog],
        layouts: Mapping[TopicName, TopicLayout],
        floors: Floors,
        publish: Publish,
    ) -> None:
        try:
            if self._spark is None:
                shutil.rmtree(
                    checkpoints(self._settings), ignore_errors=True
                )  # of queries that died with their process
                self._spark = session(self._settings)
            run_query(self._spark, self._settings, due, layouts, floors, publish)
        except PySparkException as failed:
            raise RollFailed(_first_lines(failed)) from failed
        except JVM_GONE as gone:
            raise JvmExited(str(gone)) from gone

    def stop(self) -> None:
        """End Spark; a query under way fails, and what it did not add is done by the next
        process.
        """
        if self._spark is not None:
            with contextlib.suppress(
                *JVM_GONE
            ):  # it may have gone before us: the same signal may have reached both
                self._spark.stop()
            self._spark = None


def _first_lines(failed: PySparkException) -> str:
    """What went wrong, without the frames of the JVM."""
    lines = [
        line
        for line in str(failed).splitlines()
        if line.strip() and not line.lstrip().startswith("at ")
    ]
    return "\n".join(lines[:ERROR_LINES])


def session(settings: Settings) -> SparkSession:
    """The history writer's Spark application: local by default, any master through `spark-submit`
    or SPARK_MASTER.
    """
    jars = [
        str(path)
        for pattern in CONNECTOR_JARS
        for path in sorted((settings.jars_dir / "spark").glob(f"{pattern}.jar"))
    ]
    assert len(jars) >= len(CONNECTOR_JARS), "Spark's Kafka connector is missing: run `make jars`"
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault(
        "SPARK_LOCAL_IP", settings.host
    )  # else Spark looks the machine's own name up and binds to what it finds
    return (
        SparkSession.builder.appName("fennel-history")
        .master(
            os.environ.get("SPARK_MASTER", f"local[{settings.history_workers},{TASK_ATTEMPTS}]")
        )
        .config("spark.jars", ",".join(jars))
        .config("spark.driver.memory", DRIVER_MEMORY)
        .config(
            "spark.driver.extraJavaOptions",
            "-XX:+UseSerialGC -XX:MinHeapFreeRatio=10 -XX:MaxHeapFreeRatio=30",
        )
        .config("spark.driver.bindAddress", settings.host)
        .config("spark.driver.host", settings.host)
        .config("spark.executorEnv.POLARS_MAX_THREADS", 1)  # a task has one core
        .config("spark.ui.enabled", False)
        .config("spark.ui.showConsoleProgress", False)
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", ARROW_MESSAGES)
        .config("spark.sql.execution.arrow.maxBytesPerBatch", ARROW_BYTES)
        .config("spark.sql.streaming.numRecentProgressUpdates", 1)
        .config("spark.sql.warehouse.dir", str((settings.data_dir / "spark-warehouse").resolve()))
        .getOrCreate()
    )


def checkpoints(settings: Settings) -> Path:
    """Where the queries of this process keep theirs."""
    return (settings.data_dir / "history").resolve()


def run_query(
    spark: SparkSession,
    settings: Settings,
    due: Mapping[TopicPartition, Backlog],
    layouts: Mapping[TopicName, TopicLayout],
    floors: Floors,
    publish: Publish,
) -> None:
    """Roll the partitions `due`; block until their rows are added. Raises what pyspark raises; what
    was added by then stays.
    """
    checkpoint = checkpoints(settings) / uuid.uuid4().hex

    def batch(frame: DataFrame, number: int) -> None:
        ends = batch_ends(checkpoint, number)
        plan = RollPlan(floors(list(ends)), ends, layouts, settings.history_file_bytes)
        rolled = frame.select("topic", "partition", "offset", "value").mapInArrow(
            worker_task(settings, plan), SCHEMA
        )
        publish(decode_proposals(rolled.toArrow()), ends)

    try:
        query = (
            _messages(spark, settings, due)
            .writeStream.foreachBatch(batch)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    finally:
        shutil.rmtree(checkpoint, ignore_errors=True)


def _messages(
    spark: SparkSession, settings: Settings, due: Mapping[TopicPartition, Backlog]
) -> DataFrame:
    """The data records of the partitions `due` as a stream: committed ones only, without control
    records.
    """
    parts: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    for (topic, part), backlog in due.items():
        parts.setdefault(topic, []).append(part)
        starts.setdefault(topic, {})[str(part)] = backlog.start
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", settings.kafka_bootstrap)
        .option("kafka.isolation.level", "read_committed")
        .option("assign", json.dumps(parts))
        .option("startingOffsets", json.dumps(starts))
        .option("maxOffsetsPerTrigger", settings.history_batch_records)
        .option("includeHeaders", True)
        .option("failOnDataLoss", True)
        .load()
        .where(f"NOT coalesce(exists(headers, header -> header.key = '{CONTROL_HEADER}'), false)")
    )


def batch_ends(checkpoint: Path, number: int) -> dict[TopicPartition, Offset]:
    """Where the ranges of a batch end: Spark writes this into the checkpoint before it runs the
    batch.
    """
    version, _, source = (checkpoint / "offsets" / str(number)).read_text().splitlines()
    assert version == OFFSETS_VERSION, (
        f"this Spark writes its offsets as {version}, and {OFFSETS_VERSION} is read here"
    )
    ends = json.loads(source)
    return {
        (TopicName(topic), PartitionIndex(int(part))): Offset(end)
        for topic, of in ends.items()
        for part, end in of.items()
    }


def worker_task(
    settings: Settings, plan: RollPlan
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What the workers run over their part of a batch; it needs nothing of the driver's process."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return encode_proposals(roll(records_of(batches), plan, partial(_put, settings)))

    return work


def _put(settings: Settings, key: str, body: bytes) -> None:
    s3.put_new(
        _client(settings), settings.s3_bucket, key, body
    )  # "taken" is an own attempt whose answer was lost: names are unique


@lru_cache(maxsize=1)
def _client(settings: Settings) -> S3Client:
    """One per worker: making a client costs as much as writing a file."""
    return s3.client(settings)
