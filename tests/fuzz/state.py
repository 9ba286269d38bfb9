"""The state that a refused request must not change: tables and the ends of ingest's topics.

Tables that background work changes at any time (leases, progress, snapshots, history), the audit
log, which records refused requests on purpose, and topics that jobs write are left out: only a
request can change the others.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from psycopg import sql

from fennel_core.connections.kafka import client_config
from fennel_core.settings.model import Settings

BACKGROUND: Final = frozenset(
    {
        "slot",
        "job_partition",
        "snapshot",
        "history_file",
        "history_partition",
        "history_retired",
        "orphan_topic",
        "backfill",
        "drill",
        "audit_event",
        "audit_export",
    }
)
TABLES: Final = """
    SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind = 'r' AND n.nspname = current_schema() ORDER BY 1
"""
SOURCE_TOPICS: Final = """
    SELECT id FROM asset WHERE workspace = %s AND kind = 'raw' AND state <> 'deleted' ORDER BY id
"""
TIMEOUT_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Digest:
    """Rows and hash of each table, and the end offset of each partition of ingest's topics."""

    tables: tuple[tuple[Any, ...], ...]
    ends: tuple[tuple[str, int, int], ...]

    def difference(self, other: Digest) -> str:
        """Return what differs, for people."""
        changed = set(self.tables) ^ set(other.tables), set(self.ends) ^ set(other.ends)
        return (
            f"tables {sorted({str(each[0]) for each in changed[0]})}, topics {sorted(changed[1])}"
        )


class StateReader:
    """Reads digests; use as a context manager."""

    def __init__(self, settings: Settings, workspace: str) -> None:
        self._dsn = settings.postgres_dsn.get_secret_value()
        self._workspace = workspace
        self._config = client_config(settings)
        self._admin = AdminClient(self._config)
        self._connection = psycopg.connect(self._dsn, autocommit=True)
        names = [str(name) for (name,) in self._connection.execute(TABLES)]
        self._query = sql.SQL(" UNION ALL ").join(
            sql.SQL(
                "SELECT {name}, count(*), coalesce(sum(hashtextextended(t::text, 0)), 0) FROM {t} t"
            ).format(name=sql.Literal(name), t=sql.Identifier(name))
            for name in names
            if name not in BACKGROUND
        )

    def read(self) -> Digest:
        """Return the digest of this moment."""
        tables = tuple(sorted(self._connection.execute(self._query).fetchall()))
        topics = [str(id_) for (id_,) in self._connection.execute(SOURCE_TOPICS, [self._workspace])]
        return Digest(tables, self._ends(topics))

    def close(self) -> None:
        self._connection.close()

    def _ends(self, topics: list[str]) -> tuple[tuple[str, int, int], ...]:
        known = self._admin.list_topics(timeout=TIMEOUT_S).topics
        wanted = {
            TopicPartition(topic, part): OffsetSpec.latest()
            for topic in topics
            if topic in known
            for part in known[topic].partitions
        }
        if not wanted:
            return ()
        give_up = time.monotonic() + TIMEOUT_S
        while True:
            found = self._admin.list_offsets(wanted, request_timeout=TIMEOUT_S)
            try:
                ends = [(at.topic, at.partition, end.result().offset) for at, end in found.items()]
                return tuple(sorted(ends))
            except KafkaException:
                # The client never renews the leaders that it knew before a topic's creation.
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.2)  # the pause of a client that retries
                self._admin = AdminClient(self._config)
