"""The comparison of `latency.py`: a keyed count as Spark micro-batches, exactly once.

Plain Structured Streaming: a Kafka source with 20 events a second, `groupBy(key).count()` with its
state store and checkpoint, no trigger interval (a batch starts when the previous one has ended),
few shuffle partitions. Spark's Kafka sink is at-least-once, so the output goes through
`foreachBatch` with a transactional producer: one transaction per batch, which also contains the
batch's number, so that a batch repeated after a crash is skipped. Latency is from producing an
event to reading (read committed) a count that includes it.

The last line of stdout is a JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

PARTITIONS = 4
KEYS = 500
WARM_UP_S = 20.0
"""The first batches pay for class loading and code generation."""
FETCH_WAIT_MS = 10


class Topics:
    """An input, an output and a topic of batch numbers, for as long as the benchmark runs."""

    def __init__(self, kafka: str) -> None:
        stamp = time.time_ns() // 1_000_000
        self.given, self.made, self.batches = (
            f"bench-micro-{stamp}-{name}" for name in ("in", "out", "batches")
        )
        self._admin = AdminClient({"bootstrap.servers": kafka})

    def create(self) -> None:
        wanted = [
            NewTopic(self.given, PARTITIONS, 1),
            NewTopic(self.made, PARTITIONS, 1),
            NewTopic(self.batches, 1, 1),
        ]
        for created in self._admin.create_topics(wanted).values():
            created.result()

    def delete(self) -> None:
        for deleted in self._admin.delete_topics([self.given, self.made, self.batches]).values():
            deleted.result()


def exactly_once(kafka: str, topics: Topics) -> Callable[[DataFrame, int], None]:
    """Writes a batch of (key, count) in one transaction, unless the topic of batch numbers says
    that it was written.
    """
    producer = Producer(
        {"bootstrap.servers": kafka, "transactional.id": topics.batches, "linger.ms": 0}
    )
    producer.init_transactions(30)
    written = last_batch(kafka, topics)

    def write(batch: DataFrame, number: int) -> None:
        if number <= written:
            return
        rows = batch.collect()
        if not rows:
            return
        producer.begin_transaction()
        for row in rows:
            producer.produce(topics.made, str(row["count"]).encode(), key=str(row["key"]).encode())
        producer.produce(topics.batches, str(number).encode())
        producer.commit_transaction(30)

    return write


def last_batch(kafka: str, topics: Topics) -> int:
    """The number of the last batch that was written, −1 when none was."""
    consumer = reader(kafka)
    consumer.assign([TopicPartition(topics.batches, 0, 0)])
    last = -1
    while (message := consumer.poll(5)) is not None:
        error = message.error()
        if error is not None and error.code() == KafkaError._PARTITION_EOF:
            break
        assert error is None, error
        last = int(message.value())
    consumer.close()
    return last


def reader(kafka: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": kafka,
            "group.id": "bench-micro",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": FETCH_WAIT_MS,
        }
    )


def session(jars: Path) -> SparkSession:
    """Spark on two cores, tuned for latency as far as options go."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    wanted = ("spark-sql-kafka", "spark-token-provider", "kafka-clients", "commons-pool2")
    found = [
        str(jar.resolve()) for jar in sorted(jars.glob("*.jar")) if jar.name.startswith(wanted)
    ]
    return (
        SparkSession.builder.master("local[2]")
        .appName("micro-batches")
        .config("spark.jars", ",".join(found))
        .config("spark.ui.enabled", False)
        .config("spark.ui.showConsoleProgress", False)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.sql.streaming.metricsEnabled", False)
        .getOrCreate()
    )


def counted(spark: SparkSession, kafka: str, topics: Topics) -> DataFrame:
    events = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", kafka)
        .option("subscribe", topics.given)
        .option("startingOffsets", "earliest")
        .option("kafka.isolation.level", "read_committed")
        .option("kafka.fetch.max.wait.ms", FETCH_WAIT_MS)
        .load()
    )
    return events.groupBy(f.col("key").cast("string").alias("key")).count()


class Latencies(threading.Thread):
    """Reads counts and matches them with the events that waited for them."""

    def __init__(self, kafka: str, topics: Topics) -> None:
        super().__init__(daemon=True)
        self._consumer = reader(kafka)
        self._consumer.assign([TopicPartition(topics.made, part, 0) for part in range(PARTITIONS)])
        self._waiting: dict[str, deque[tuple[int, float]]] = defaultdict(deque)
        self._lock = threading.Lock()
        self._done = threading.Event()
        self.ms: list[tuple[float, float]] = []
        """(moment of sending, latency) of every event seen."""

    def sent(self, key: str, number: int, at: float) -> None:
        with self._lock:
            self._waiting[key].append((number, at))

    def run(self) -> None:
        while not self._done.is_set():
            message = self._consumer.poll(0.1)
            if message is None or message.error() is not None:
                continue
            now = time.perf_counter()
            count = int(message.value())
            with self._lock:
                waiting = self._waiting[message.key().decode()]
                while waiting and waiting[0][0] <= count:
                    at = waiting.popleft()[1]
                    self.ms.append((at, (now - at) * 1000))

    def stop(self) -> None:
        self._done.set()
        self.join()
        self._consumer.close()


def send(kafka: str, topics: Topics, latencies: Latencies, rate: float, seconds: float) -> None:
    """Events of random keys at random moments, `rate` a second on average."""
    producer = Producer({"bootstrap.servers": kafka, "linger.ms": 0})
    draw = random.Random(3)  # noqa: S311  # repeatable, and no secret
    counts: dict[str, int] = defaultdict(int)
    moment = time.perf_counter()
    until = moment + seconds
    while (moment := moment + draw.expovariate(rate)) < until:
        time.sleep(max(0.0, moment - time.perf_counter()))
        key = f"key-{draw.randrange(KEYS)}"
        counts[key] += 1
        latencies.sent(key, counts[key], time.perf_counter())
        producer.produce(
            topics.given, json.dumps({"amount": draw.random()}).encode(), key=key.encode()
        )
        producer.poll(0)
    producer.flush(10)


def quantiles(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        f"micro_batch_p{q}_ms": round(ordered[min(len(ordered) - 1, len(ordered) * q // 100)], 1)
        for q in (50, 90, 99)
    }


def measured(kafka: str, jars: Path, seconds: float, rate: float) -> dict[str, Any]:
    topics = Topics(kafka)
    topics.create()
    spark = session(jars)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        with tempfile.TemporaryDirectory(prefix="fennel-bench-") as folder:
            writer = (
                counted(spark, kafka, topics)
                .writeStream.outputMode("update")
                .option("checkpointLocation", folder)
            )
            query = writer.foreachBatch(exactly_once(kafka, topics)).start()
            latencies = Latencies(kafka, topics)
            latencies.start()
            begun = time.perf_counter()
            send(kafka, topics, latencies, rate, WARM_UP_S + seconds)
            time.sleep(10.0)
            latencies.stop()
            failure = query.exception()
            query.stop()
            assert failure is None, failure
    finally:
        spark.stop()
        topics.delete()
    steady = [ms for at, ms in latencies.ms if at - begun > WARM_UP_S]
    return quantiles(steady) | {"micro_batch_events": len(steady)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kafka", required=True)
    parser.add_argument("--jars", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rate", type=float, default=20)
    chosen = parser.parse_args()
    print(json.dumps(measured(chosen.kafka, chosen.jars, chosen.seconds, chosen.rate)))


if __name__ == "__main__":
    main()
