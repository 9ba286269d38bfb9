"""The DAGs other than `commit` on the running platform, and the contents of task logs: snapshots,
orphaned topics, ledger steps, next actions.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_END, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from fennel_core.connections.kafka import client_config
from fennel_core.connections.postgres import pool
from fennel_core.settings.model import Settings
from tests.support.airflow import Airflow, call, rows
from tests.support.own_history import read_rows, roll_topics

pytestmark = pytest.mark.platform


def test_a_form_with_a_new_workspace_creates_it_and_logs_every_ledger_step(
    airflow: Airflow, workspace: str, shop: str
) -> None:
    run = airflow.run(definitions=shop, workspace=workspace)
    assert run["state"] == "success"
    assert "plan: + create topic of Order" in airflow.log(run["dag_run_id"], "compile")
    steps = {
        (line["action"], line["kind"], line["title"])
        for task in ("create_assets", "switch")
        for line in airflow.lines(run["dag_run_id"], task)
        if line["event"] == "ledger step" and float(line["ms"]) > 0
    }
    assert {("create", "topic", "Order"), ("register", "job", "Order: table")} <= steps
    audited = rows("SELECT actor, action, outcome FROM audit_event WHERE workspace = %s", workspace)
    actor = f"user {Settings().airflow_user} of Airflow"
    assert (actor, "commit", "done") in audited


def test_a_failed_task_logs_the_next_action(airflow: Airflow, workspace: str, shop: str) -> None:
    assert airflow.run(definitions=shop, workspace=workspace)["state"] == "success"
    run = airflow.run(definitions=shop, workspace=workspace, branch="nowhere")
    assert run["tasks"]["compile"] == "failed"
    log_text = airflow.log(run["dag_run_id"], "compile")
    assert "branch `nowhere` does not exist" in log_text
    assert "what to do: create it with the client" in log_text


def filled(airflow: Airflow, workspace: str, shop: str) -> None:
    """Commit the shop, log three orders, and wait until they are processed."""
    assert airflow.run(definitions=shop, workspace=workspace)["state"] == "success"
    log_orders(workspace, "2026-01-01T00:00:00")


def log_orders(workspace: str, at: str) -> None:
    """Log an order of each of three users, and wait until they are processed."""
    url, token = f"{Settings().query_url}/api/v1", f"dev-{workspace}"
    body = {
        "webhook": "shop",
        "endpoint": "Order",
        "data": {"uid": [1, 2, 3], "amount": [1.0] * 3, "ts": [at] * 3},
    }
    assert call("POST", f"{url}/log", body, token)[0] == 200
    assert call("POST", f"{url}/barrier", {"timeout_s": 30}, token)[0] == 200


def test_the_snapshot_dag_copies_every_state_and_logs_numbers_and_bytes(
    airflow: Airflow, workspace: str, shop: str
) -> None:
    filled(airflow, workspace, shop)
    run = airflow.run("snapshot")
    assert run["state"] == "success"
    steps = ("owning_slots", "snapshot_slot", "prune_snapshots", "shorten_logs")
    assert run["tasks"] == dict.fromkeys(steps, "success")
    taken = rows("SELECT number FROM snapshot WHERE starts_with(job_id, %s)", f"{workspace}.")
    assert len(taken) == Settings().partitions
    assert "slots that own job partitions: /" in airflow.log(
        run["dag_run_id"], "owning_slots", "snapshot"
    )
    slots = airflow.instances(run["dag_run_id"], "snapshot_slot", "snapshot")
    logs = [
        airflow.log(run["dag_run_id"], "snapshot_slot", "snapshot", mapped=index) for index in slots
    ]
    report_lines = [
        line for log in logs for line in log.splitlines() if "bytes uploaded (snapshots/" in line
    ]
    for (number,) in taken:
        assert [line for line in report_lines if f"snapshot #{number} taken: Order" in line]
    assert all("job partitions: " in log and "newest snapshot #" in log for log in logs)
    assert "snapshots deleted: " in airflow.log(run["dag_run_id"], "prune_snapshots", "snapshot")


def test_the_reconcile_dag_deletes_an_orphaned_topic_and_names_it(
    airflow: Airflow, workspace: str
) -> None:
    [(incarnation,)] = rows("SELECT nextval('asset_incarnation')")
    orphan = f"{workspace}.topic.{uuid.uuid4().hex}.{incarnation}"
    admin = AdminClient(client_config(Settings()))
    for made in admin.create_topics([NewTopic(orphan, 1, 1)]).values():
        made.result(20)
    rows(
        "INSERT INTO orphan_topic (topic, seen_at) "
        "VALUES (%s, now() - interval '1 day') RETURNING topic",
        orphan,
    )
    run = airflow.run("reconcile")
    assert run["state"] == "success"
    assert orphan not in admin.list_topics(timeout=20).topics
    log = airflow.log(run["dag_run_id"], "reconcile_ledgers", "reconcile")
    assert orphan in log
    assert "open destruction entries: " in log


def test_the_integrity_dag_compares_lookups_with_history_and_logs_how_many(
    airflow: Airflow, workspace: str, shop: str
) -> None:
    filled(airflow, workspace, shop)
    run = airflow.run("integrity", workspace=workspace)
    log_text = airflow.log(run["dag_run_id"], "check_integrity", "integrity")
    assert run["state"] == "success", log_text
    [found] = [line for line in log_text.splitlines() if line.startswith(f"Order of {workspace} ")]
    assert found.endswith("agrees: 3 keys compared with 3 rows of history")


async def rolled(workspace: str) -> int:
    """Bring the rows of a workspace into history; return the number of new files."""
    dsn = Settings().postgres_dsn.get_secret_value()
    async with pool(dsn, name="test", size=2) as connections:
        return await roll_topics(Settings(), connections, f"{workspace}.")


@pytest.mark.long
def test_the_history_maintenance_dag_merges_small_files_with_spark(
    airflow: Airflow, workspace: str, shop: str
) -> None:
    filled(airflow, workspace, shop)
    written = [asyncio.run(rolled(workspace))]
    for day in (2, 3, 4):
        log_orders(workspace, f"2026-01-0{day}T00:00:00")
        written.append(asyncio.run(rolled(workspace)))
    assert written == [written[0]] * 4, "each time a file of each partition with a row"
    before, asked = files_of(workspace), {"dataset": "Order", "workspace": workspace}
    # A request may be on any partition of its topic, a row is on that of its key.
    assert {files for (topic, _), (files, _) in before.items() if ".topic." in str(topic)} == {4}
    modes = [asked, asked | {"mode": "changelog"}, asked | {"as_of": "2026-01-02T12:00:00Z"}]
    read = [sorted(read_rows(Settings(), each), key=str) for each in modes]
    assert [len(rows) for rows in read] == [3, 12, 3]

    run = airflow.run("history_maintenance")

    log_text = airflow.log(run["dag_run_id"], "compact", "history_maintenance")
    assert run["state"] == "success", log_text
    assert "Spark-Submit cmd" in log_text
    assert '"event":"history is maintained"' in log_text
    after = files_of(workspace)
    assert after == {place: (1, row_count) for place, (_, row_count) in before.items()}
    assert [sorted(read_rows(Settings(), each), key=str) for each in modes] == read


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_history_maintenance_dag_removes_expired_versions_that_newer_ones_replaced(
    airflow: Airflow, workspace: str, shop: str
) -> None:
    """The clock of retention is the last acceptance: of the versions of each key, only the newest
    is younger than a minute by it.
    """
    kept = Path(shop)
    kept.write_text(kept.read_text().replace("index=True", 'index=True, history="1m"'))
    filled(airflow, workspace, shop)
    for day in (2, 3, 4):
        log_orders(workspace, f"2026-01-0{day}T00:00:00")
    asyncio.run(rolled(workspace))
    time.sleep(70)  # a tenth of the minute more
    log_orders(workspace, datetime.now(UTC).isoformat())
    asyncio.run(rolled(workspace))
    assert airflow.run("snapshot")["state"] == "success"
    delete_records(workspace)
    asked = {"dataset": "Order", "workspace": workspace}
    newest = sorted(read_rows(Settings(), asked), key=str)
    versions = read_rows(Settings(), asked | {"mode": "changelog"})
    assert [len(newest), len(versions)] == [3, 15]

    run = airflow.run("history_maintenance")

    log_text = airflow.log(run["dag_run_id"], "compact", "history_maintenance")
    assert run["state"] == "success", log_text
    left = read_rows(Settings(), asked | {"mode": "changelog"})
    since = datetime(2026, 1, 4, tzinfo=UTC)
    assert sorted(left, key=str) == sorted((row for row in versions if row[2] >= since), key=str)
    assert len(left) == 6, "of each user the last expired version, and the new one"
    assert sorted(read_rows(Settings(), asked), key=str) == newest


def delete_records(workspace: str) -> None:
    """Delete the rows that Kafka has of the workspace, as its retention does."""
    admin = AdminClient(client_config(Settings()))
    topics = admin.list_topics(timeout=10).topics.items()
    parts = [
        TopicPartition(name, part, OFFSET_END)
        for name, topic in topics
        if name.startswith(f"{workspace}.") and ".topic." in name
        for part in topic.partitions
    ]
    for deleted in admin.delete_records(parts).values():
        deleted.result(30)


def files_of(workspace: str) -> dict[tuple[object, object], tuple[object, object]]:
    """Return the number of files and of rows in them, by topic and partition."""
    found = rows(
        "SELECT topic, part, count(*), sum(row_count) FROM history_file "
        "WHERE starts_with(topic, %s) GROUP BY 1, 2",
        f"{workspace}.",
    )
    return {(topic, part): (files, count) for topic, part, files, count in found}


@pytest.mark.parametrize(
    ("dag", "minutes"), [("reconcile", 5), ("snapshot", Settings().snapshot_minutes)]
)
def test_scheduled_dags_run_by_themselves(airflow: Airflow, dag: str, minutes: int) -> None:
    _, known = call("GET", f"{airflow.url}/dags/{dag}", None, airflow.token)
    assert not known["is_paused"]
    assert datetime.fromisoformat(
        known["next_dagrun_run_after"]
    ) <= datetime.now().astimezone() + timedelta(minutes=minutes)
    ended = [
        run["state"]
        for run in airflow.runs(dag)
        if run["run_type"] == "scheduled" and run["state"] in ("success", "failed")
    ]
    assert ended == [] or "success" in ended, "no run is due yet, or one has succeeded"
