"""Write the data of a run into Kafka, S3 and Postgres while these are killed: each row once.

Each writer spreads its rows over the time of the run, and repeats what failed. A repetition adds
nothing: the producer is idempotent, a file has a name and a content of its own, an order has its
number as a key, and a customer is changed to the same again.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, LiteralString

import polars as pl
import psycopg
from botocore.exceptions import BotoCoreError, ClientError
from confluent_kafka import KafkaError, Message, Producer

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

AGAIN_S: Final = 0.5
FLUSH_S: Final = 300.0
STEP_S: Final = 2.0
"""Between two writes of one writer."""

INSERT: Final = (
    "INSERT INTO orders (oid, uid, amount, at) VALUES (%s, %s, %s, %s) ON CONFLICT (oid) DO NOTHING"
)
CHANGE: Final = (
    "INSERT INTO customers (uid, tier, at) VALUES (%s, %s, %s) "
    "ON CONFLICT (uid) DO UPDATE SET tier = excluded.tier, at = excluded.at"
)


class RowsLost(Exception):
    """A system of the shop did not take rows; the run proves nothing."""


def paced(rows: pl.DataFrame, seconds: float) -> Iterator[pl.DataFrame]:
    """Yield the rows in parts, each when it is due."""
    began = time.monotonic()
    count = max(1, round(seconds / STEP_S))
    size = -(-rows.height // count)
    for number, part in enumerate(rows.iter_slices(max(1, size))):
        time.sleep(max(0.0, began + number * STEP_S - time.monotonic()))
        yield part


def send(bootstrap: str, topic: str, partitions: int, rows: pl.DataFrame, seconds: float) -> None:
    """Produce the rows as JSON; those of a customer stay in order."""
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "message.timeout.ms": 0,
            "log_level": 2,  # that the broker is killed is no news
            "linger.ms": 20,
            "queue.buffering.max.messages": 2_000_000,
        }
    )
    for part in paced(rows, seconds):
        text = part.with_columns(pl.col("at").dt.strftime("%Y-%m-%dT%H:%M:%S.%6fZ"))
        lines = text.write_ndjson().encode().splitlines()
        for uid, line in zip(part["uid"].to_list(), lines, strict=True):
            producer.produce(topic, line, partition=uid % partitions, on_delivery=delivered)
        producer.poll(0)
    if producer.flush(FLUSH_S) or failed:
        raise RowsLost(f"topic {topic}: {len(producer)} messages are left; {failed[:3]}")


def put(client: S3Client, bucket: str, rows: pl.DataFrame, seconds: float) -> None:
    """Put a Parquet file for each part of the rows."""
    for number, part in enumerate(paced(rows, seconds)):
        body = io.BytesIO()
        part.write_parquet(body, row_group_size=10_000)
        key, content = f"orders/{number:05}.parquet", body.getvalue()
        _until_done(lambda k=key, c=content: _put(client, bucket, k, c))


def _put(client: S3Client, bucket: str, key: str, content: bytes) -> None:
    client.put_object(Bucket=bucket, Key=key, Body=content)


def insert(dsn: str, rows: pl.DataFrame, seconds: float) -> None:
    """Insert orders, a transaction for each part; an outcome that is unknown is tried again."""
    for part in paced(rows, seconds):
        values = part.select("oid", "uid", "amount", "at").rows()
        _until_done(lambda v=values: _execute(dsn, INSERT, v))


def change(dsn: str, rows: pl.DataFrame, seconds: float) -> None:
    """Insert customers, or change them, as `insert` does."""
    for part in paced(rows, seconds):
        values = part.select("uid", "tier", "at").rows()
        _until_done(lambda v=values: _execute(dsn, CHANGE, v))


def _execute(dsn: str, statement: LiteralString, values: list[tuple[object, ...]]) -> None:
    with psycopg.connect(dsn, connect_timeout=10) as connection:
        connection.cursor().executemany(statement, values)


def _until_done(write: Callable[[], None]) -> None:
    give_up = time.monotonic() + FLUSH_S
    while True:
        try:
            return write()
        except (psycopg.Error, BotoCoreError, ClientError) as failed:
            if time.monotonic() > give_up:
                raise RowsLost(str(failed)) from failed
            time.sleep(AGAIN_S)  # the pause of a client that retries
