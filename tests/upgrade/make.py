"""Run this version and pack what it stores: `make upgrade-fixture`, once per release.

Starts a platform of its own beside any other (own folder, own ports, no Airflow), commits the
project in `definitions/`, logs rows, takes a snapshot, lets history write its files, logs rows that
are in neither, records lookups and queries, stops, and writes `<version>.tar.xz`. Takes about two
minutes. `docs/upgrading.md` says when to run it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform as machine
import shutil
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec
import psycopg
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from fennel_core import __version__
from fennel_core.apps.local.status_tables import history_by_topic
from fennel_core.blueprints import identity, plan_entries
from fennel_core.connections import migrate
from fennel_core.engine.backfill import manifest as backfill_manifest
from fennel_core.engine.state_progress import STATE_FORMAT
from fennel_core.replaylog import marker
from fennel_core.snapshots import manifest as snapshot_manifest
from fennel_core.vocab.versions import FORMAT_HEADER
from fennel_core.wire import code_logic
from tests.support.executors import commit_of
from tests.support.own_platform import OwnPlatform
from tests.support.polling import eventually_sync
from tests.upgrade import archive, market
from tests.upgrade.market import MAIN, OTHER, Market, Recorded

PARTITIONS: Final = 2
HISTORY_ROWS: Final = 150
HISTORY_S: Final = 180.0
"""A pass of the history writer takes seconds, and half a minute on a busy machine."""
PROJECT: Final = archive.FOLDER / "definitions"


def formats() -> dict[str, Any]:
    """Return the numbers of all stored formats of this version."""
    return {
        "state": STATE_FORMAT,
        "marker": marker.FORMAT,
        "snapshot manifest": snapshot_manifest.FORMAT,
        "backfill manifest": backfill_manifest.FORMAT,
        "plan": plan_entries.FORMAT,
        "identity": identity.FORMAT,
        "code": code_logic.NORMALIZER,
        "batch": FORMAT_HEADER[1].decode(),
        "migrations": {f"{m.number:04d}_{m.name}": m.sha256 for m in migrate.read()},
    }


class Maker:
    """One run; `folder` becomes the content of the fixture."""

    def __init__(self, platform: OwnPlatform, folder: Path) -> None:
        self.platform, self.folder = platform, folder
        self.token = self._new_workspace()
        self.market = Market(platform.url, self.token)
        self.dropped: list[Recorded] = []

    def _new_workspace(self) -> str:
        admin = {"Authorization": f"Bearer {self.platform.value('ADMIN_TOKEN')}"}
        body = {"name": market.WORKSPACE}
        made = httpx.post(
            f"{self.platform.url}/api/v1/workspaces", json=body, headers=admin, trust_env=False
        )
        assert made.status_code == 200, made.text
        return str(made.json()["token"])

    def make(self) -> None:
        """Do everything that leaves something stored."""
        self.market.call("POST", "/secret/vault", {"value": market.SECRET})
        self._commit("market")
        self._commit("visits", incremental="true")
        market.visits(self.market)
        market.first_rows(self.market)
        self.market.settle()
        self.dropped = self.market.record_dropped()
        retained = self._commit("market")
        assert "retain" in {entry["action"] for entry in retained["plan"]["entries"]}, retained
        self.market.call("POST", "/init", {"clone_from": MAIN}, OTHER)
        self._commit("other", OTHER, incremental="true")
        market.later_rows(self.market)
        erased = self.market.call(
            "POST", "/dataset/Users/erase", {"erase_keys": [{"user": market.ERASED}]}
        )
        assert erased == {"erased": 1}
        self.market.settle()
        self.platform.run("snapshot")
        eventually_sync(
            self._history_is_written, within_s=HISTORY_S, interval_s=1, what="history has rows"
        )
        self.platform.run("down", "--only", "history")
        market.last_rows(self.market)
        self.market.settle()

    def _commit(self, name: str, branch: str = MAIN, **query: str) -> dict[str, Any]:
        """Commit a file of the project, and keep the request as the client sends it."""
        message = f"{name} of {branch}"
        body = asyncio.run(commit_of(f"{name}.py", message=message, folder=PROJECT))
        requests = self.folder / "requests"
        requests.mkdir(exist_ok=True)
        (requests / f"{name}.binpb").write_bytes(body)
        report: dict[str, Any] = self.market.call("POST", "/commit", body, branch, **query)
        assert not report["stuck_jobs"], report
        return report

    def _history_is_written(self) -> bool:
        port = self.platform.settings["FENNEL_HISTORY_PORT"]
        report = httpx.get(f"http://127.0.0.1:{port}/topics", trust_env=False).json()
        return sum(topic["rows"] for topic in history_by_topic(report).values()) > HISTORY_ROWS

    def record(self) -> None:
        """Write what a later version must find."""
        answers = {"requests": self.market.record_all(), "dropped": self.dropped}
        _write(self.folder / archive.ANSWERS, {k: list(map(asdict, v)) for k, v in answers.items()})
        dsn = self.platform.value("POSTGRES_DSN")
        with psycopg.connect(dsn) as connection:
            assets = connection.execute("SELECT id, state FROM asset ORDER BY id").fetchall()
            branches = connection.execute("SELECT name FROM branch ORDER BY name").fetchall()
        manifest = {
            "version": __version__,
            "python": machine.python_version(),
            "partitions": PARTITIONS,
            "token": self.token,
            "branches": [name for (name,) in branches],
            "assets": dict(assets),
            "formats": formats(),
        }
        _write(self.folder / archive.MANIFEST, manifest)
        shutil.copytree(PROJECT, self.folder / "definitions", ignore=lambda *_: ["__pycache__"])
        (self.folder / archive.MARKERS).write_bytes(
            msgspec.msgpack.encode(self._markers(dict(assets)))
        )

    def _markers(self, assets: dict[str, str]) -> list[bytes]:
        """Return the first markers of each partition of each replaylog."""
        bootstrap = self.platform.value("KAFKA_BOOTSTRAP")
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "fixture"})
        sources = [
            TopicPartition(asset, part, OFFSET_BEGINNING)
            for asset in assets
            if ".replaylog." in asset
            for part in range(PARTITIONS)
        ]
        consumer.assign(sources)
        found = []
        try:
            while message := consumer.poll(3):
                assert message.error() is None, message.error()
                found.append(message.value())
        finally:
            consumer.close()
        assert found, "no replaylog has a marker"
        return found


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    default = archive.FOLDER / f"{__version__}{archive.SUFFIX}"
    parser.add_argument("--out", type=Path, default=default, help="the file to write")
    out: Path = parser.parse_args().out
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fennel-") as temporary:
        folder, data = Path(temporary) / "fixture", Path(temporary) / "data"
        folder.mkdir()
        platform = OwnPlatform(
            data,
            FENNEL_PARTITIONS=str(PARTITIONS),
            FENNEL_HISTORY_TRIGGER_S="0.5",
            FENNEL_HISTORY_MAX_WAIT_S="1",
            **archive.UNLIMITED,
        )
        try:
            platform.run("up")
            maker = Maker(platform, folder)
            maker.make()
            maker.record()
            archive.collect(platform, folder)
        except BaseException:
            logs = Path(tempfile.mkdtemp(prefix="fennel-failed-"))
            shutil.copytree(data / "logs", logs, dirs_exist_ok=True)
            print(f"the logs of the platform are kept in {logs}")
            raise
        finally:
            platform.run("down")
        archive.collect_stopped(platform, folder)
        archive.pack(folder, out)
    print(f"{out}: {out.stat().st_size} bytes, after {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
