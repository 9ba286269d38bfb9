"""The DAGs `recovery` and `drill` on the running platform."""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rocksdict import Cache

from fennel_core.connections.installation import installation_objects
from fennel_core.connections.postgres import pool
from fennel_core.engine import state_progress
from fennel_core.engine.state_progress import STATE_FORMAT
from fennel_core.hangar.rocks import RocksHangar
from fennel_core.hangar.store import WriteBatch
from fennel_core.settings.model import Settings
from fennel_core.snapshots import snapshot_pass, transfer
from fennel_core.snapshots.manifest import ManifestFile, encode_manifest
from fennel_core.snapshots.memory import MemoryPointers
from fennel_core.snapshots.store import Pointer
from fennel_core.snapshots.transfer import SnapshotContext
from fennel_core.vocab.ids import Epoch, JobId, PartitionIndex
from tests.support.airflow import Airflow, call, rows
from tests.support.installation import own_state

pytestmark = pytest.mark.platform
UIDS = list(range(20))


def ordered(workspace: str, amount: float, uids: list[int]) -> None:
    """Log an order of each of these users, and wait until queries see them."""
    url, token = f"{Settings().query_url}/api/v1", f"dev-{workspace}"
    data = {
        "uid": uids,
        "amount": [amount] * len(uids),
        "ts": [f"2026-01-{int(amount):02d}T00:00:00"] * len(uids),
    }
    assert (
        call("POST", f"{url}/log", {"webhook": "shop", "endpoint": "Order", "data": data}, token)[0]
        == 200
    )
    assert call("POST", f"{url}/barrier", {"timeout_s": 30}, token)[0] == 200


def served(workspace: str) -> Any:
    body = {"keys": [{"uid": uid} for uid in UIDS], "fields": []}
    status, response = call(
        "POST", f"{Settings().query_url}/api/v1/dataset/Order/lookup", body, f"dev-{workspace}"
    )
    assert status == 200, response
    return response


def copied(workspace: str) -> None:
    """Take a snapshot of every job partition, as the DAG `snapshot` does."""
    for address in snapshot_pass.owning_slots(Settings()):
        snapshot_pass.raise_on_failures(snapshot_pass.snapshot_slot(Settings(), address))
    assert rows(
        "SELECT count(DISTINCT part) FROM snapshot WHERE starts_with(job_id, %s)", f"{workspace}."
    ) == [(Settings().partitions,)]


def commanded(*words: str) -> str:
    """Run `fennel-core` and return its output."""
    ran = subprocess.run(  # noqa: S603  # a program of this test, and no shell
        [sys.executable, "-m", "fennel_core.apps.cli", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_the_recovery_dag_and_command_rebuild_selected_partitions(
    airflow: Airflow, workspace: str, shop: str
) -> None:
    assert airflow.run(definitions=shop, workspace=workspace)["state"] == "success"
    ordered(workspace, 1, UIDS)
    copied(workspace)
    ordered(workspace, 2, UIDS[::2])
    before = served(workspace)

    wrong = airflow.run("recovery", workspace=workspace, dataset="Orders")
    assert wrong["tasks"] == {
        "choose_partitions": "failed",
        "rebuild_partitions": "upstream_failed",
    }
    assert "unknown dataset with a job `Orders`; valid names: Order" in airflow.log(
        wrong["dag_run_id"], "choose_partitions", "recovery"
    )

    shown = airflow.run("recovery", workspace=workspace, dry_run=True)
    assert shown["tasks"] == {"choose_partitions": "skipped", "rebuild_partitions": "skipped"}
    assert (
        airflow.log(shown["dag_run_id"], "choose_partitions", "recovery").count(
            "selected: Order: table"
        )
        == Settings().partitions
    )

    run = airflow.run("recovery", workspace=workspace, dataset="Order")
    log_text = airflow.log(run["dag_run_id"], "rebuild_partitions", "recovery")
    assert run["state"] == "success", log_text
    assert log_text.count("caught up, from snapshot #") == Settings().partitions
    [(job,)] = rows("SELECT id FROM job WHERE workspace = %s", workspace)
    quarantined = {path.name for path in (own_state(Settings()) / str(job)).glob("quarantined-*")}
    assert quarantined == {f"quarantined-{part}" for part in range(Settings().partitions)}, (
        "local state was quarantined, so none of it is used"
    )
    assert served(workspace) == before
    ordered(workspace, 3, UIDS[:1])
    assert served(workspace)["data"]["amount"][0] == 3

    before = served(workspace)
    assert "snapshot #" in commanded("snapshot")
    assert "caught up, from snapshot #" in commanded(
        "recover", "--workspace", workspace, "--partition", "0"
    )
    assert served(workspace) == before
    assert ": agrees: snapshot #" in commanded(
        "drill", "--workspace", workspace, "--partition", "0"
    )


def tampered(workspace: str, work: Path) -> int:
    """Add a snapshot of partition 0 with one changed entry; return its number.

    The checksums of its files are correct, so only a replay of the log can find the difference.
    """
    [(job, part, manifest, sha256, epoch)] = rows(
        "SELECT job_id, part, s.manifest, s.sha256, p.epoch FROM snapshot s JOIN "
        "job_partition p USING (job_id, part) "
        "WHERE starts_with(job_id, %s) AND part = 0 ORDER BY number DESC LIMIT 1",
        f"{workspace}.",
    )

    async def made() -> str:
        dsn = Settings().postgres_dsn.get_secret_value()
        async with pool(dsn, name="test", size=1) as connections:
            objects = installation_objects(Settings(), connections)
            await objects.root()  # the only use of the database
        tools = SnapshotContext(objects, MemoryPointers(lambda: datetime.now(UTC), {}))
        pointer = Pointer(
            JobId(str(job)),
            PartitionIndex(0),
            1,
            Epoch(1),
            str(manifest),
            str(sha256),
            datetime.now(UTC),
        )
        known = await transfer.download_snapshot(tools, pointer, STATE_FORMAT, work)
        hangar = RocksHangar(work, Cache(1 << 20))
        key, value = next(state_progress.entries(hangar))
        hangar.write(WriteBatch({key: value[:-1] + bytes([value[-1] ^ 1])}))
        hangar.checkpoint(work.parent / "copy")
        hangar.close()
        base = str(manifest).rpartition("/")[0] + "-tampered"
        files = []
        for path in sorted((work.parent / "copy").iterdir()):
            body = path.read_bytes()
            files.append(
                ManifestFile(
                    path.name,
                    len(body),
                    hashlib.sha256(body).hexdigest(),
                    f"{base}/files/{path.name}",
                )
            )
            await objects.put(files[-1].object, body)
        body = encode_manifest(replace(known, files=tuple(files)))
        await objects.put(f"{base}/manifest.json", body)
        insert = (
            "INSERT INTO snapshot (job_id, part, epoch, manifest, sha256) VALUES (%s, "
            "%s, %s, %s, %s) RETURNING number"
        )
        [(number,)] = rows(
            insert, job, part, epoch, f"{base}/manifest.json", hashlib.sha256(body).hexdigest()
        )
        return str(number)

    return int(asyncio.run(made()))


@pytest.fixture
def no_scheduled_snapshots(airflow: Airflow) -> Iterator[None]:
    """Let no newer snapshot hide the one that a test has damaged."""
    with airflow.unscheduled("snapshot"):
        yield


@pytest.mark.long
def test_the_drill_dag_passes_healthy_states_and_detects_tampered_ones(
    airflow: Airflow, no_scheduled_snapshots: None, workspace: str, shop: str, tmp_path: Path
) -> None:
    def drilled(*partitions: int) -> tuple[str, str]:
        run = airflow.run("drill", workspace=workspace, dataset="Order", partitions=partitions)
        return run["state"], airflow.log(run["dag_run_id"], "drill_partitions", "drill")

    def alarms() -> list[dict[str, Any]]:
        url = f"{Settings().definition_url}/api/v1/operations/drills"
        _, response = call("GET", url, None, Settings().admin_token.get_secret_value())
        return [each for each in response["drills"] if each["job"].startswith(f"{workspace}.")]

    assert airflow.run(definitions=shop, workspace=workspace)["state"] == "success"
    ordered(workspace, 1, UIDS)
    copied(workspace)
    ordered(workspace, 2, UIDS[::2])
    number = tampered(workspace, tmp_path / "state")
    state, log_text = drilled(0)
    assert state == "failed", log_text
    assert f"[0]): corrupt: snapshot #{number} holds other entries than were written to" in log_text

    assert airflow.run("recovery", workspace=workspace, partitions=[0])["state"] == "success", (
        "the newest snapshot is used although it is damaged"
    )
    state, log_text = drilled(0)
    assert state == "failed", log_text
    [alarm] = alarms()
    assert (alarm["part"], alarm["verdict"]) == (0, "differs")
    assert alarm["live_hash"] != alarm["drilled_hash"]
    assert f"(live {alarm['live_hash']}, drilled {alarm['drilled_hash']})" in log_text

    assert (
        airflow.run("recovery", workspace=workspace, partitions=[0], before=number)["state"]
        == "success"
    )
    copied(workspace)
    state, log_text = drilled(0)
    assert state == "success", log_text
    assert log_text.count(": agrees: snapshot #") == 1
    assert alarms() == []
