"""Object stores for tests: in memory and in a real S3 bucket."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

import pytest

from fennel_core.connections import s3
from fennel_core.connections.object_store import MemoryObjectStore, ObjectStore
from fennel_core.connections.s3 import S3ObjectStore


@pytest.fixture(params=["memory", "s3"])
def objects(request: pytest.FixtureRequest) -> ObjectStore:
    """An empty object store of each implementation; also import the fixture `s3_server`."""
    if request.param == "memory":
        return MemoryObjectStore(lambda: datetime.now(UTC))
    client, bucket = s3.client(request.getfixturevalue("s3_server")), f"test-{uuid.uuid4().hex[:8]}"
    s3.ensure_bucket(client, bucket)
    return S3ObjectStore(client, bucket)
