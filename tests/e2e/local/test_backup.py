"""Backup and restore between real stores: Postgres, Kafka and S3 of two installations.

The first one has the data of a released version. No server runs; `tests/upgrade` queries a restored
platform.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from botocore.exceptions import EndpointConnectionError
from confluent_kafka.admin import AdminClient
from pydantic import SecretStr

from fennel_core.apps.backup import database, objects
from fennel_core.apps.backup import manifest as manifests
from fennel_core.apps.backup.kafka_records import KafkaReader, KafkaWriter, read_bounds
from fennel_core.apps.backup.manifest import DIGEST, MANIFEST, BackupManifest
from fennel_core.apps.backup.offset_plan import SavedRecord, plan_writes
from fennel_core.apps.backup.restore import read_backup, restore_backup, verify_files
from fennel_core.apps.backup.storage import FolderStorage, storage_at
from fennel_core.apps.backup.take import take_backup
from fennel_core.apps.errors import BackupFailed, BackupUnusable, RestoreFailed, RestoreUnfinished
from fennel_core.blueprints.logical import AssetKind
from fennel_core.connections import postgres, s3
from fennel_core.connections.kafka import client_config
from fennel_core.ledger.kafka import KafkaTopicAdmin
from fennel_core.ledger.topics import TopicSpec
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import Offset, PartitionIndex, TopicName
from tests.support.own_platform import OwnPlatform
from tests.upgrade import archive

pytestmark = pytest.mark.timeout(600)
PASSPHRASE = b"correct horse battery staple"
OWN_TABLES = frozenset({"postgres/audit_event", "postgres/audit_export"})
"""Tables that a restore changes."""


def silent(_: str) -> None: ...


def settings_of(platform: OwnPlatform) -> Settings:
    # In the environment may be those of the platform that other tests of the process use.
    others = [name for name in os.environ if name.startswith("FENNEL_")]
    with pytest.MonkeyPatch.context() as environment:
        for name in others:
            environment.delenv(name)
        return Settings(_env_file=platform.data / "env")  # type: ignore[call-arg]  # pydantic's


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnPlatform]:
    """Yield the stores of an installation with data, at this version's schema."""
    folder = tmp_path_factory.mktemp("released")
    archive.unpack(archive.fixtures()[-1], folder)
    platform = OwnPlatform(tmp_path_factory.mktemp("source"), **archive.UNLIMITED)
    try:
        archive.restore(folder, platform)
        platform.run("down")
        platform.run("up", *archive.INFRA)  # migrates the database
        yield platform
    finally:
        platform.run("down")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnPlatform]:
    """Yield the stores of a new installation."""
    platform = OwnPlatform(tmp_path_factory.mktemp("target"), **archive.UNLIMITED)
    try:
        platform.run("up", *archive.INFRA)
        yield platform
    finally:
        platform.run("down")


@pytest.fixture(scope="module")
def backup(source: OwnPlatform, tmp_path_factory: pytest.TempPathFactory) -> FolderStorage:
    """Return a backup of the source, taken by the command."""
    folder = tmp_path_factory.mktemp("backups")
    (folder / "passphrase").write_bytes(PASSPHRASE + b"\n")
    words = ("--passphrase-file", str(folder / "passphrase"))
    assert "backed up" in source.run("backup", str(folder / "monday"), *words)
    return FolderStorage(folder / "monday")


def rewrite_manifest(folder: Path, **changes: object) -> None:
    """Change fields of a manifest, so that its digest agrees."""
    found = manifests.decode_backup_manifest(
        (folder / MANIFEST).read_bytes(), (folder / DIGEST).read_bytes()
    )
    fields = {name: getattr(found, name) for name in BackupManifest.__dataclass_fields__}
    body = manifests.encode_backup_manifest(BackupManifest(**(fields | changes)))
    (folder / MANIFEST).write_bytes(body)
    (folder / DIGEST).write_text(hashlib.sha256(body).hexdigest())


def copy_of(backup: FolderStorage, folder: Path) -> FolderStorage:
    """Return a copy of a backup that a test may change."""
    for path in backup.folder.rglob("*"):
        if path.is_file():
            copy = folder / path.relative_to(backup.folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    return FolderStorage(folder)


def test_it_holds_what_only_kafka_has_and_every_object(backup: FolderStorage) -> None:
    made = read_backup(backup)
    assert sum(log.records for log in made.logs) > 100
    assert any(key.startswith("history/") for key in made.objects)
    assert any(key.startswith("snapshots/") for key in made.objects)


def test_no_file_contains_the_key_and_only_the_owner_may_read_them(
    backup: FolderStorage, source: OwnPlatform
) -> None:
    key = (source.data / "secrets" / "users_secrets_key").read_bytes().strip()
    files = [path for path in backup.folder.rglob("*") if path.is_file()]
    assert len(key) > 40
    assert [path for path in files if key in path.read_bytes()] == []
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}


def test_a_damaged_and_a_missing_file_are_named(backup: FolderStorage, tmp_path: Path) -> None:
    copy = copy_of(backup, tmp_path)
    made = read_backup(copy)
    damaged, missing = made.files[0].name, made.files[1].name
    content = bytearray((tmp_path / damaged).read_bytes())
    content[-1] ^= 1
    (tmp_path / damaged).write_bytes(content)
    (tmp_path / missing).unlink()
    with pytest.raises(BackupUnusable, match="2 files of the backup are damaged") as error:
        verify_files(copy, made)
    assert damaged in str(error.value)
    assert missing in str(error.value)


def test_a_changed_manifest_is_refused(backup: FolderStorage, tmp_path: Path) -> None:
    copy = copy_of(backup, tmp_path)
    body = (tmp_path / MANIFEST).read_bytes()
    (tmp_path / MANIFEST).write_bytes(body.replace(b'"losses"', b'"Losses"'))
    with pytest.raises(BackupUnusable, match="does not have the digest"):
        read_backup(copy)
    (tmp_path / MANIFEST).unlink()
    with pytest.raises(BackupUnusable, match="interrupted"):
        read_backup(copy)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [({"version": "99.0.0"}, "99.0.0"), ({"format": 2}, "format 2")],
    ids=["version", "format"],
)
def test_a_backup_of_a_newer_version_is_refused(
    backup: FolderStorage, tmp_path: Path, changes: dict[str, object], problem: str
) -> None:
    copy = copy_of(backup, tmp_path)
    rewrite_manifest(tmp_path, **changes)
    with pytest.raises(BackupUnusable, match=problem):
        read_backup(copy)


def test_an_installation_with_data_is_refused(backup: FolderStorage, source: OwnPlatform) -> None:
    with pytest.raises(RestoreFailed, match="the database is not empty"):
        restore_backup(settings_of(source), backup, PASSPHRASE, silent)


@pytest.mark.long
def test_another_passphrase_is_refused_before_anything_is_written(
    backup: FolderStorage, target: OwnPlatform
) -> None:
    with pytest.raises(BackupUnusable, match="does not open the keys"):
        restore_backup(settings_of(target), backup, b"another passphrase", silent)
    assert_empty(target)


def test_no_backup_is_taken_while_a_server_is_connected(
    source: OwnPlatform, tmp_path: Path
) -> None:
    settings = settings_of(source)
    with (
        postgres.connect(settings.postgres_dsn.get_secret_value(), name="fennel-ingest"),
        pytest.raises(BackupFailed, match="fennel-ingest"),
    ):
        take_backup(settings, FolderStorage(tmp_path / "new"), PASSPHRASE, silent)


@pytest.mark.parametrize("name", ["fennel-ingest", "fennel-query"])
def test_a_server_that_connects_during_a_backup_is_noticed(source: OwnPlatform, name: str) -> None:
    dsn = settings_of(source).postgres_dsn.get_secret_value()
    with postgres.connect(dsn, name="test") as connection, connection.transaction():
        database.require_no_writers(connection)
        with postgres.connect(dsn, name=name), pytest.raises(BackupFailed, match=name):
            database.require_no_writers(connection)


def test_a_place_with_files_is_refused(backup: FolderStorage, source: OwnPlatform) -> None:
    with pytest.raises(BackupFailed, match="not empty"):
        take_backup(settings_of(source), backup, PASSPHRASE, silent)


@pytest.mark.long
def test_a_failed_restore_leaves_the_target_empty(
    backup: FolderStorage, target: OwnPlatform, tmp_path: Path
) -> None:
    copy = copy_of(backup, tmp_path)
    made = read_backup(copy)
    lying = tuple(
        manifests.SavedTable(t.name, t.columns, t.rows + (t.name == "asset")) for t in made.tables
    )
    rewrite_manifest(tmp_path, tables=lying)
    key_file = target.data / "secrets" / "users_secrets_key"
    key = key_file.read_bytes()
    with pytest.raises(RestoreFailed, match="table `asset`"):
        restore_backup(settings_of(target), copy, PASSPHRASE, silent)
    assert key_file.read_bytes() == key
    assert_empty(target)


@pytest.fixture
def small(
    backup: FolderStorage, target: OwnPlatform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FolderStorage]:
    """Return a backup of one log and one object, whose restore does not change the database."""
    copy = copy_of(backup, tmp_path)
    made = read_backup(copy)
    rewrite_manifest(tmp_path, logs=made.logs[:1], objects=made.objects[:1])
    monkeypatch.setattr(database, "load", lambda *_: None)
    settings, key = settings_of(target), key_of(target)
    yield copy
    monkeypatch.undo()
    (target.data / "secrets" / "users_secrets_key").write_bytes(key)
    objects.delete_objects(s3.client(settings), settings.s3_bucket, "")
    KafkaTopicAdmin(settings).delete_now([made.logs[0].topic])


def key_of(platform: OwnPlatform) -> bytes:
    return (platform.data / "secrets" / "users_secrets_key").read_bytes()


def lose_commit(monkeypatch: pytest.MonkeyPatch, *, happens: bool, reachable: bool = True) -> None:
    """Lose the response to the next COMMIT. `happens`: whether Postgres receives it."""
    commit = psycopg.Transaction.__exit__

    def unreachable(*_: object, **__: object) -> None:
        raise psycopg.OperationalError("connection refused")

    def lose(transaction: psycopg.Transaction, *_: object) -> None:
        if happens:
            commit(transaction, None, None, None)
        transaction.connection.close()
        if not reachable:
            monkeypatch.setattr(postgres, "connect", unreachable)
        raise psycopg.OperationalError("the response was lost")

    monkeypatch.setattr(psycopg.Transaction, "__exit__", lose)


def test_a_restore_whose_commit_was_not_acknowledged_stands(
    small: FolderStorage,
    source: OwnPlatform,
    target: OwnPlatform,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: list[str] = []
    lose_commit(monkeypatch, happens=True)
    restore_backup(settings_of(target), small, PASSPHRASE, shown.append)
    assert any("the restore stands" in line for line in shown)
    assert_written(small, target)
    assert key_of(target) == key_of(source)


def test_a_restore_whose_commit_was_lost_is_undone(
    small: FolderStorage, target: OwnPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = key_of(target)
    lose_commit(monkeypatch, happens=False)
    with pytest.raises(psycopg.OperationalError, match="the response was lost"):
        restore_backup(settings_of(target), small, PASSPHRASE, silent)
    assert key_of(target) == key
    assert_empty(target)


def test_nothing_is_undone_while_the_outcome_is_unknown(
    small: FolderStorage,
    source: OwnPlatform,
    target: OwnPlatform,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lose_commit(monkeypatch, happens=True, reachable=False)
    monkeypatch.setattr(postgres, "RESOLVE_SECONDS", 0.0)
    with pytest.raises(RestoreUnfinished, match="start again") as error:
        restore_backup(settings_of(target), small, PASSPHRASE, silent)
    assert read_backup(small).installation in str(error.value)
    assert_written(small, target)
    assert key_of(target) == key_of(source)


def test_topics_are_deleted_even_if_objects_cannot_be(
    small: FolderStorage, target: OwnPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RestoreFailed("the first problem")

    def refuse(*_: object) -> None:
        raise EndpointConnectionError(endpoint_url="http://nowhere")

    monkeypatch.setattr(database, "load", fail)
    monkeypatch.setattr(objects, "delete_objects", refuse)
    with pytest.raises(RestoreUnfinished, match=r"the first problem.*http://nowhere") as error:
        restore_backup(settings_of(target), small, PASSPHRASE, silent)
    assert isinstance(error.value.__cause__, RestoreFailed)
    assert topics_of(target) == []


def topics_of(platform: OwnPlatform) -> list[str]:
    admin = AdminClient(client_config(settings_of(platform)))
    return [name for name in admin.list_topics(timeout=10).topics if not name.startswith("__")]


def assert_written(backup: FolderStorage, platform: OwnPlatform) -> None:
    """Check that objects and topics of the backup are there."""
    settings, made = settings_of(platform), read_backup(backup)
    found = s3.list_objects(s3.client(settings), settings.s3_bucket, "")
    assert [each.key for each in found] == [f"{made.installation}/{key}" for key in made.objects]
    assert topics_of(platform) == [log.topic for log in made.logs]


def assert_empty(platform: OwnPlatform) -> None:
    settings = settings_of(platform)
    assert topics_of(platform) == []
    assert s3.list_objects(s3.client(settings), settings.s3_bucket, "") == []
    with postgres.connect(settings.postgres_dsn.get_secret_value(), name="test") as connection:
        assert connection.execute("SELECT count(*) FROM asset").fetchone() == (0,)


def test_a_restored_installation_is_equal_to_the_one_that_was_backed_up(
    backup: FolderStorage, source: OwnPlatform, target: OwnPlatform, tmp_path: Path
) -> None:
    passphrase = backup.folder.parent / "passphrase"
    shown = target.run("restore", str(backup.folder), "--passphrase-file", str(passphrase))
    assert "Everything that was accepted after" in shown
    assert "topic partitions are missing; history and snapshots on S3 cover them" in shown
    names = ("users_secrets_key",)
    for name in names:
        keys = [(p.data / "secrets" / name).read_bytes() for p in (source, target)]
        assert keys[0] == keys[1]
    again = FolderStorage(tmp_path / "again")
    take_backup(settings_of(target), again, None, silent)
    before, after = read_backup(backup), read_backup(again)
    assert after.installation == before.installation
    assert [s for s in after.sequences if s.name != "audit_event_id_seq"] == [
        s for s in before.sequences if s.name != "audit_event_id_seq"
    ]
    # Kafka begins where the backup did: what history has is not there a second time.
    kept = [(log.topic, log.part, log.start, log.end, log.records) for log in before.logs]
    assert [(log.topic, log.part, log.start, log.end, log.records) for log in after.logs] == kept
    assert content(after) == content(before)


def content(made: BackupManifest) -> dict[str, str]:
    """Return the digests of the files that do not change with time."""
    return {
        file.name: file.sha256
        for file in made.files
        if file.name.rpartition("/")[0] not in OWN_TABLES and "/" in file.name
    }


@pytest.mark.long
def test_a_backup_in_a_bucket_is_the_same(
    backup: FolderStorage, source: OwnPlatform, target: OwnPlatform
) -> None:
    settings = settings_of(source)
    s3.ensure_bucket(s3.client(settings), "backups")
    storage = storage_at("s3://backups/tuesday", settings)
    take_backup(settings, storage, PASSPHRASE, silent)
    made = read_backup(storage)
    verify_files(storage, made)
    assert content(made) == content(read_backup(backup))
    own = settings.model_copy(update={"s3_prefix": "own/", "s3_bucket": "backups"})
    with pytest.raises(BackupUnusable, match="inside the part of the bucket"):
        storage_at("s3://backups/own/tuesday", own)
    elsewhere = settings.model_copy(update={"s3_secret_key": SecretStr("another")})
    with pytest.raises(Exception, match=r"403|Forbidden|SignatureDoesNotMatch"):
        storage_at("s3://backups/tuesday", elsewhere).is_empty()


@pytest.mark.parametrize(
    ("start", "end", "kept", "kind"),
    [
        (0, 6, [0, 1, 2, 4], AssetKind.TOPIC),
        (0, 9, [1, 2, 5, 6], AssetKind.TOPIC),
        (3, 4, [], AssetKind.TOPIC),
        (7, 20, [8, 11, 12, 15, 18], AssetKind.TOPIC),
        (5, 5, [], AssetKind.TOPIC),
        (0, 12, [5, 7, 9], AssetKind.POSITIONS),
    ],
    ids=["transactions", "aborted-first", "one-marker", "gaps", "nothing-kept", "compacted"],
)
def test_kafka_gives_records_the_planned_offsets(
    source: OwnPlatform, start: int, end: int, kept: list[int], kind: AssetKind
) -> None:
    settings = settings_of(source)
    topic = TopicName(f"test.offsets.{start}.{end}.{len(kept)}")
    records = [
        SavedRecord(Offset(n), b"k" if n % 2 else None, b"v%d" % n, (("h", b"x"), ("e", None)))
        for n in kept
    ]
    admin = KafkaTopicAdmin(settings)
    assert admin.create_now([TopicSpec(topic, kind, 1)]) == {}
    at = (topic, PartitionIndex(0))
    try:
        with KafkaWriter(settings, topic) as writer:
            writer.write(at, plan_writes(Offset(start), Offset(end), iter(records)))
        assert read_bounds(settings, {topic: 1})[at][1] == end
        with KafkaReader(settings) as reader:
            read = list(reader.read({at: (Offset(start), Offset(end))}))
        assert read == [(at, record) for record in records]
    finally:
        admin.delete_now([topic])
