"""The key file inside a backup, encrypted with a passphrase of the operator.

Without it, a backup holds users' secrets only as Fernet tokens, which no part of it decrypts. The
passphrase is read from a file, so that it is in no command line and no shell history. It is
stretched by scrypt, because people choose it.
"""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Final

from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from fennel_core.apps.errors import BackupUnusable

SALT_BYTES: Final = 16
SCRYPT_COST: Final = 2**16
"""64 MiB of memory and a fraction of a second for each guess."""
SHORTEST_PASSPHRASE: Final = 16


def read_passphrase(path: Path) -> bytes:
    """Return the first line of a file; BackupUnusable if it cannot be read or is too short."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as unreadable:
        raise BackupUnusable(
            f"the passphrase file {path} cannot be read: {unreadable.strerror}"
        ) from unreadable
    if not lines or len(lines[0].strip()) < SHORTEST_PASSPHRASE:
        raise BackupUnusable(
            f"the first line of {path} is the passphrase and needs {SHORTEST_PASSPHRASE} "
            "characters or more; make one with `openssl rand -base64 24`"
        )
    return lines[0].strip()


def seal_keys(keys: bytes, passphrase: bytes) -> bytes:
    """Return the content of a key file, encrypted."""
    salt = os.urandom(SALT_BYTES)
    return salt + Fernet(_stretched(passphrase, salt)).encrypt(keys)


def open_keys(sealed: bytes, passphrase: bytes) -> bytes:
    """Return what was sealed; BackupUnusable for another passphrase."""
    salt, token = sealed[:SALT_BYTES], sealed[SALT_BYTES:]
    try:
        return Fernet(_stretched(passphrase, salt)).decrypt(token)
    except InvalidToken as wrong:
        raise BackupUnusable(
            "the passphrase does not open the keys of this backup: name the passphrase file that "
            "was used to take it"
        ) from wrong


def _stretched(passphrase: bytes, salt: bytes) -> bytes:
    key = Scrypt(salt=salt, length=32, n=SCRYPT_COST, r=8, p=1).derive(passphrase)
    return base64.urlsafe_b64encode(key)
