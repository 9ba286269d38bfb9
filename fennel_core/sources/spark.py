"""Read feeds with Spark: one Structured Streaming query per feed, in one application.

Where a query starts comes from the platform's own positions, never from a checkpoint: each query
has a new, empty one that lives as long as the query, so it may be deleted at any time. Spark runs a
task per partition with new messages; a task that is repeated, or a second application that reads
the same feed, skips what is written (`writer.py`). Speculation is off, because two attempts of one
task would only fence each other.

Queries share the application fairly: a source with a long backlog does not hold up the others.
"""

from __future__ import annotations

import json
import re
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa
import structlog
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql.functions import count as count_messages
from pyspark.sql.functions import lit
from pyspark.sql.streaming.query import StreamingQuery

from fennel_core.connections.external_kafka import ExternalKafka, TopicInspector
from fennel_core.connections.spark import kafka_jars, session_builder
from fennel_core.settings.model import MIB, Settings
from fennel_core.sources.errors import StreamReplaced
from fennel_core.sources.feeds import Feed, FeedProgress, messages_behind
from fennel_core.sources.pace import rest_s, step_rows
from fennel_core.sources.task import COUNTS_DDL, feed_task
from fennel_core.wire.connectors import KafkaTopic

TASK_ATTEMPTS: Final = 2
"""A task whose worker was killed is repeated here; other failures end the query, which the host
starts again after a pause.
"""
ARROW_BYTES: Final = 8 * MIB
STOP_TIMEOUT: Final = "60s"
"""How long the end of a query waits for its batch."""
EARLIEST: Final = -2
"""Spark's name for the first offset of a partition."""
_RAISED: Final = re.compile(
    r"^(?:[\w.]+\.[A-Z]\w+|[A-Z]\w+(?:Error|Exception)): (.+)$", re.MULTILINE
)
"""The line of an exception in a traceback."""
_PLAN: Final = "=== Streaming Query ==="
"""Where Spark begins to describe the query that failed."""
REASON_CHARS: Final = 500
WriteBatch = Callable[[DataFrame, int], None]
WAITS: Final = ("Waiting for data to arrive", "Waiting for next trigger")
"""What a query says between two triggers."""
log = structlog.get_logger(__name__)


def session(settings: Settings) -> SparkSession:
    """Return the Spark application of the streaming sources: local by default."""
    return (
        session_builder(
            settings,
            app_name="fennel-sources",
            local_master=f"local[{settings.source_workers},{TASK_ATTEMPTS}]",
        )
        .config("spark.jars", ",".join(kafka_jars(settings)))
        .config(
            "spark.driver.extraJavaOptions",
            "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:MinHeapFreeRatio=10 "
            "-XX:MaxHeapFreeRatio=30",
        )
        .config("spark.speculation", False)
        .config("spark.scheduler.mode", "FAIR")
        .config("spark.executorEnv.POLARS_MAX_THREADS", 1)  # a task has one core
        .config("spark.sql.execution.arrow.maxBytesPerBatch", ARROW_BYTES)
        # Of so many, Spark keeps one less.
        .config("spark.sql.streaming.numRecentProgressUpdates", 2)
        .config("spark.sql.streaming.stopTimeout", STOP_TIMEOUT)
        .getOrCreate()
    )


def checkpoints(settings: Settings) -> Path:
    """Return the folder of the checkpoints of this process's queries."""
    return (settings.data_dir / "sources").resolve()


class FeedQuery:
    """A running query over one feed."""

    def __init__(
        self,
        query: StreamingQuery,
        checkpoint: Path,
        inspector: TopicInspector,
        trigger_s: float,
        stopped: threading.Event,
        owed_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`owed_s`: see `PacedWriter`."""
        self._query, self._checkpoint, self._inspector = query, checkpoint, inspector
        self._trigger_s, self._stopped, self._owed_s = trigger_s, stopped, owed_s
        self._reported: tuple[str, float] = ("", 0.0)
        """Which progress the query reported last, and when that was noticed."""

    def progress(self) -> FeedProgress | None:
        """Return what the query reported when it last looked; None before."""
        reported, looked_s = self._query.lastProgress, self._looked_s()
        now_s = time.monotonic()
        if reported is None:
            return None if looked_s is None else FeedProgress(0, None, looked_s, now_s)
        if reported["timestamp"] != self._reported[0]:
            self._reported = reported["timestamp"], now_s
        (source,) = reported["sources"]
        end, latest = _offsets(source["endOffset"]), _offsets(source["latestOffset"])
        if end is not None and latest is not None:
            behind: int | None = messages_behind(end, latest)
        else:  # Spark reports no latest offsets of a trigger without data
            behind = None if looked_s is None else 0
        fresh_s = self._reported[1] if looked_s is None else now_s
        return FeedProgress(behind, None, looked_s, fresh_s)

    def _looked_s(self) -> float | None:
        """Return when a trigger began, at the latest, that found nothing to read.

        A query that waits has done so since its last trigger, which is at most two ago.
        """
        status = self._query.status
        if status["message"] not in WAITS or status["isDataAvailable"]:
            return None
        return time.monotonic() - 2 * self._trigger_s

    def failure(self) -> str | None:
        """Return why the query has ended; None while it runs."""
        if self._query.isActive:
            return None
        raised = self._query.exception()
        return "the query ended" if raised is None else reason_of(str(raised))

    def owed_s(self) -> float:
        """Return the rest behind a batch that failed."""
        return self._owed_s()

    def stop(self) -> None:
        """Stop the query; blocks until its batch has ended, or for `STOP_TIMEOUT`.

        A batch that hangs for longer ends later. Whatever it still writes, the next reader sees:
        it fences the writers first.
        """
        self._stopped.set()
        try:
            self._query.stop()
        except (PySparkException, Py4JJavaError) as late:
            log.warning("a query that was stopped has not ended yet", reason=reason_of(str(late)))
        self._inspector.close()
        shutil.rmtree(self._checkpoint, ignore_errors=True)


def start_query(
    spark: SparkSession,
    settings: Settings,
    feed: Feed,
    kafka: ExternalKafka,
    origin: str,
    starts: Mapping[int, int],
    rewinds: Mapping[int, int],
    count: Callable[[pa.Table], None],
) -> FeedQuery:
    """Start to read a feed at the offsets `starts`, which name every partition of the stream.

    `rewinds` are those of the positions that the offsets are from.

    `origin` has the ids of the cluster and of the topic. The query fails with `StreamReplaced`
    before it writes a batch of a topic that was created again since. `count` gets what became of
    the rows of each batch.
    """
    inspector, stopped = TopicInspector(kafka, feed.stream.name), threading.Event()
    write = batch_writer(settings, feed, origin, rewinds, inspector, count)
    step = step_rows(feed.rows_per_s, settings.source_batch_messages)
    # Spark gives a batch one message of each partition at least, whatever it was to have.
    paced = PacedWriter(write, feed.rows_per_s, max(step, len(starts)), stopped)
    checkpoint = checkpoints(settings) / uuid.uuid4().hex
    offsets = {feed.stream.name: {str(number): offset for number, offset in starts.items()}}

    query = (
        spark.readStream.format("kafka")
        .options(**kafka.spark_options())
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", feed.stream.name)
        .option("startingOffsets", json.dumps(offsets))
        .option("maxOffsetsPerTrigger", step)
        .option("failOnDataLoss", True)
        .load()
        .writeStream.foreachBatch(write if feed.rows_per_s is None else paced)
        .queryName(feed.raw_topic)
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime=f"{settings.source_trigger_ms} milliseconds")
        .start()
    )
    trigger_s = settings.source_trigger_ms / 1000
    return FeedQuery(query, checkpoint, inspector, trigger_s, stopped, paced.owed_s)


class PacedWriter:
    """Writes batches with the rest that a limit asks for, unless the query is stopped.

    The rest is part of the batch, because Spark may give a batch one message of each partition,
    whatever it was to have, and begins the next one at once if a batch took longer than a trigger.
    `most`: messages of a batch.
    """

    def __init__(
        self, write: WriteBatch, rows_per_s: float | None, most: int, stopped: threading.Event
    ) -> None:
        self._write, self._rows_per_s, self._most = write, rows_per_s, most
        self._stopped = stopped
        self._begun_s: float | None = None
        """When the batch began that is written, or has failed."""

    def __call__(self, frame: DataFrame, number: int) -> None:
        begun_s, seen = time.monotonic(), Observation()
        self._begun_s = begun_s
        self._write(frame.observe(seen, count_messages(lit(1)).alias("messages")), number)
        self._stopped.wait(self._rest_s(seen.get["messages"], begun_s))
        self._begun_s = None

    def owed_s(self) -> float:
        """Return the rest behind a batch that failed: it is not known how much of it was read."""
        return 0.0 if self._begun_s is None else self._rest_s(self._most, self._begun_s)

    def _rest_s(self, messages: int, begun_s: float) -> float:
        return rest_s(self._rows_per_s, messages, time.monotonic() - begun_s)


def batch_writer(
    settings: Settings,
    feed: Feed,
    origin: str,
    rewinds: Mapping[int, int],
    inspector: TopicInspector,
    count: Callable[[pa.Table], None],
) -> WriteBatch:
    """Return the function that writes a batch of the stream `origin`; for `foreachBatch`."""

    assert isinstance(feed.table, KafkaTopic), "queries are over topics of Kafka"
    record_format = feed.table.format

    def write(frame: DataFrame, _: int) -> None:
        # Offsets say nothing about the topic: one that was created again may have as many.
        now = inspector.describe().origin
        if now != origin:
            raise StreamReplaced(feed.title, origin, now)
        written = frame.select("partition", "offset", "value").mapInArrow(
            feed_task(settings, feed.partition, origin, rewinds, record_format), COUNTS_DDL
        )
        count(written.toArrow())

    return write


def _offsets(text: str | None) -> dict[str, int] | None:
    """Return the offset of each partition of the one topic of a query, as Spark reports it."""
    found = None if text is None else json.loads(text)
    if not found:
        return None
    (offsets,) = found.values()
    return {number: int(offset) for number, offset in offsets.items()}


def reason_of(text: str) -> str:
    """Return the error that was raised in a worker, out of the text that Spark makes of it."""
    described = text.partition(_PLAN)[0].strip()
    raised = _RAISED.findall(described)
    reason = raised[-1] if raised else described.partition("\n")[0]
    return str(reason)[:REASON_CHARS]
