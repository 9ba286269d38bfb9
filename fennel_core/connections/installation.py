"""The identity of an installation, and the proof that a bucket or a folder belongs to it.

Theory. An installation is one database: the migration that creates it generates an id, a backup and
its restore keep it. What a database does not know is not garbage, because the database may be the
wrong one: a fresh one, or that of another installation which shares the bucket. Therefore

- every key in the bucket is below `<FENNEL_S3_PREFIX><installation>/`, and every local state is
  below `<state folder>/<installation>/`, so that one installation never lists what another wrote;
- the object `<FENNEL_S3_PREFIX>owner` and the file `<state folder>/owner` name the installation.
  The first one to start writes them, and any other is refused, so that a wrong connection string is
  noticed before anything is read, written or deleted.

Keys in rows and manifests are relative to the installation's own prefix, so a bucket can be copied.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from fennel_core.connections import postgres, s3
from fennel_core.connections.errors import ConnectionsError, ObjectStoreUnavailable
from fennel_core.connections.object_store import ObjectConflict, ObjectStore, StoredObject
from fennel_core.connections.postgres import Pool
from fennel_core.connections.s3 import S3ObjectStore, S3Settings
from fennel_core.vocab.ids import InstallationId

OWNER: Final = "owner"
"""Name of the object and of the file that names the installation."""


class BucketOfAnotherInstallation(ObjectStoreUnavailable):
    """The bucket, or the prefix in it, belongs to another installation. Nothing was changed.

    Connect to the database of that installation, or choose another bucket or prefix.
    """

    code = "bucket-of-another-installation"


class StateOfAnotherInstallation(ConnectionsError):
    """The folder of local states belongs to another installation. Nothing was changed.

    Connect to the database of that installation, or choose another data folder.
    """

    code = "state-of-another-installation"


class BucketSettings(S3Settings, Protocol):
    """The settings that locate an installation's objects."""

    @property
    def s3_bucket(self) -> str: ...
    @property
    def s3_prefix(self) -> str: ...


async def installation_of(pool: Pool) -> InstallationId:
    """Return the id of the installation that a database belongs to."""
    async with postgres.connection_of(pool) as connection:
        row = await (await connection.execute("SELECT id FROM installation")).fetchone()
    assert row is not None, "the migration inserts the only row"
    return InstallationId(str(row[0]))


def key_prefix(prefix: str, installation: InstallationId) -> str:
    """Return the prefix of all keys of an installation."""
    return f"{prefix}{installation}/"


def own_state_folder(folder: Path, installation: InstallationId) -> Path:
    """Return the folder of an installation's local states below `folder`, which it then owns.

    Raises StateOfAnotherInstallation if another installation owns `folder`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with (folder / OWNER).open("x") as file:
            file.write(owner_body(installation))
    except FileExistsError:
        owner = _owner_in((folder / OWNER).read_text())
        if owner != installation:
            raise StateOfAnotherInstallation(
                f"{folder} holds local states of installation {owner or '(unreadable)'}, and this "
                f"database is installation {installation}: set FENNEL_POSTGRES_DSN to the database "
                f"of that installation, or FENNEL_DATA_DIR to another folder"
            ) from None
    return folder / installation


class InstallationObjects:
    """An `ObjectStore` in the part of a bucket that belongs to this installation.

    The owner of the bucket is checked before the first access; every method raises
    BucketOfAnotherInstallation if it is another one. `claims`: become the owner if there is none;
    False for programs that only read.
    """

    def __init__(
        self,
        bucket: ObjectStore,
        prefix: str,
        identify: Callable[[], Awaitable[InstallationId]],
        claims: bool = True,
    ) -> None:
        self._bucket, self._prefix, self._identify = bucket, prefix, identify
        self._claims = claims
        self._root: str | None = None

    async def root(self) -> str:
        """Return the prefix of this installation's keys, for code that writes them by itself."""
        if self._root is None:
            installation = await self._identify()
            await self._require_owner(installation)
            self._root = key_prefix(self._prefix, installation)
        return self._root

    async def _require_owner(self, installation: InstallationId) -> None:
        key, ours = f"{self._prefix}{OWNER}", owner_body(installation).encode()
        if self._claims:
            with suppress(ObjectConflict):
                await self._bucket.put(key, ours)
        found = await self._bucket.get(key)
        if found != ours and (self._claims or found is not None):
            owner = _owner_in((found or b"").decode(errors="replace"))
            raise BucketOfAnotherInstallation(
                f"the bucket belongs to installation {owner or '(unreadable)'} (object `{key}`), "
                f"and this database is installation {installation}: set FENNEL_POSTGRES_DSN to the "
                "database of that installation, or FENNEL_S3_BUCKET or FENNEL_S3_PREFIX to another "
                "place"
            )

    async def put(self, key: str, body: bytes) -> None:
        await self._bucket.put(await self.root() + key, body)

    async def get(self, key: str) -> bytes | None:
        return await self._bucket.get(await self.root() + key)

    async def stream(self, key: str) -> AsyncIterator[bytes] | None:
        return await self._bucket.stream(await self.root() + key)

    async def read_range(self, key: str, first: int, size: int) -> bytes | None:
        return await self._bucket.read_range(await self.root() + key, first, size)

    async def upload(self, key: str, path: Path) -> None:
        await self._bucket.upload(await self.root() + key, path)

    async def download(self, key: str, path: Path) -> str | None:
        return await self._bucket.download(await self.root() + key, path)

    async def list_objects(self, prefix: str) -> list[StoredObject]:
        root = await self.root()
        return [
            StoredObject(each.key.removeprefix(root), each.written_at)
            for each in await self._bucket.list_objects(root + prefix)
        ]

    async def delete(self, keys: Sequence[str]) -> None:
        root = await self.root()
        await self._bucket.delete([root + key for key in keys])


def installation_objects(
    settings: BucketSettings, pool: Pool, *, claims: bool = True
) -> InstallationObjects:
    """Return this installation's objects in S3; neither S3 nor Postgres is touched yet."""
    return InstallationObjects(
        S3ObjectStore(s3.client(settings), settings.s3_bucket),
        settings.s3_prefix,
        partial(installation_of, pool),
        claims,
    )


async def require_ownership(settings: BucketSettings, pool: Pool, state: Path | None) -> None:
    """Check at the start of a process that bucket and local states belong to this installation.

    `state`: the folder of local states; None for a process without. A bucket that cannot be reached
    is checked at its first use. Raises BucketOfAnotherInstallation or StateOfAnotherInstallation.
    """
    if state is not None:
        await asyncio.to_thread(own_state_folder, state, await installation_of(pool))
    try:
        await installation_objects(settings, pool).root()
    except BucketOfAnotherInstallation:
        raise
    except ObjectStoreUnavailable:
        return


def owner_body(installation: InstallationId) -> str:
    """Return the content of the object or file `owner`."""
    return json.dumps({"installation": installation})


def _owner_in(text: str) -> str | None:
    try:
        body = json.loads(text)
    except ValueError:
        return None
    return str(body["installation"]) if isinstance(body, dict) and "installation" in body else None
