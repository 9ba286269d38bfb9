"""Restore a backup into an empty installation: what is checked, in which order it is written.

Theory. Everything is checked before anything is written: that this version can read the backup, the
digest of every file, the passphrase, and that the target is empty. Then objects and topics are
written, which mean nothing without the database, then the keys, and the database last, in one
transaction. If anything fails before its commit, what was written is deleted again, so the target
is empty as before. If the response to the commit is lost, the database is asked for the outcome,
and nothing is deleted unless it was rolled back.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psycopg
from botocore.exceptions import BotoCoreError, ClientError
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from fennel_core import __version__
from fennel_core.apps.backup import database, objects
from fennel_core.apps.backup.kafka_records import REQUEST_S, KafkaWriter, read_bounds
from fennel_core.apps.backup.manifest import (
    DIGEST,
    MANIFEST,
    BackupManifest,
    decode_backup_manifest,
    require_readable,
)
from fennel_core.apps.backup.offset_plan import plan_writes
from fennel_core.apps.backup.pieces import decode_records, read_stream
from fennel_core.apps.backup.sealed_keys import open_keys
from fennel_core.apps.backup.storage import CONNECTIONS, BackupStorage, digest_of, read_file
from fennel_core.apps.backup.take import KEYS, Report
from fennel_core.apps.errors import BackupUnusable, RestoreFailed, RestoreUnfinished
from fennel_core.blueprints.logical import AssetKind
from fennel_core.connections import migrate, offsets, postgres, s3
from fennel_core.connections.errors import SystemUnavailable
from fennel_core.connections.installation import OWNER, key_prefix, owner_body
from fennel_core.connections.kafka import client_config
from fennel_core.ledger.kafka import KafkaTopicAdmin
from fennel_core.ledger.topics import TopicSpec
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import InstallationId, TopicName

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

AT_ONCE: Final = 4
"""Topic partitions that are written at a time."""
SESSION: Final = "fennel-backup"
ASK_AGAIN_S: Final = 0.2


def read_backup(storage: BackupStorage) -> BackupManifest:
    """Return the manifest of a backup that this version can restore; raises BackupUnusable."""
    body = read_file(storage, MANIFEST)
    if body is None:
        raise BackupUnusable(
            f"there is no {MANIFEST}: this is not a backup, or one that was interrupted"
        )
    manifest = decode_backup_manifest(body, read_file(storage, DIGEST))
    require_readable(manifest, __version__, migrate.read())
    return manifest


def verify_files(storage: BackupStorage, manifest: BackupManifest) -> None:
    """Compare every file with its digest; raises BackupUnusable, which names the damaged ones."""

    def is_damaged(name: str, size: int, sha256: str) -> bool:
        return digest_of(storage, name) != (size, sha256)

    with ThreadPoolExecutor(objects.AT_ONCE) as threads:
        verdicts = threads.map(lambda f: is_damaged(f.name, f.size_bytes, f.sha256), manifest.files)
        damaged = [file.name for file, bad in zip(manifest.files, verdicts, strict=True) if bad]
    if damaged:
        raise BackupUnusable(
            f"{len(damaged)} files of the backup are damaged or missing "
            f"({', '.join(damaged[:3])}): nothing was restored; use another copy of the backup"
        )


@dataclass(frozen=True, slots=True)
class RestoreTarget:
    """The empty installation. `installation`: the id that it has before the restore."""

    settings: Settings
    connection: database.Connection
    client: S3Client
    installation: InstallationId | None


def restore_backup(
    settings: Settings, storage: BackupStorage, passphrase: bytes | None, report: Report
) -> BackupManifest:
    """Restore a backup; raises BackupUnusable, RestoreFailed, or the error of a store.

    `passphrase`: opens the keys; None keeps the key file of the target.
    """
    manifest = read_backup(storage)
    verify_files(storage, manifest)
    report(f"verified {len(manifest.files)} files of the backup of {manifest.taken_at}")
    keys = _opened_keys(settings, storage, manifest, passphrase)
    dsn = settings.postgres_dsn.get_secret_value()
    with (
        tempfile.TemporaryDirectory(prefix="fennel-restore-") as folder,
        postgres.connect(dsn, name=SESSION, statement_timeout_ms=0) as connection,
    ):
        connection.execute("SET idle_in_transaction_session_timeout = 0")
        target = _empty_target(settings, connection, manifest)
        root = key_prefix(settings.s3_prefix, manifest.installation)
        with _undone_if_it_fails(target, manifest, root):
            objects.restore_objects(
                target.client, settings.s3_bucket, root, storage, manifest.objects, Path(folder)
            )
            report(f"objects: {len(manifest.objects)}")
            _restore_topics(settings, storage, manifest)
            report(f"Kafka: {sum(log.records for log in manifest.logs)} records")
            with _key_file_replaced(settings, keys), _committed(target, manifest, root, report):
                database.load(
                    connection,
                    manifest,
                    lambda table: read_stream(
                        storage, manifest.files_of(f"{database.PART}/{table.name}")
                    ),
                )
        report(f"database: {sum(table.rows for table in manifest.tables)} rows")
    return manifest


def _opened_keys(
    settings: Settings, storage: BackupStorage, manifest: BackupManifest, passphrase: bytes | None
) -> bytes | None:
    if passphrase is None:
        return None
    if not manifest.has_keys:
        raise BackupUnusable(
            "the backup was taken without keys: restore with --without-keys, and put the key file "
            "in place yourself"
        )
    if settings.secrets_key_file is None:
        raise RestoreFailed("FENNEL_SECRETS_KEY_FILE is not set: set it to where the keys belong")
    sealed = read_file(storage, KEYS)
    assert sealed is not None, "every file was verified"
    return open_keys(sealed, passphrase)


def _empty_target(
    settings: Settings, connection: database.Connection, manifest: BackupManifest
) -> RestoreTarget:
    """Check that the target is empty; raises RestoreFailed."""
    database.require_no_writers(connection)
    database.require_empty(connection)
    has_schema = connection.execute("SELECT to_regclass('public.installation')").fetchone()
    own = (
        database.installation_id(connection)
        if has_schema is not None and has_schema[0] is not None
        else None
    )
    client = s3.client(settings, connections=CONNECTIONS)
    bucket, prefix = settings.s3_bucket, settings.s3_prefix
    s3.ensure_bucket(client, bucket)
    for installation in filter(None, (own, manifest.installation)):
        if s3.list_objects(client, bucket, key_prefix(prefix, installation)):
            raise RestoreFailed(
                f"bucket `{bucket}` has objects of installation {installation} below "
                f"`{prefix}`: set FENNEL_S3_BUCKET or FENNEL_S3_PREFIX to an empty place"
            )
    owner = s3.get(client, bucket, prefix + OWNER)
    if owner is not None and owner not in (
        owner_body(each).encode() for each in (own, manifest.installation) if each is not None
    ):
        raise RestoreFailed(
            f"bucket `{bucket}` belongs to another installation (object `{prefix}{OWNER}`): set "
            "FENNEL_S3_BUCKET or FENNEL_S3_PREFIX to an empty place"
        )
    states = settings.state_dir
    if states.exists() and any(each.is_dir() and any(each.iterdir()) for each in states.iterdir()):
        raise RestoreFailed(f"{states} has local states: `fennel-core clean` deletes them")
    found = AdminClient(client_config(settings)).list_topics(timeout=REQUEST_S).topics
    if there := sorted({log.topic for log in manifest.logs} & found.keys()):
        raise RestoreFailed(
            f"{len(there)} topics of the backup exist in Kafka ({there[0]}): restore into a new "
            "broker, or delete them"
        )
    return RestoreTarget(settings, connection, client, own)


@contextmanager
def _committed(
    target: RestoreTarget, manifest: BackupManifest, root: str, report: Report
) -> Iterator[None]:
    """Run the block in a transaction, and learn the outcome if the response to COMMIT is lost.

    Raises RestoreUnfinished if that is impossible, and the error if nothing was committed.
    """
    transaction_id = None
    try:
        with target.connection.transaction():
            row = target.connection.execute("SELECT pg_current_xact_id()::text").fetchone()
            assert row is not None, "a function returns one row"
            yield
            transaction_id = str(row[0])
    except BaseException as error:
        if transaction_id is None:
            raise  # before COMMIT
        target.connection.close()
        outcome = _outcome(target.settings, transaction_id)
        if outcome == "aborted":
            raise
        if outcome != "committed":
            settings = target.settings
            raise RestoreUnfinished(
                f"the response to the COMMIT of the restore was lost ({error}), and Postgres does "
                f"not say whether it happened. All is there: objects below `{root}` of bucket "
                f"`{settings.s3_bucket}`, {len({log.topic for log in manifest.logs})} topics and "
                "the key file of the backup. If the id in the table `installation` is "
                f"{manifest.installation}, the restore stands: remove the object "
                f"`{settings.s3_prefix}{OWNER}` and the file {settings.state_dir / OWNER}, and "
                "start the servers. If not, remove what is there (`fennel-core clean` removes a "
                "local installation) and start again"
            ) from error
        report(f"the response to the COMMIT was lost ({error}), but the restore stands")


def _outcome(settings: Settings, transaction_id: str) -> str | None:
    """Return `committed` or `aborted`, or None if the outcome cannot be learnt."""
    dsn = settings.postgres_dsn.get_secret_value()
    deadline_s = time.monotonic() + postgres.RESOLVE_SECONDS
    while True:
        # Until Postgres notices that the session has ended, the transaction is in progress.
        try:
            with postgres.connect(dsn, name=SESSION) as connection:
                row = connection.execute(
                    "SELECT pg_xact_status(%s::xid8)", (transaction_id,)
                ).fetchone()
            if row is not None and row[0] in ("committed", "aborted"):
                return str(row[0])
        except psycopg.Error:
            pass  # not there yet
        if time.monotonic() > deadline_s:
            return None
        time.sleep(ASK_AGAIN_S)


def _undo(target: RestoreTarget, manifest: BackupManifest, root: str) -> list[str]:
    """Delete objects and topics; return what could not be deleted, with the reason."""
    # Both were empty before, and nothing else writes there.
    bucket, left = target.settings.s3_bucket, []
    try:
        objects.delete_objects(target.client, bucket, root)
    except (BotoCoreError, ClientError) as error:
        left.append(f"objects below `{root}` of bucket `{bucket}` ({error})")
    topics = sorted({log.topic for log in manifest.logs})
    try:
        refused = KafkaTopicAdmin(target.settings).delete_now(topics)
        left += [f"topic `{topic}` ({reason})" for topic, reason in sorted(refused.items())]
    except (KafkaException, SystemUnavailable) as error:
        left.append(f"topics {', '.join(topics)} ({error})")
    return left


@contextmanager
def _undone_if_it_fails(
    target: RestoreTarget, manifest: BackupManifest, root: str
) -> Iterator[None]:
    """Delete what the block wrote if it fails, and the marks of the empty installation if not."""
    settings = target.settings
    try:
        yield
    except RestoreUnfinished:
        raise
    except BaseException as error:
        if left := _undo(target, manifest, root):
            raise RestoreUnfinished(
                f"the restore failed ({error}), and these could not be deleted again: "
                f"{'; '.join(left)}; delete them (`fennel-core clean` deletes a local "
                "installation) and start again"
            ) from error
        raise
    # Servers of the empty installation may have marked bucket and folder as theirs.
    s3.delete(target.client, settings.s3_bucket, settings.s3_prefix + OWNER)
    (settings.state_dir / OWNER).unlink(missing_ok=True)


def _restore_topics(settings: Settings, storage: BackupStorage, manifest: BackupManifest) -> None:
    counts: dict[TopicName, int] = {}
    kinds: dict[TopicName, AssetKind] = {}
    for log in manifest.logs:
        counts[log.topic] = counts.get(log.topic, 0) + 1
        kinds[log.topic] = AssetKind(log.kind)
    admin = KafkaTopicAdmin(settings)
    refused = admin.create_now([TopicSpec(t, kinds[t], n) for t, n in counts.items()])
    if refused:
        topic, reason = min(refused.items())
        raise RestoreFailed(f"Kafka refuses to create `{topic}`: {reason}")

    def write(number: int) -> None:
        with KafkaWriter(settings, f"{manifest.id}.{number}") as writer:
            for log in manifest.logs[number::AT_ONCE]:
                pieces = manifest.files_of(f"kafka/{log.topic}/{log.part}")
                records = decode_records(read_stream(storage, pieces))
                writer.write((log.topic, log.part), plan_writes(log.start, log.end, records))

    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(write, range(AT_ONCE)))
    client = AdminClient(client_config(settings))
    starts = {(log.topic, log.part): log.start for log in manifest.logs if log.start > 0}
    offsets.delete_before(client, starts, REQUEST_S)
    expected = {(log.topic, log.part): (log.start, log.end) for log in manifest.logs}
    if (found := read_bounds(settings, counts)) != expected:
        at = min(at for at in expected if found.get(at) != expected[at])
        raise RestoreFailed(
            f"`{at[0]}`[{at[1]}] has the offsets {found.get(at)} and not {expected[at]}: report "
            "this as a defect"
        )


@contextmanager
def _key_file_replaced(settings: Settings, keys: bytes | None) -> Iterator[None]:
    """Replace the key file; the former one is put back if the block is undone."""
    path = settings.secrets_key_file
    if keys is None or path is None:
        yield
        return
    before = path.read_bytes() if path.exists() else None
    _write_private(path, keys)
    try:
        yield
    except RestoreUnfinished:
        raise
    except BaseException:
        if before is None:
            path.unlink()
        else:
            _write_private(path, before)
        raise


def _write_private(path: Path, content: bytes) -> None:
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    new.replace(path)


def unreplaced(manifest: BackupManifest) -> list[str]:
    """Return what the restored installation does not have, one sentence each, with numbers."""
    covered = [log for log in manifest.logs if log.start > log.first]
    offsets_covered = sum(log.start - log.first for log in covered)
    lines = [
        f"Everything that was accepted after {manifest.taken_at} is missing.",
        f"In Kafka, {offsets_covered} offsets of {len(covered)} topic partitions are missing; "
        "history and snapshots on S3 cover them.",
        "Airflow's record of earlier runs is missing.",
    ]
    if not manifest.has_keys:
        lines.append("The key file is not in the backup; put it in place before servers start.")
    return lines + [f"Missing before the backup: {loss}" for loss in manifest.losses]
