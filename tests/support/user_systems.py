"""A topic, a database and a folder on S3 of a user, on the servers of the platform of the tests."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

import psycopg
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from fennel_core.connections import s3
from fennel_core.settings.model import Settings
from tests.support.polling import eventually_sync

BUCKET = "test-lake"
PARTITIONS = 3
KAFKA = """\
kafka = Kafka(
    name="topics",
    bootstrap_servers="{bootstrap}",
    security_protocol="PLAINTEXT",
    sasl_mechanism="PLAIN",
    sasl_plain_username=None,
    sasl_plain_password=None,
)
"""
POSTGRES = """\
postgres = Postgres(
    name="tables",
    host="{host}",
    port={port},
    db_name="{database}",
    username="{user}",
    password="{password}",
)
"""
FILES = """\
files = S3(name="files", aws_access_key_id="{key}", aws_secret_access_key="{secret}")
"""
CONNECTORS = KAFKA + POSTGRES + FILES
"""Definitions of a connector for each; `UserSystems.addresses` has what they lack."""


def is_free(server: psycopg.Connection[Any], database: str) -> bool:
    """Return whether nothing reads the log of a database."""
    query = "SELECT count(*) FROM pg_replication_slots WHERE database = %s AND active"
    return server.execute(query, [database]).fetchone() == (0,)


class UserSystems:
    """Systems that no part of the platform made. `name`: of the topic, the database, the folder."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.name = settings, f"shop-{uuid.uuid4().hex[:8]}"
        self._own = settings.postgres_dsn.get_secret_value()
        with psycopg.connect(self._own, autocommit=True) as server:
            server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(self.name)))
        self.dsn = make_conninfo(self._own, dbname=self.name)
        self._s3 = s3.client(settings)
        s3.ensure_bucket(self._s3, BUCKET)
        admin = AdminClient({"bootstrap.servers": settings.kafka_bootstrap})
        admin.create_topics([NewTopic(self.name, PARTITIONS, 1)])[self.name].result(60)

    def close(self) -> None:
        """Drop the database; the rest goes with the platform.

        A source that has ended lets go of its slot a moment later.
        """
        drop = sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(self.name))
        with psycopg.connect(self._own, autocommit=True) as server:
            eventually_sync(lambda: is_free(server, self.name))
            server.execute(drop)

    def addresses(self) -> dict[str, Any]:
        at = conninfo_to_dict(self.dsn)
        return {
            "bootstrap": self.settings.kafka_bootstrap,
            "host": at["host"],
            "port": at["port"],
            "database": at["dbname"],
            "user": at["user"],
            "password": at.get("password", "none"),
            "key": self.settings.s3_access_key,
            "secret": self.settings.s3_secret_key.get_secret_value(),
            "name": self.name,
        }

    def send(self, messages: Iterable[bytes]) -> None:
        """Send messages to the topic."""
        producer = Producer({"bootstrap.servers": self.settings.kafka_bootstrap})
        for message in messages:
            producer.produce(self.name, message)
        assert producer.flush(60) == 0

    def execute(self, statement: str, values: Any = None) -> None:
        """Run a statement in the database."""
        with psycopg.connect(self.dsn, autocommit=True) as own:
            own.execute(statement.encode(), values)

    def put(self, file: str, body: bytes) -> None:
        """Write a file into the folder."""
        self._s3.put_object(Bucket=BUCKET, Key=f"{self.name}/{file}", Body=body)
