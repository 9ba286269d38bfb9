"""A platform of a released version, opened by this version: same answers, nothing recomputed.

The fixture is opened twice: with its local state, and after that without it and with another
`FENNEL_PARTITIONS`. The tests of this module run in order.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka.admin import AdminClient

from fennel_core.ledger.kafka_access import AUDIT_PREFIX
from fennel_core.wire.gen import services_pb2
from tests.support.executors import commit_of
from tests.support.own_platform import OwnPlatform
from tests.upgrade import archive, market
from tests.upgrade.market import MAIN, Market, Recorded

pytestmark = [pytest.mark.platform, pytest.mark.timeout(300)]
OTHER_PARTITIONS = "5"
IDENTITY = "IDENTITY"
"""RocksDB writes this file with a random id when it creates a database, and never again."""
NEWEST_SNAPSHOTS = """
    SELECT DISTINCT ON (job_id, part) manifest FROM snapshot JOIN job ON job.id = job_id
    WHERE job.desired = 'run' ORDER BY job_id, part, number DESC
"""


@dataclass
class Upgraded:
    """The platform of a fixture under this version. `log_end`: of the engine before this start."""

    platform: OwnPlatform
    folder: Path
    log_end: int = 0

    @property
    def manifest(self) -> dict[str, Any]:
        found: dict[str, Any] = archive.read_json(self.folder, archive.MANIFEST)
        return found

    @property
    def market(self) -> Market:
        return Market(self.platform.url, self.manifest["token"])

    def start(self) -> None:
        """Start all services, and wait until every job partition has caught up."""
        log = self.platform.data / "logs" / "engine.log"
        self.log_end = log.stat().st_size if log.exists() else 0
        self.platform.run("up")
        self.market.settle()

    def differences(self, part: str) -> list[tuple[Recorded, Any]]:
        """Send the recorded requests again; return those with another response, with it."""
        api = self.market
        recorded = [Recorded(**e) for e in archive.read_json(self.folder, archive.ANSWERS)[part]]
        assert len(recorded) > 3
        responses = [(each, api.ask(each)) for each in recorded]
        return [(each, found) for each, found in responses if found != each.response]

    def rows(self, query: str) -> list[Any]:
        with psycopg.connect(self.platform.value("POSTGRES_DSN")) as connection:
            return connection.execute(query.encode()).fetchall()

    def assets(self) -> dict[str, str]:
        return dict(self.rows("SELECT id, state FROM asset"))

    def topics(self) -> set[str]:
        """Return the topics of assets: not Kafka's, nor that of the exported audit log."""
        admin = AdminClient({"bootstrap.servers": self.platform.value("KAFKA_BOOTSTRAP")})
        names = admin.list_topics(timeout=10).topics
        return {name for name in names if not name.startswith(("_", AUDIT_PREFIX))}

    def engine_log(self, text: str) -> list[dict[str, Any]]:
        """Return the lines with `text` that the engine has logged since this start."""
        with (self.platform.data / "logs" / "engine.log").open() as log:
            log.seek(self.log_end)
            return [json.loads(line) for line in log if line.startswith("{") and text in line]

    async def client_request(self) -> bytes:
        """Return the project of `main` as the client of this version sends it."""
        folder = self.folder / "definitions"
        return await commit_of("market.py", message="by this client", folder=folder)


def local_states(root: Path) -> set[tuple[str, str]]:
    """Return job and id of every local database below `<root>/<installation>/<job>`."""
    return {(path.relative_to(root).parts[1], path.read_text()) for path in root.rglob(IDENTITY)}


@pytest.fixture(scope="module")
def upgraded(fixture_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upgraded]:
    """Yield the platform with the local state of the fixture."""
    partitions = str(archive.read_json(fixture_folder, archive.MANIFEST)["partitions"])
    data = tmp_path_factory.mktemp("upgraded")
    platform = OwnPlatform(data, FENNEL_PARTITIONS=partitions, **archive.UNLIMITED)
    found = Upgraded(platform, fixture_folder)
    try:
        archive.restore(fixture_folder, platform)
        found.start()
        yield found
    finally:
        platform.run("down")


@pytest.fixture(scope="module")
def restored(upgraded: Upgraded) -> Upgraded:
    """Return the platform after the loss of its local state and a change of the setting."""
    upgraded.platform.run("down", "--only", "fennel,watchdog")
    shutil.rmtree(upgraded.platform.data / archive.STATE)
    upgraded.platform.settings["FENNEL_PARTITIONS"] = OTHER_PARTITIONS
    upgraded.start()
    return upgraded


def assert_that_an_unchanged_commit_changes_nothing(
    upgraded: Upgraded, branch: str, body: bytes
) -> None:
    """Commit under another message, so that the request is not that of the version it repeats."""
    assets, topics = upgraded.assets(), upgraded.topics()
    report = upgraded.market.call("POST", "/commit", body, branch)
    changes = [each for each in report["plan"]["entries"] if each["action"] != "keep"]
    assert changes == []
    assert "assets: 0 created" in report["summary"][-1]
    assert upgraded.assets() == assets
    assert upgraded.topics() ^ topics == set()


def stored_requests(upgraded: Upgraded) -> dict[str, bytes]:
    """Return the definitions of each branch as the released version stored them."""
    query = "SELECT b.name, c.merged FROM branch b JOIN commit c ON c.id = b.target"
    found = {}
    for branch, merged in upgraded.rows(query):
        message = services_pb2.SyncRequest.FromString(merged)
        message.message = f"unchanged, with {upgraded.platform.settings['FENNEL_PARTITIONS']}"
        found[branch] = bytes(message.SerializeToString(deterministic=True))
    return found


def test_every_recorded_response_is_the_same(upgraded: Upgraded) -> None:
    assert upgraded.differences("requests") == []


def test_the_local_state_is_opened_and_not_built_again(upgraded: Upgraded) -> None:
    stored = local_states(upgraded.folder / archive.STATE)
    assert len(stored) > 50
    assert stored <= local_states(upgraded.platform.data / archive.STATE)
    assert upgraded.engine_log("quarantined") == []
    assert upgraded.engine_log("restored from snapshot") == []


def test_no_asset_of_the_fixture_is_missing_or_new(upgraded: Upgraded) -> None:
    assert upgraded.assets() == upgraded.manifest["assets"]
    assert "missing or wrong: 0" in upgraded.platform.run("audit")


def test_an_unchanged_commit_creates_and_destroys_nothing(upgraded: Upgraded) -> None:
    requests = stored_requests(upgraded)
    assert sorted(requests) == upgraded.manifest["branches"]
    for branch, body in requests.items():
        assert_that_an_unchanged_commit_changes_nothing(upgraded, branch, body)
    sent = asyncio.run(upgraded.client_request())
    assert_that_an_unchanged_commit_changes_nothing(upgraded, MAIN, sent)


@pytest.mark.long
def test_without_local_state_the_snapshots_give_the_same_responses(restored: Upgraded) -> None:
    newest = {manifest for (manifest,) in restored.rows(NEWEST_SNAPSHOTS)}
    used = {line["snapshot"] for line in restored.engine_log("restored from snapshot")}
    assert len(newest) > 50
    assert newest <= used
    assert restored.differences("requests") == []


@pytest.mark.long
def test_another_number_of_partitions_in_the_settings_changes_nothing(restored: Upgraded) -> None:
    for branch, body in stored_requests(restored).items():
        assert_that_an_unchanged_commit_changes_nothing(restored, branch, body)


@pytest.mark.long
def test_a_commit_revives_what_the_released_version_retained(restored: Upgraded) -> None:
    body = (restored.folder / "requests" / "visits.binpb").read_bytes()
    report = restored.market.call("POST", "/commit", body, incremental="true")
    changed = {e["action"] for e in report["plan"]["entries"] if e["action"] != "keep"}
    assert changed == {"revive"}
    restored.market.settle()
    assert restored.differences("dropped") == []


def assert_that_new_rows_show(upgraded: Upgraded) -> None:
    names = ["User.country", "User.orders", "User.last", "User.loud", "User.sealed"]
    body = {
        "inputs": ["Request.user"],
        "outputs": names,
        "data": {"Request.user": ["new user"]},
    }
    assert upgraded.market.call("POST", "/query", body) == {
        "User.country": ["new"],
        "User.orders": [3],
        "User.last": [[202, 201, 200]],
        "User.loud": ["BEYOND"],
        "User.sealed": [len(market.SECRET)],
    }


@pytest.mark.long
def test_new_rows_show_in_features(restored: Upgraded) -> None:
    market.new_rows(restored.market)
    restored.market.settle()
    assert_that_new_rows_show(restored)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_restored_backup_is_the_same_platform(
    restored: Upgraded, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Compare responses of a new broker and bucket with those of the originals."""
    asked = [Recorded(**e) for e in archive.read_json(restored.folder, archive.ANSWERS)["requests"]]
    before = [restored.market.ask(each) for each in asked]
    folder = tmp_path_factory.mktemp("backups")
    (folder / "passphrase").write_text("correct horse battery staple\n")
    words = ("--passphrase-file", str(folder / "passphrase"))
    restored.platform.run("down")
    restored.platform.run("up", *archive.INFRA)
    restored.platform.run("backup", str(folder / "monday"), *words)
    restored.platform.run("down")
    other = OwnPlatform(tmp_path_factory.mktemp("restored"), **archive.UNLIMITED)
    try:
        other.run("up", *archive.INFRA)
        other.run("restore", str(folder / "monday"), *words)
        copy = Upgraded(other, restored.folder)
        copy.start()
        assert [copy.market.ask(each) for each in asked] == before
        assert_that_new_rows_show(copy)
        assert "missing or wrong: 0" in other.run("audit")
        user = {"user": "later user", "country": "new", "age": 30, "updated": market.at(61)}
        copy.market.log("Users", [user])
        copy.market.settle()
        body = {
            "inputs": ["Request.user"],
            "outputs": ["User.country"],
            "data": {"Request.user": ["later user"]},
        }
        assert copy.market.call("POST", "/query", body) == {"User.country": ["new"]}
    finally:
        other.run("down")
