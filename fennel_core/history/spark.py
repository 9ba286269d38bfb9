"""Roll with Spark: one Structured Streaming query per pass, from the rows' to the topics' ends.

Theory. Spark's connector gives each (topic, partition) with new records a task of its own; Python
workers decode, write and upload; the driver adds the rows. The start of a query comes from the rows
and never from its checkpoint. Each query has a new, empty checkpoint that lives as long as the
query; it only divides a large backlog into batches and records where each of them ends. So the
checkpoint cannot disagree with the rows, and topics may come and go between queries. What a batch
covers again (because it was repeated, or another writer was faster) is skipped: the rows' ends are
read for each batch.

The workers write Parquet with Polars and boto3, as everywhere else in the platform. Spark's own
writer would need a second set of S3 settings and jars, chooses file names itself, and commits by
renaming, which would be a second source of truth beside the rows.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from fennel_core.connections import s3
from fennel_core.connections.errors import JvmExited
from fennel_core.connections.installation import InstallationObjects
from fennel_core.connections.kafka import CONTROL_HEADER, jvm_security_options
from fennel_core.connections.spark import JVM_EXIT_ERRORS, kafka_jars, session_builder
from fennel_core.history.backlog import Backlog
from fennel_core.history.errors import RollFailed
from fennel_core.history.roll import (
    PROPOSAL_SCHEMA,
    RollPlan,
    TopicLayout,
    decode_proposals,
    encode_proposals,
    records_of,
    roll,
)
from fennel_core.history.store import HistoryFile
from fennel_core.history.writer import BatchPublisher
from fennel_core.settings.model import MIB, Settings
from fennel_core.vocab.ids import Offset, PartitionIndex, TopicName, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from mypy_boto3_s3 import S3Client

TASK_ATTEMPTS: Final = 2
"""A task whose worker was killed is retried here; all other failures are left to the next pass."""
ARROW_MESSAGES: Final = 64
ARROW_BYTES: Final = 32 * MIB
"""Messages that a worker receives at once. This bounds its memory and the JVM's, in addition to one
file's messages.
"""
SPARK_TYPES: Final = {"string": "string", "int32": "int", "int64": "bigint"}
SCHEMA: Final = ", ".join(
    f"{column.name} {SPARK_TYPES[str(column.type)]}" for column in PROPOSAL_SCHEMA
)
"""Of what workers return; Spark drops columns that it does not name."""
ERROR_LINES: Final = 20
OFFSETS_VERSION: Final = "v1"

HistoryEnds = Callable[[list[TopicPartition]], Mapping[TopicPartition, Offset]]
"""Returns where the rows of these partitions end now."""
Publish = Callable[[list[HistoryFile], Mapping[TopicPartition, Offset]], None]
"""Adds the rows of these files, in order; the second argument is where the batch's ranges end."""


class SparkRoller:
    """A `history.writer.Roller` on Spark.

    Spark starts with the first partition that is due, so a platform without rows runs no JVM.
    """

    def __init__(self, settings: Settings, objects: InstallationObjects) -> None:
        self._settings, self._objects = settings, objects
        self._spark: SparkSession | None = None

    async def roll(
        self,
        due: Mapping[TopicPartition, Backlog],
        layouts: Mapping[TopicName, TopicLayout],
        publisher: BatchPublisher,
    ) -> None:
        loop = asyncio.get_running_loop()

        def history_ends(partitions: list[TopicPartition]) -> Mapping[TopicPartition, Offset]:
            return asyncio.run_coroutine_threadsafe(
                publisher.history_ends(partitions), loop
            ).result()

        def publish(files: list[HistoryFile], batch_ends: Mapping[TopicPartition, Offset]) -> None:
            asyncio.run_coroutine_threadsafe(publisher.publish(files, batch_ends), loop).result()

        root = await self._objects.root()
        await asyncio.to_thread(self._run, root, due, layouts, history_ends, publish)

    def _run(
        self,
        root: str,
        due: Mapping[TopicPartition, Backlog],
        layouts: Mapping[TopicName, TopicLayout],
        history_ends: HistoryEnds,
        publish: Publish,
    ) -> None:
        try:
            if self._spark is None:
                # Checkpoints of queries that died with their process.
                shutil.rmtree(checkpoints(self._settings), ignore_errors=True)
                self._spark = session(self._settings)
            run_query(self._spark, self._settings, root, due, layouts, history_ends, publish)
        except PySparkException as failed:
            raise RollFailed(first_lines(failed)) from failed
        except JVM_EXIT_ERRORS as gone:
            raise JvmExited(str(gone)) from gone

    def stop(self) -> None:
        """Stop Spark; a running query fails and the next process continues where its rows end."""
        if self._spark is not None:
            # The JVM may have received the same signal and exited first.
            with contextlib.suppress(*JVM_EXIT_ERRORS):
                self._spark.stop()
            self._spark = None


def first_lines(failed: Exception) -> str:
    """Return the error text without the JVM's stack frames."""
    lines = [
        line
        for line in str(failed).splitlines()
        if line.strip() and not line.lstrip().startswith("at ")
    ]
    return "\n".join(lines[:ERROR_LINES])


def session(settings: Settings) -> SparkSession:
    """Return the history writer's Spark application: local by default; see `session_builder`."""
    return (
        session_builder(
            settings,
            app_name="fennel-history",
            local_master=f"local[{settings.history_workers},{TASK_ATTEMPTS}]",
        )
        .config("spark.jars", ",".join(kafka_jars(settings)))
        .config(
            "spark.driver.extraJavaOptions",
            "-XX:+UseSerialGC -XX:MinHeapFreeRatio=10 -XX:MaxHeapFreeRatio=30",
        )
        .config("spark.executorEnv.POLARS_MAX_THREADS", 1)  # a task has one core
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", ARROW_MESSAGES)
        .config("spark.sql.execution.arrow.maxBytesPerBatch", ARROW_BYTES)
        .config("spark.sql.streaming.numRecentProgressUpdates", 1)
        .getOrCreate()
    )


def checkpoints(settings: Settings) -> Path:
    """Return the folder of the checkpoints of this process's queries."""
    return (settings.data_dir / "history").resolve()


def run_query(
    spark: SparkSession,
    settings: Settings,
    root: str,
    due: Mapping[TopicPartition, Backlog],
    layouts: Mapping[TopicName, TopicLayout],
    history_ends: HistoryEnds,
    publish: Publish,
) -> None:
    """Roll the partitions in `due`; block until their rows are added.

    `root`: the prefix of the installation's keys, which rows do not contain.
    Raises pyspark's errors; rows that were added by then stay.
    """
    checkpoint = checkpoints(settings) / uuid.uuid4().hex

    def batch(frame: DataFrame, number: int) -> None:
        ends = batch_ends(checkpoint, number)
        plan = RollPlan(history_ends(list(ends)), ends, layouts, settings.history_file_bytes)
        rolled = frame.select("topic", "partition", "offset", "value").mapInArrow(
            worker_task(settings, root, plan), SCHEMA
        )
        publish(decode_proposals(rolled.toArrow()), ends)

    try:
        query = (
            _records(spark, settings, due)
            .writeStream.foreachBatch(batch)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    finally:
        shutil.rmtree(checkpoint, ignore_errors=True)


def _records(
    spark: SparkSession, settings: Settings, due: Mapping[TopicPartition, Backlog]
) -> DataFrame:
    """Return the committed data records of the partitions in `due` as a stream."""
    parts: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    for (topic, part), backlog in due.items():
        parts.setdefault(topic, []).append(part)
        starts.setdefault(topic, {})[str(part)] = backlog.start
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", settings.kafka_bootstrap)
        .options(**jvm_security_options(settings))
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
    """Return where the ranges of a batch end, from the checkpoint.

    Spark writes it there before it runs the batch.
    """
    version, _, source = (checkpoint / "offsets" / str(number)).read_text().splitlines()
    assert version == OFFSETS_VERSION, (
        f"Spark wrote offsets of version {version}; this version reads {OFFSETS_VERSION}"
    )
    ends = json.loads(source)
    return {
        (TopicName(topic), PartitionIndex(int(part))): Offset(end)
        for topic, of in ends.items()
        for part, end in of.items()
    }


def worker_task(
    settings: Settings, root: str, plan: RollPlan
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that workers run over their share of a batch; it is self-contained."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return encode_proposals(roll(records_of(batches), plan, partial(_put, settings, root)))

    return work


def _put(settings: Settings, root: str, key: str, body: bytes) -> None:
    # Keys are unique, so a key that exists is an earlier attempt whose response was lost.
    s3.put_new(_client(settings), settings.s3_bucket, root + key, body)


@lru_cache(maxsize=1)
def _client(settings: Settings) -> S3Client:
    """Return the worker's client; creating one costs as much as writing a file."""
    return s3.client(settings)
