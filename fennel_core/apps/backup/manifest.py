"""The manifest: what a backup consists of, as one JSON file that is written last.

A folder without a manifest is not a backup, so one that was interrupted cannot be restored by
mistake. Every file is listed with size and SHA-256, and the manifest has a digest file of its own.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from fennel_core.apps.errors import BackupUnusable
from fennel_core.connections.migrate import Applied, Migration
from fennel_core.vocab.ids import InstallationId, Offset, PartitionIndex, TopicName

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
DIGEST: Final = "manifest.sha256"
_VERSION: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class BackupFile:
    """One file of the backup."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class SavedTable:
    """One table. Its content is in the files `postgres/<name>/<n>`."""

    name: str
    columns: tuple[str, ...]
    rows: int


@dataclass(frozen=True, slots=True)
class SavedSequence:
    """One sequence with everything that its next value depends on."""

    name: str
    minimum: int
    maximum: int
    start: int
    last_value: int
    is_called: bool


@dataclass(frozen=True, slots=True)
class SavedLog:
    """One topic partition: the records from `start` to `end`, in `kafka/<topic>/<part>/<n>`.

    `first`: the first offset that Kafka had; what is between it and `start` is covered by history
    and snapshots.
    """

    topic: TopicName
    kind: str
    part: PartitionIndex
    first: Offset
    start: Offset
    end: Offset
    records: int


@dataclass(frozen=True, slots=True)
class BackupManifest:
    """One backup. `losses`: what was missing in the installation already, one sentence each."""

    format: int
    id: str
    version: str
    taken_at: str
    installation: InstallationId
    migrations: tuple[Applied, ...]
    tables: tuple[SavedTable, ...]
    sequences: tuple[SavedSequence, ...]
    logs: tuple[SavedLog, ...]
    objects: tuple[str, ...]
    has_keys: bool
    losses: tuple[str, ...]
    files: tuple[BackupFile, ...]

    def files_of(self, name: str) -> list[BackupFile]:
        """Return the pieces of one part, such as `postgres/commit`, in order."""
        return sorted(
            (f for f in self.files if f.name.rpartition("/")[0] == name), key=lambda f: f.name
        )


def encode_backup_manifest(manifest: BackupManifest) -> bytes:
    """Return the bytes of the manifest; the inverse of `decode_backup_manifest`."""
    return msgspec.json.format(msgspec.json.encode(manifest, order="deterministic"), indent=1)


def decode_backup_manifest(body: bytes, digest: bytes | None) -> BackupManifest:
    """Return the manifest in `body`; BackupUnusable if it is damaged or of a newer format."""
    found = hashlib.sha256(body).hexdigest()
    if digest is None or digest.decode(errors="replace").strip() != found:
        raise BackupUnusable(
            f"{MANIFEST} of the backup does not have the digest in {DIGEST}: it is damaged or "
            "incomplete; use another copy of the backup"
        )
    try:
        stored_format = msgspec.json.decode(body)["format"]
        if stored_format == FORMAT:
            return msgspec.json.decode(body, type=BackupManifest)
    except (msgspec.MsgspecError, KeyError, TypeError) as malformed:
        raise BackupUnusable(
            f"{MANIFEST} of the backup is malformed ({malformed}): use another copy of the backup"
        ) from malformed
    raise BackupUnusable(
        f"the backup has format {stored_format} and this version reads {FORMAT}: restore it with "
        "the version that took it"
    )


def require_readable(
    manifest: BackupManifest, version: str, migrations: Sequence[Migration]
) -> None:
    """Check that this version can restore the backup; raises BackupUnusable."""
    known = [(m.number, m.sha256) for m in migrations]
    taken = [(m.number, m.sha256) for m in manifest.migrations]
    if _release(manifest.version) > _release(version) or len(taken) > len(known):
        raise BackupUnusable(
            f"the backup was taken by version {manifest.version} and this is {version}: restore "
            "it with that version or a later one"
        )
    if taken != known[: len(taken)]:
        raise BackupUnusable(
            f"the backup was taken by another, unreleased build of version {manifest.version}: "
            "its database schema differs; restore it with that build"
        )


def _release(version: str) -> tuple[int, ...]:
    found = _VERSION.match(version)
    if found is None:
        raise BackupUnusable(f"`{version}` is not a version of fennel-core: the backup is damaged")
    return tuple(map(int, found.groups()))
