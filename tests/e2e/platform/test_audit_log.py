"""The audit log of the running platform arrives in Kafka, and holds no value of a secret."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from fennel_core.connections import postgres
from fennel_core.connections.installation import installation_of
from fennel_core.settings.model import Settings
from tests.support.workspaces import Api

pytestmark = [pytest.mark.platform, pytest.mark.usefixtures("platform")]
WITHIN_S = 60.0


def exported(settings: Settings, topic: str, subject: str, count: int) -> list[dict[str, Any]]:
    """Return the first events about a subject in the topic."""
    consumer = Consumer(
        {"bootstrap.servers": settings.kafka_bootstrap, "group.id": uuid.uuid4().hex}
    )
    found: list[dict[str, Any]] = []
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        ends = time.monotonic() + WITHIN_S
        while len(found) < count and time.monotonic() < ends:
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                event = json.loads(message.value() or b"{}")
                found += [event] if event["subject"] == subject else []
    finally:
        consumer.close()
    return found


async def test_a_change_of_a_secret_is_exported_without_its_value(
    settings: Settings, make: Callable[[], Awaitable[Api]]
) -> None:
    api, name = await make(), f"canary-{uuid.uuid4().hex}"
    await api.good("POST", f"/secret/{name}", {"value": "canary-value"})
    dsn = settings.postgres_dsn.get_secret_value()
    async with postgres.pool(dsn, name="test", size=1) as pool:
        topic = f"fennel-audit-{await installation_of(pool)}"
    events = exported(settings, topic, f"secret {name}", 2)
    assert [(e["action"], e["outcome"], e["workspace"]) for e in events] == [
        ("set-secret", "started", api.workspace),
        ("set-secret", "done", api.workspace),
    ]
    assert "canary-value" not in json.dumps(events)
