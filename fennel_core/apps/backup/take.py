"""Take a backup: the order of the steps, and what the backup does not have to contain.

Theory. No server writes while a backup is taken, so the stores agree. This is checked, not assumed:
sessions of servers in Postgres, open transactions in Kafka, and at the end that topics and objects
are the ones that were there at the beginning.

What Kafka holds is saved from the first record that a restored installation may read from Kafka:
records that history lacks, and those that a job partition needs to restart from its oldest kept
snapshot. All others are in history; the newest ones are saved all the same, for `inspect`. Logs
that nothing else covers (dead letters, rows on their way to another partition, retained topics) are
saved as a whole.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

from confluent_kafka.admin import AdminClient

from fennel_core import __version__
from fennel_core.apps import audit_facts
from fennel_core.apps.backup import database, objects
from fennel_core.apps.backup.kafka_records import REQUEST_S, Bounds, KafkaReader, read_bounds
from fennel_core.apps.backup.manifest import (
    DIGEST,
    FORMAT,
    MANIFEST,
    BackupManifest,
    SavedLog,
    encode_backup_manifest,
)
from fennel_core.apps.backup.pieces import BackupFiles, encode_record
from fennel_core.apps.backup.sealed_keys import seal_keys
from fennel_core.apps.backup.storage import CONNECTIONS, BackupStorage
from fennel_core.apps.errors import BackupFailed
from fennel_core.connections import postgres, s3
from fennel_core.connections.installation import key_prefix
from fennel_core.connections.kafka import client_config
from fennel_core.definition.kafka_retention import KafkaRetention, RetentionSurvey
from fennel_core.settings.model import Settings
from fennel_core.snapshots.log_retention import LogKind, deletion_bound
from fennel_core.vocab.ids import InstallationId, Offset, TopicName, TopicPartition

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

KEYS: Final = "keys.sealed"
SESSION: Final = "fennel-backup"
RECENT_OFFSETS: Final = 2_000
"""Kept of each partition although history has them: `inspect` shows a topic's newest records."""
PARTITIONS_AT_ONCE: Final = 64
"""Read together; each has a file open while it is read."""
_TOPICS: Final = "SELECT id, kind FROM asset WHERE kind <> 'job' AND state <> 'deleted'"
Report = Callable[[str], None]
"""Shows one line to the user."""


def first_needed(survey: RetentionSurvey, at: TopicPartition, first: Offset) -> Offset:
    """Return the first offset of a log that the backup must contain.

    `first`: the first offset that Kafka has.
    """
    log = survey.logs.get(at)
    if log is None or log.kind is LogKind.PASSAGE:
        return first
    history = None if survey.history is None else survey.history.get(at, Offset(0))
    if log.kind is LogKind.CONTENT and history is None:
        return first
    # As if every record were old enough to be deleted.
    needed = deletion_bound(replace(log, aged=log.end), survey.needs.get(at, ()), history)
    if log.kind is LogKind.CONTENT:
        return Offset(max(first, min(needed, log.end - RECENT_OFFSETS)))
    return needed


def take_backup(
    settings: Settings,
    storage: BackupStorage,
    passphrase: bytes | None,
    report: Report,
    *,
    with_losses: bool = False,
) -> BackupManifest:
    """Take a backup and return its manifest.

    `passphrase`: encrypts the key file; None leaves it out. `with_losses`: also if the installation
    lacks something already, which the manifest then lists. Raises BackupFailed, or the error of a
    store.
    """
    if not storage.is_empty():
        raise BackupFailed("the target is not empty: every backup needs a place of its own")
    losses = _losses(settings, with_losses=with_losses)
    with (
        tempfile.TemporaryDirectory(prefix="fennel-backup-") as folder,
        _reading(settings) as connection,
    ):
        database.require_no_writers(connection)
        files = BackupFiles(storage, Path(folder))
        stores = _Stores.of(settings, connection)
        before = stores.contents()
        survey = asyncio.run(_survey(settings))
        tables = database.save_tables(connection, files.add_stream)
        report(f"database: {sum(t.rows for t in tables)} rows of {len(tables)} tables")
        saved = objects.save_objects(
            stores.client, settings.s3_bucket, stores.root, storage, Path(folder)
        )
        report(f"objects: {len(saved)}, {sum(f.size_bytes for f in saved)} bytes")
        logs = _save_logs(settings, files, survey, before.bounds, stores.kinds)
        report(
            f"Kafka: {sum(log.records for log in logs)} records of {len(before.topics)} topics; "
            f"the {sum(log.start - log.first for log in logs)} offsets before them are in history"
        )
        if passphrase is not None:
            files.add_bytes(KEYS, seal_keys(_key_file(settings), passphrase))
        manifest = BackupManifest(
            FORMAT,
            uuid.uuid4().hex,
            __version__,
            datetime.now(UTC).isoformat(timespec="seconds"),
            stores.installation,
            database.applied_migrations(connection),
            tables,
            database.save_sequences(connection),
            logs,
            tuple(each.name.removeprefix(f"{objects.PART}/") for each in saved),
            passphrase is not None,
            losses,
            (*files.files, *saved),
        )
        database.require_no_writers(connection)
        if stores.contents() != before or before.keys != set(manifest.objects):
            raise BackupFailed(
                "topics or objects changed during the backup: a server still runs; stop all "
                "servers, empty the target and take the backup again"
            )
        body = encode_backup_manifest(manifest)
        files.add_bytes(DIGEST, sha256(body).hexdigest().encode() + b"\n")
        files.add_bytes(MANIFEST, body)
    return manifest


@dataclass(frozen=True, slots=True)
class _Contents:
    """What Kafka and S3 have at one moment."""

    topics: Mapping[TopicName, int]
    bounds: Bounds
    keys: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Stores:
    """Where the parts of an installation are. `kinds`: of its topics; `root`: of its objects."""

    settings: Settings
    installation: InstallationId
    kinds: Mapping[TopicName, str]
    client: S3Client
    root: str

    @classmethod
    def of(cls, settings: Settings, connection: database.Connection) -> _Stores:
        installation = database.installation_id(connection)
        rows = connection.execute(_TOPICS).fetchall()
        return cls(
            settings,
            installation,
            {TopicName(str(name)): str(kind) for name, kind in rows},
            s3.client(settings, connections=CONNECTIONS),
            key_prefix(settings.s3_prefix, installation),
        )

    def contents(self) -> _Contents:
        found = AdminClient(client_config(self.settings)).list_topics(timeout=REQUEST_S).topics
        topics = {name: len(found[name].partitions) for name in self.kinds if name in found}
        listed = s3.list_objects(self.client, self.settings.s3_bucket, self.root)
        keys = frozenset(each.key.removeprefix(self.root) for each in listed)
        return _Contents(topics, read_bounds(self.settings, topics), keys)


@contextmanager
def _reading(settings: Settings) -> Iterator[database.Connection]:
    """Open a transaction in which all of the database is as of one moment."""
    dsn = settings.postgres_dsn.get_secret_value()
    with postgres.connect(dsn, name=SESSION, statement_timeout_ms=0) as connection:
        connection.execute("SET idle_in_transaction_session_timeout = 0")
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            yield connection


def _losses(settings: Settings, *, with_losses: bool) -> tuple[str, ...]:
    """Return what the installation lacks; raises BackupFailed unless `with_losses`."""
    found = asyncio.run(audit_facts.audit(settings))
    lost = tuple(f"{f.problem}: {f.subject}: {f.text}" for f in found if not f.problem.is_orphan)
    if lost and not with_losses:
        raise BackupFailed(
            f"{len(lost)} things are missing in this installation, so the backup would lack them, "
            f"too; the first is {lost[0]}. `fennel-core audit` lists all; back up what is there "
            "with --with-losses"
        )
    return lost


async def _survey(settings: Settings) -> RetentionSurvey:
    dsn = settings.postgres_dsn.get_secret_value()
    async with postgres.pool(dsn, name=SESSION, size=1) as pool:
        return await KafkaRetention(settings, pool).survey(time.time_ns() // 1_000_000)


def _save_logs(
    settings: Settings,
    files: BackupFiles,
    survey: RetentionSurvey,
    bounds: Bounds,
    kinds: Mapping[TopicName, str],
) -> tuple[SavedLog, ...]:
    ranges = {
        at: (first_needed(survey, at, oldest), end) for at, (oldest, end) in sorted(bounds.items())
    }
    counts: Counter[TopicPartition] = Counter()
    with KafkaReader(settings) as reader:

        def chunks(group: Bounds) -> Iterator[tuple[str, bytes]]:
            for at, record in reader.read(group):
                counts[at] += 1
                yield f"kafka/{at[0]}/{at[1]}", encode_record(record)

        listed = list(ranges.items())
        for first in range(0, len(listed), PARTITIONS_AT_ONCE):
            files.add_streams(chunks(dict(listed[first : first + PARTITIONS_AT_ONCE])))
    return tuple(
        SavedLog(at[0], kinds[at[0]], at[1], bounds[at][0], start, end, counts[at])
        for at, (start, end) in ranges.items()
    )


def _key_file(settings: Settings) -> bytes:
    if settings.secrets_key_file is None:
        raise BackupFailed(
            "FENNEL_SECRETS_KEY_FILE is not set, so there is no key to back up: set it, or leave "
            "the keys out with --without-keys"
        )
    return settings.secrets_key_file.read_bytes()
