"""`fennel-core audit` on the running platform: nothing is missing, and a stray topic is found."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from fennel_core.connections.kafka import client_config
from fennel_core.settings.model import Settings

pytestmark = [pytest.mark.platform, pytest.mark.usefixtures("platform"), pytest.mark.timeout(180)]


def audit() -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "fennel_core.apps.cli", "audit", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_nothing_is_missing_and_an_orphaned_topic_is_found(settings: Settings) -> None:
    with psycopg.connect(settings.postgres_dsn.get_secret_value()) as connection:
        row = connection.execute("SELECT nextval('asset_incarnation')").fetchone()
    assert row is not None
    name = f"audited.topic.{'0' * 32}.{row[0]}"
    admin = AdminClient(client_config(settings))
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
    try:
        code, report = audit()
    finally:
        admin.delete_topics([name])[name].result(30)
    assert report["missing"] == 0, report
    assert code == 0
    assert {"problem": "orphaned-topic", "subject": name} in [
        {"problem": each["problem"], "subject": each["subject"]} for each in report["findings"]
    ]
