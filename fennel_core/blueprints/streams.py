"""External streams: the tables that the platform reads by itself, and the name of each.

A stream is known by its kind, its connector's name, and a text for what is read there. These three
are the identity of its raw topic, so what they are for a kind never changes: another text would be
another stream, which is read from its beginning.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TypeGuard

from fennel_core.wire.connectors import (
    KafkaTopic,
    KinesisStream,
    MySQLChanges,
    MySQLTable,
    PostgresChanges,
    PostgresTable,
    S3Table,
    Table,
)

Changes = PostgresChanges | MySQLChanges
StreamTable = KafkaTopic | S3Table | KinesisStream | PostgresTable | MySQLTable | Changes
"""The tables that are streams: one case in `stream_of` for each."""


@dataclass(frozen=True, slots=True)
class Stream:
    """What is read of a connector. `title` is for people: `Kafka topic `orders``."""

    kind: str
    name: str
    title: str


def is_stream(table: Table) -> TypeGuard[StreamTable]:
    """Return whether `table` is a stream."""
    return isinstance(table, StreamTable)


def stream_of(table: StreamTable) -> Stream:
    """Return the stream that `table` is."""
    match table:
        case KafkaTopic():
            return Stream("kafka", table.topic, f"Kafka topic `{table.topic}`")
        case S3Table(format="delta"):
            place = f"{table.bucket}/{table.prefix.strip('/')}"
            return Stream("delta", f"{place}?format=delta", f"Delta table `s3://{place}`")
        case S3Table():
            place = f"{table.bucket}/{table.prefix}{table.suffix}"
            return Stream("s3", f"{place}?{_form(table)}", f"S3 files `{place}`")
        case KinesisStream():
            # The ARN: streams of one name in two regions are two streams.
            name = table.stream_arn.rpartition("/")[2]
            return Stream("kinesis", table.stream_arn, f"Kinesis stream `{name}`")
        case PostgresTable():
            return Stream("postgres", table.table, f"Postgres table `{table.table}`")
        case MySQLTable():
            return Stream("mysql", table.table, f"MySQL table `{table.table}`")
        case PostgresChanges():
            # Beside the rows of the table, which are a stream of their own.
            name = f"{table.table}?changes"
            return Stream("postgres-changes", name, f"changes of Postgres table `{table.table}`")
        case MySQLChanges():
            name = f"{table.table}?changes"
            return Stream("mysql-changes", name, f"changes of MySQL table `{table.table}`")


def is_scheduled(table: StreamTable) -> bool:
    """Return whether a stream is read now and then, and not without end."""
    return isinstance(table, PostgresTable | MySQLTable)


def _form(table: S3Table) -> str:
    """Return how the files are read, which is part of what is read."""
    given = [f"format={table.format}"]
    if table.format == "csv":
        if table.delimiter not in ("", ","):
            given.append(f"delimiter={table.delimiter}")
        if table.headers:
            given.append(f"headers={json.dumps(table.headers, ensure_ascii=False)}")
    if set(table.prefix) & set("*%"):  # a prefix is no pattern, whatever it has
        given.append(f"prefix={table.prefix}")
    return "&".join(given)
