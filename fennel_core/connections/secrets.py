"""Users' secrets, encrypted before they reach the database.

Postgres holds only Fernet tokens (AES-128-CBC and HMAC-SHA256); the key is in a file that only its
owner may read, so a stolen database or backup reveals nothing. The workspace, the name and the
value are encrypted together, so a row that is copied to another workspace or name does not decrypt
there. The key file may hold several keys, one per line: the first encrypts, all of them decrypt. To
change a key, put a new line first, start the servers again, run `fennel-core reseal`, and remove
the old line. Values never appear in logs or errors.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

import msgspec
from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from fennel_core.connections.errors import ConnectionsError
from fennel_core.connections.postgres import AsyncConnection, Pool, connection_of, in_transaction
from fennel_core.vocab.ids import WorkspaceId

SECRET_BYTES: Final = 64 * 1024
"""Longest value, bytes: keys and certificates fit, data sets do not."""

CREDENTIAL: Final = "connector credential"
"""The name under which connectors' secrets are sealed; users' secrets cannot have a space there."""


class SecretUnreadable(ConnectionsError):
    """A key file or an encrypted secret cannot be used.

    The text names it and the remedy, never the value. A retry does not help.
    """

    code: ClassVar[str] = "secret-unreadable"


@dataclass(frozen=True, slots=True)
class Sealer:
    """Encrypts and decrypts with the keys of one file; see `Sealer.from_file`."""

    _keys: MultiFernet
    _fingerprint_key: bytes

    @classmethod
    def from_file(cls, path: Path) -> Sealer:
        """Read the keys at `path`, one urlsafe base64 key of 32 bytes per line.

        Raises `SecretUnreadable` if others may read the file or a key is malformed.
        """
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
            lines = path.read_text(encoding="ascii").split()
        except (OSError, UnicodeDecodeError) as unreadable:
            raise SecretUnreadable(
                f"the key file {path} cannot be read: {unreadable}"
            ) from unreadable
        if mode & 0o077:
            raise SecretUnreadable(
                f"the key file {path} has mode {mode:04o}: only its owner may read it (chmod 600)"
            )
        if not lines:
            raise SecretUnreadable(
                f"the key file {path} is empty; restore it, without it no stored secret can "
                "be decrypted"
            )
        try:
            keys = MultiFernet([Fernet(line) for line in lines])
        except ValueError as malformed:
            raise SecretUnreadable(
                f"the key file {path} has a line that is not 32 bytes in urlsafe base64"
            ) from malformed
        # Not a key of the encryption itself, so that a fingerprint reveals nothing about it.
        return cls(keys, hashlib.sha256(b"fingerprint" + lines[0].encode()).digest())

    def seal(self, workspace: WorkspaceId, name: str, value: str) -> bytes:
        return self._keys.encrypt(msgspec.msgpack.encode((workspace, name, value)))

    def fingerprint(self, workspace: WorkspaceId, value: str) -> str:
        """Return a text that is equal for equal values of a workspace, and useless without the key.

        It changes when the first key of the file changes.
        """
        message = msgspec.msgpack.encode((workspace, value))
        return hmac.new(self._fingerprint_key, message, hashlib.sha256).hexdigest()[:32]

    def open(self, workspace: WorkspaceId, name: str, sealed: bytes) -> str:
        """Decrypt the value; `SecretUnreadable` for another key, workspace or name."""
        try:
            owner, title, value = msgspec.msgpack.decode(
                self._keys.decrypt(sealed), type=tuple[str, str, str]
            )
        except (InvalidToken, msgspec.DecodeError) as closed:
            raise SecretUnreadable(
                f"secret `{name}` cannot be decrypted: it was encrypted with another key "
                "(FENNEL_SECRETS_KEY_FILE) or is corrupt"
            ) from closed
        if (owner, title) != (workspace, name):
            raise SecretUnreadable(
                f"secret `{name}` was encrypted for another workspace or name, so its row "
                "was copied; set it again"
            )
        return value


def make_key_file(path: Path) -> None:
    """Write a new key to `path` with mode 0600.

    FileExistsError if the file exists: overwriting a key loses every secret encrypted with it.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(Fernet.generate_key() + b"\n")


async def put(pool: Pool, sealer: Sealer, workspace: WorkspaceId, name: str, value: str) -> None:
    """Set or replace secret `name`; ValueError for an empty name or a value that is too long."""
    if not name or len(value.encode()) > SECRET_BYTES:
        raise ValueError(
            f"secret `{name}`: a name is not empty and a value has at most {SECRET_BYTES} bytes"
        )
    sealed = sealer.seal(workspace, name, value)
    async with pool.connection() as connection:
        await connection.execute(
            "INSERT INTO secret (workspace, name, sealed) VALUES (%s, %s, %s)"
            " ON CONFLICT (workspace, name) DO UPDATE SET sealed = excluded.sealed, "
            "updated_at = now()",
            (workspace, name, sealed),
        )


async def get(pool: Pool, sealer: Sealer, workspace: WorkspaceId, name: str) -> str | None:
    """Return the value of secret `name`, None if there is none; raises SystemUnavailable."""
    async with connection_of(pool) as connection:
        cursor = await connection.execute(
            "SELECT sealed FROM secret WHERE workspace = %s AND name = %s", (workspace, name)
        )
        row = await cursor.fetchone()
    if row is None:
        return None
    assert isinstance(row[0], bytes)
    return sealer.open(workspace, name, row[0])


async def names(pool: Pool, workspace: WorkspaceId) -> tuple[str, ...]:
    """Return the names of a workspace's secrets, sorted."""
    async with pool.connection() as connection:
        cursor = await connection.execute(
            "SELECT name FROM secret WHERE workspace = %s ORDER BY name", (workspace,)
        )
        return tuple(str(row[0]) for row in await cursor.fetchall())


async def delete(pool: Pool, workspace: WorkspaceId, name: str) -> bool:
    """Delete secret `name`; False if there was none."""
    async with pool.connection() as connection:
        cursor = await connection.execute(
            "DELETE FROM secret WHERE workspace = %s AND name = %s", (workspace, name)
        )
    return cursor.rowcount == 1


async def reseal(pool: Pool, sealer: Sealer) -> int:
    """Encrypt every secret of every workspace again, with the first key; return their number.

    It is one transaction; the other keys may be removed afterwards.
    """

    async def work(connection: AsyncConnection) -> int:
        rows = await (
            await connection.execute("SELECT workspace, name, sealed FROM secret FOR UPDATE")
        ).fetchall()
        for workspace, name, sealed in rows:
            assert isinstance(sealed, bytes)
            owner, title = WorkspaceId(str(workspace)), str(name)
            again = sealer.seal(owner, title, sealer.open(owner, title, sealed))
            await connection.execute(
                "UPDATE secret SET sealed = %s WHERE workspace = %s AND name = %s",
                (again, owner, title),
            )
        return len(rows)

    return await in_transaction(pool, work)


def opened_credential(sealer: Sealer | None, workspace: WorkspaceId, token: str) -> str:
    """Return the text of a sealed credential of a connector. Raises `SecretUnreadable`."""
    if sealer is None:
        raise SecretUnreadable(
            "a connector has a password and this server has no key to decrypt it; set "
            "FENNEL_SECRETS_KEY_FILE"
        )
    return sealer.open(workspace, CREDENTIAL, token.encode("ascii"))
