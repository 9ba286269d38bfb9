"""Export the audit log to Kafka, for systems that keep or watch it elsewhere.

The topic is `fennel-audit-<installation>`, with one partition and no retention, so that the order
of events is kept. A message is an event as JSON, as `GET /api/v1/operations/audit` shows it. Every
event is delivered at least once: the position is written after the broker has acknowledged, so
events of a process that stopped in between are sent again, with the same `id`. One process exports
at a time: it locks the row of the position, which the others skip.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol, cast

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic as KafkaTopic

from fennel_core.connections import audit_events
from fennel_core.connections.audit_events import AuditEvent
from fennel_core.connections.errors import SystemUnavailable
from fennel_core.connections.installation import installation_of
from fennel_core.connections.kafka import client_config
from fennel_core.connections.postgres import AsyncConnection, Pool, in_transaction
from fennel_core.definition.periodic import run_periodically
from fennel_core.ledger.kafka_access import AUDIT_PREFIX
from fennel_core.settings.model import Settings
from fennel_core.telemetry.metrics import gauge
from fennel_core.vocab.ids import InstallationId

BATCH_ROWS: Final = 500
EVERY_S: Final = 5.0
KAFKA_S: Final = 10.0
"""Longest wait for the broker; the lock on the position is held for so long."""
BEHIND: Final = gauge(
    "fennel_audit_events_not_exported", "Events of the audit log that are not in Kafka yet."
)


class AuditSink(Protocol):
    """Where events go."""

    def send(self, events: Sequence[AuditEvent]) -> None:
        """Return when all events are stored; SystemUnavailable if that is unknown. Blocks."""
        ...


class KafkaAuditSink:
    """Sends events to the installation's audit topic; clients are made at the first use."""

    def __init__(self, settings: Settings, installation: InstallationId) -> None:
        self._settings = settings
        self.topic = f"{AUDIT_PREFIX}{installation}"
        self._producer: Producer | None = None

    def send(self, events: Sequence[AuditEvent]) -> None:
        """See `AuditSink`."""
        failures: list[KafkaError] = []

        def delivered(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                failures.append(error)

        try:
            producer = self._ensure_open()
            for event in events:
                producer.produce(
                    self.topic,
                    msgspec.json.encode(event.as_json()),
                    key=event.call.encode(),
                    on_delivery=delivered,
                )
            left = producer.flush(KAFKA_S)
        except (KafkaException, BufferError) as failed:
            self._producer = None
            raise SystemUnavailable(f"Kafka: {failed}") from failed
        if left or failures:
            # Messages in its queue would be sent later, after those of the next attempt.
            self._producer = None
            reason = failures[0].str() if failures else f"no response within {KAFKA_S:g} s"
            raise SystemUnavailable(f"Kafka: {reason}")

    def _ensure_open(self) -> Producer:
        if self._producer is None:
            topic = KafkaTopic(
                self.topic,
                num_partitions=1,
                replication_factor=self._settings.kafka_replication,
                config={"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"},
            )
            # The client must outlive the request: its end cancels what is under way.
            admin = AdminClient(client_config(self._settings))
            created = admin.create_topics([topic], request_timeout=KAFKA_S)
            try:
                created[self.topic].result(KAFKA_S)
            except KafkaException as failed:
                if failed.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
            except TimeoutError as late:
                raise SystemUnavailable("Kafka: the audit topic was not created in time") from late
            self._producer = Producer(
                client_config(self._settings)
                | {
                    "enable.idempotence": True,
                    "acks": "all",
                    "message.timeout.ms": int(KAFKA_S * 1000),
                }
            )
        return self._producer


async def export_once(pool: Pool, sink: AuditSink) -> int:
    """Send the oldest events that were not exported; return how many are left."""

    async def work(connection: AsyncConnection) -> int:
        cursor = await connection.execute(
            "SELECT exported FROM audit_export FOR UPDATE SKIP LOCKED"
        )
        row = await cursor.fetchone()
        if row is None:
            return 0  # another process exports
        events = await audit_events.read_after(connection, cast(int, row[0]), BATCH_ROWS)
        if events:
            await asyncio.to_thread(sink.send, events)
            await connection.execute("UPDATE audit_export SET exported = %s", (events[-1].id,))
        cursor = await connection.execute(
            "SELECT count(*) FROM audit_event, audit_export WHERE id > exported"
        )
        left = await cursor.fetchone()
        assert left is not None, "an aggregate returns one row"
        return cast(int, left[0])

    return await in_transaction(pool, work)


class AuditExport:
    """Exports the audit log every few seconds."""

    def __init__(self, settings: Settings, pool: Pool) -> None:
        self._settings, self._pool = settings, pool
        self._sink: KafkaAuditSink | None = None

    async def run(self) -> None:
        """Export forever."""
        await run_periodically(self.check_once, "audit export", EVERY_S)

    async def check_once(self) -> None:
        """Export until nothing is left, and set the gauge."""
        if self._sink is None:
            self._sink = KafkaAuditSink(self._settings, await installation_of(self._pool))
        while left := await export_once(self._pool, self._sink):
            BEHIND.set(left)
        BEHIND.set(0)
