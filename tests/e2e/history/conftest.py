"""A world per test: a database, a bucket and topics of its own."""

from __future__ import annotations

import random
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from pydantic import SecretStr

from fennel_core.connections import s3
from fennel_core.connections.kafka import client_config
from fennel_core.connections.postgres import pool
from fennel_core.settings.model import Settings
from tests.e2e.history.world import World
from tests.support.ports import free_port
from tests.support.s3 import object_keys


@pytest.fixture
async def world(infra: None, database: str, tmp_path: Path) -> AsyncIterator[World]:
    run = uuid.uuid4().hex[:8]
    changed = {
        "postgres_dsn": SecretStr(database),
        "data_dir": tmp_path,
        "s3_bucket": f"test-{run}",
        "history_port": free_port(),
    }
    settings = Settings().model_copy(update=changed)
    client = s3.client(settings)
    s3.ensure_bucket(client, settings.s3_bucket)
    async with pool(database, name="test", size=2) as connections:
        made = World(settings, connections, run, random.Random(run))  # noqa: S311  # repeatable, and no secret
        await made.open()
        yield made
    AdminClient(client_config(settings)).delete_topics([made.topic(name) for name in made.rows])
    for key in object_keys(client, settings.s3_bucket, ""):
        s3.delete(client, settings.s3_bucket, key)
    client.delete_bucket(Bucket=settings.s3_bucket)
