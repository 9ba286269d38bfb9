"""Two installations in one bucket and one folder, in memory and in a real S3."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from pydantic import SecretStr

from fennel_core.connections import migrate, s3
from fennel_core.connections.garbage import DeletionLimit, MemoryGarbageMarks
from fennel_core.connections.installation import (
    BucketOfAnotherInstallation,
    InstallationObjects,
    StateOfAnotherInstallation,
    installation_objects,
    installation_of,
    key_prefix,
    own_state_folder,
    require_ownership,
)
from fennel_core.connections.object_store import ObjectStore
from fennel_core.connections.postgres import Pool, connect, pool
from fennel_core.snapshots.memory import MemoryPointers
from fennel_core.snapshots.pruning import PrunedSnapshots, prune_snapshots
from fennel_core.snapshots.transfer import SnapshotContext
from fennel_core.vocab.ids import InstallationId
from tests.support.object_store import objects
from tests.support.s3 import S3Server

__all__ = ["objects"]

OURS, THEIRS = InstallationId("0123456789abcdef"), InstallationId("fedcba9876543210")


def identity(of: InstallationId) -> Callable[[], Awaitable[InstallationId]]:
    async def identify() -> InstallationId:
        return of

    return identify


async def prune_without_patience(store: ObjectStore) -> PrunedSnapshots:
    """Prune as a database that knows no job, without grace period and limit."""
    context = SnapshotContext(store, MemoryPointers(lambda: datetime.now(UTC), {}))
    marks = MemoryGarbageMarks(lambda: datetime.now(UTC))
    return await prune_snapshots(context, marks, 1, -timedelta(hours=1), DeletionLimit(0, 100))


async def test_keys_are_relative_to_the_prefix_of_the_installation(objects: ObjectStore) -> None:
    ours = InstallationObjects(objects, "", identity(OURS))
    await ours.put("snapshots/a", b"1")
    assert [each.key for each in await ours.list_objects("snapshots/")] == ["snapshots/a"]
    assert await objects.get(f"{OURS}/snapshots/a") == b"1"
    assert await ours.root() == key_prefix("", OURS)
    await ours.delete(["snapshots/a"])
    assert await ours.get("snapshots/a") is None


async def test_a_bucket_of_another_installation_is_refused_and_left_as_it_is(
    objects: ObjectStore,
) -> None:
    await InstallationObjects(objects, "", identity(OURS)).put("snapshots/j/0/1-a/manifest", b"1")
    before = await objects.list_objects("")
    misled = InstallationObjects(objects, "", identity(THEIRS))
    with pytest.raises(BucketOfAnotherInstallation, match=f"{OURS}.*{THEIRS}.*FENNEL_POSTGRES_DSN"):
        await prune_without_patience(misled)
    assert await objects.list_objects("") == before
    again = InstallationObjects(objects, "", identity(OURS))
    assert await again.get("snapshots/j/0/1-a/manifest") == b"1", "a restart of the owner"


async def test_an_installation_with_a_prefix_of_its_own_prunes_only_its_objects(
    objects: ObjectStore,
) -> None:
    ours = InstallationObjects(objects, "", identity(OURS))
    theirs = InstallationObjects(objects, "staging/", identity(THEIRS))
    for each in (ours, theirs):
        await each.put("snapshots/j/0/1-a/manifest", b"1")
    assert await prune_without_patience(theirs) == PrunedSnapshots(0, 1)
    assert await theirs.get("snapshots/j/0/1-a/manifest") is None
    assert await ours.get("snapshots/j/0/1-a/manifest") == b"1"


async def test_a_program_that_only_reads_does_not_become_the_owner(objects: ObjectStore) -> None:
    reader = InstallationObjects(objects, "", identity(OURS), claims=False)
    assert await reader.list_objects("") == []
    assert await objects.list_objects("") == []
    await InstallationObjects(objects, "", identity(THEIRS)).root()
    with pytest.raises(BucketOfAnotherInstallation):
        await InstallationObjects(objects, "", identity(OURS), claims=False).root()


async def test_an_unreadable_owner_is_refused(objects: ObjectStore) -> None:
    await objects.put("owner", b"?")
    with pytest.raises(BucketOfAnotherInstallation, match="unreadable"):
        await InstallationObjects(objects, "", identity(OURS)).list_objects("")


def test_a_folder_of_local_states_belongs_to_one_installation(tmp_path: Path) -> None:
    folder = own_state_folder(tmp_path / "state", OURS)
    (folder / "job").mkdir(parents=True)
    assert own_state_folder(tmp_path / "state", OURS) == folder
    with pytest.raises(StateOfAnotherInstallation, match=f"{OURS}.*{THEIRS}.*FENNEL_DATA_DIR"):
        own_state_folder(tmp_path / "state", THEIRS)
    assert (folder / "job").exists()


@dataclass(frozen=True)
class Bucket:
    """The settings of a bucket in a real S3."""

    server: S3Server
    s3_bucket: str
    s3_prefix: str = ""

    @property
    def s3_endpoint(self) -> str:
        return self.server.s3_endpoint

    @property
    def s3_region(self) -> str:
        return self.server.s3_region

    @property
    def s3_access_key(self) -> str:
        return self.server.s3_access_key

    @property
    def s3_secret_key(self) -> SecretStr:
        return self.server.s3_secret_key


@asynccontextmanager
async def fresh_database(beside: str) -> AsyncIterator[Pool]:
    """Create a freshly migrated database on the server of `beside`."""
    name = f"fresh_{uuid.uuid4().hex[:8]}"
    with connect(beside, name="test") as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    dsn = psycopg.conninfo.make_conninfo(beside, dbname=name)
    with connect(dsn, name="test") as connection:
        migrate.apply(connection, migrate.read())
    async with pool(dsn, name="test", size=1) as opened:
        yield opened
    with connect(beside, name="test") as connection:
        connection.execute(sql.SQL("DROP DATABASE {}").format(sql.Identifier(name)))


async def test_a_freshly_migrated_database_is_refused_by_bucket_and_folder(
    database: str, s3_server: S3Server, tmp_path: Path
) -> None:
    bucket = Bucket(s3_server, f"test-{uuid.uuid4().hex[:8]}")
    s3.ensure_bucket(s3.client(bucket), bucket.s3_bucket)
    async with pool(database, name="test", size=1) as ours, fresh_database(database) as fresh:
        await require_ownership(bucket, ours, tmp_path / "state")
        await installation_objects(bucket, ours).put("snapshots/j/0/1-a/manifest", b"1")
        assert await installation_of(fresh) != await installation_of(ours)
        with pytest.raises(StateOfAnotherInstallation):
            await require_ownership(bucket, fresh, tmp_path / "state")
        with pytest.raises(BucketOfAnotherInstallation):
            await require_ownership(bucket, fresh, None)
        await require_ownership(bucket, ours, tmp_path / "state")
        apart = Bucket(s3_server, bucket.s3_bucket, "staging/")
        await require_ownership(apart, fresh, tmp_path / "other")
        await prune_without_patience(installation_objects(apart, fresh))
        assert await installation_objects(bucket, ours).get("snapshots/j/0/1-a/manifest") == b"1"


async def test_a_bucket_that_cannot_be_reached_is_checked_at_its_first_use(
    database: str, tmp_path: Path
) -> None:
    away = Bucket(S3Server("http://127.0.0.1:9"), "bucket")
    async with pool(database, name="test", size=1) as ours:
        await require_ownership(away, ours, tmp_path)
