"""Containers reach each other by name, and check their health without the service table."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from fennel_core.apps import container
from fennel_core.apps.local import airflow, kafka, postgres, s3
from fennel_core.apps.local.file_layout import ROOT, FileLayout
from fennel_core.apps.local.host_environment import HostEnvironment
from fennel_core.apps.local.platform import local_settings
from fennel_core.apps.local.platform_keys import KEY_NAMES, ensure_keys, grant_keys, load_keys
from fennel_core.apps.local.preflight import preflight_problems
from fennel_core.apps.local.readiness import (
    AirflowHeartbeat,
    HeartbeatFile,
    HttpOk,
    HttpResponds,
    KafkaResponds,
    PostgresResponds,
    ReadinessCheck,
    SocketAccepts,
    from_json,
    to_json,
)
from fennel_core.apps.local.services import WITH_KEYS, keys_of, service_table
from fennel_core.apps.local.setup_steps import PlatformContext
from fennel_core.settings.model import Settings

CONTAINED = {"host": "0.0.0.0", "published_host": "127.0.0.1", "reach_by_name": True}  # noqa: S104  # a value under test, never bound


@pytest.fixture
def context(tmp_path: Path) -> PlatformContext:
    layout = FileLayout(root=ROOT, data=tmp_path)
    layout.make()
    keys = ensure_keys(layout.secrets)
    return PlatformContext(
        local_settings(Settings().model_copy(update=CONTAINED), layout, keys),
        layout,
        keys,
        HostEnvironment("java", (), os.getuid()),
    )


def test_stores_bind_to_every_address_and_are_reached_by_name(context: PlatformContext) -> None:
    settings, layout = context.settings, context.layout
    assert "@postgres:7410/" in settings.postgres_dsn.get_secret_value()
    assert "@postgres:7410/" in postgres.airflow_dsn(settings, context.keys)
    assert (settings.kafka_bootstrap, settings.s3_endpoint) == ("kafka:7411", "http://s3:7412")
    properties = kafka.properties(settings, layout)
    assert properties["listeners"] == "PLAINTEXT://0.0.0.0:7411,CONTROLLER://127.0.0.1:7413", (
        "the controller is not reachable from other containers"
    )
    assert properties["advertised.listeners"] == "PLAINTEXT://kafka:7411"
    s3.configure(settings, layout)
    assert (
        "s3proxy.endpoint=http://0.0.0.0:7412\n"
        in (layout.data / "s3" / "s3proxy.conf").read_text()
    )


def test_airflow_uses_the_published_address_for_browsers_and_its_name_for_tasks(
    context: PlatformContext,
) -> None:
    env = airflow.env(context.settings, context.layout, context.keys)
    assert env["AIRFLOW__API__BASE_URL"] == "http://127.0.0.1:7480"
    assert env["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] == "http://airflow-api:7480/execution/"


@pytest.mark.parametrize(
    ("host", "admitted"),
    [("127.0.0.1", False), ("0.0.0.0", True), ("192.168.1.5", True)],  # noqa: S104  # a value under test, never bound
)
def test_postgres_requires_passwords_and_admits_other_hosts_only_beyond_loopback(
    context: PlatformContext, host: str, admitted: bool
) -> None:
    postgres.data_folder(context.layout).mkdir()
    postgres.write_client_authentication(
        context.settings.model_copy(update={"host": host}), context.layout, context.host
    )
    lines = (postgres.data_folder(context.layout) / "pg_hba.conf").read_text().splitlines()
    assert any("samenet" in line for line in lines) is admitted
    assert all(line.endswith("scram-sha-256") for line in lines)


@pytest.mark.parametrize("read_only", [False, True])
def test_the_password_of_initdb_is_where_postgres_can_read_it(
    context: PlatformContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_only: bool
) -> None:
    """It is another user than root, who may have a private TMPDIR."""
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    initdb = tmp_path / "initdb"
    initdb.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/words\n')
    initdb.chmod(0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(private))
    monkeypatch.setattr(postgres, "binaries", lambda: tmp_path)
    # Root may write to any folder of a test; in containers the file system is read-only.
    monkeypatch.setattr(os, "access", lambda _path, _mode: not read_only)
    postgres.make_cluster(context.layout, context.keys, context.host)
    words = (tmp_path / "words").read_text().split()
    (option,) = [word for word in words if word.startswith("--pwfile=")]
    file = Path(option.removeprefix("--pwfile="))
    assert file.parent == (private if read_only else context.layout.data)
    assert not file.exists()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "10.0.0.1"])  # noqa: S104  # never bound
def test_on_a_machine_the_broker_is_reachable_from_it_only(tmp_path: Path, host: str) -> None:
    """It has no authentication, whatever the servers are bound to."""
    layout = FileLayout(root=ROOT, data=tmp_path)
    layout.make()
    given = Settings().model_copy(update={"host": host})
    settings = local_settings(given, layout, ensure_keys(layout.secrets))
    properties = kafka.properties(settings, layout)
    assert properties["listeners"] == "PLAINTEXT://127.0.0.1:7411,CONTROLLER://127.0.0.1:7413"
    assert properties["advertised.listeners"] == "PLAINTEXT://127.0.0.1:7411"
    assert settings.kafka_bootstrap == "127.0.0.1:7411"


@pytest.mark.parametrize("words", [{"published_host": "127.0.0.1"}, {"reach_by_name": True}])
def test_up_on_a_machine_refuses_container_settings(
    context: PlatformContext, words: dict[str, object]
) -> None:
    settings = Settings().model_copy(update=words)
    assert "apply to containers only" in " ".join(
        preflight_problems(settings, context.layout, HostEnvironment("true", (), 0), [])
    )


def test_keys_are_read_from_a_read_only_mount(tmp_path: Path) -> None:
    made = ensure_keys(tmp_path)
    reading = (
        "import sys, pathlib; from fennel_core.apps.local.platform_keys import "
        "ensure_keys;print(ensure_keys(pathlib.Path(sys.argv[1])).admin_token)"
    )
    read_only = (
        f"mount --bind {tmp_path} {tmp_path} && mount -o remount,bind,ro {tmp_path} && "
        f"exec {sys.executable} -c '{reading}' {tmp_path}"
    )
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", read_only]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603  # a program of this test, and no shell
    if "mount" in done.stderr or "unshare" in done.stderr:
        pytest.skip("mounting is not permitted here")
    assert done.stdout.strip() == made.admin_token, done.stderr


@pytest.mark.parametrize("service", sorted(WITH_KEYS))
def test_a_container_with_the_keys_of_its_service_runs_the_same_row(
    context: PlatformContext, service: str
) -> None:
    folder = context.layout.data / "grants" / service
    folder.mkdir(parents=True)
    grant_keys(context.layout.secrets, keys_of(service), folder)
    keys = load_keys(folder)
    settings = local_settings(Settings().model_copy(update=CONTAINED), context.layout, keys)
    assert {name for name in KEY_NAMES if getattr(keys, name)} == keys_of(service)
    assert settings.admin_digest == context.settings.admin_digest
    granted = PlatformContext(settings, context.layout, keys, context.host)
    (mine,) = (row for row in service_table(granted) if row.name == service)
    (theirs,) = (row for row in service_table(context) if row.name == service)
    assert mine == theirs


def test_no_container_but_the_first_gets_the_administrators_token() -> None:
    assert {name: keys_of(name) for name in ("query", "ingest", "history", "airflow-dags")} == {
        "query": {"postgres_password", "users_secrets_key"},
        "ingest": {"postgres_password", "users_secrets_key"},
        "history": {"postgres_password", "s3_secret_key"},
        "airflow-dags": {name for name in KEY_NAMES if name.startswith("airflow_")},
    }
    assert all("admin_token" not in keys_of(name) for name in WITH_KEYS)


def test_granted_keys_follow_the_installations(tmp_path: Path) -> None:
    secrets, folder = tmp_path / "secrets", tmp_path / "query"
    secrets.mkdir()
    folder.mkdir()
    ensure_keys(secrets)
    grant_keys(secrets, KEY_NAMES, folder)
    both_keys = "new\n" + (secrets / "users_secrets_key").read_text()
    (secrets / "users_secrets_key").write_text(both_keys)
    grant_keys(secrets, frozenset({"users_secrets_key"}), folder)
    assert (folder / "users_secrets_key").read_text() == both_keys
    assert {path.name for path in folder.iterdir()} == {
        *("granted", "users_secrets_key", "admin_token_sha256")
    }
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in folder.iterdir())


@pytest.mark.parametrize(
    "check",
    [
        HeartbeatFile(Path("/data/run/watchdog.beat"), 1.0),
        HttpOk("http://127.0.0.1:7400/readyz"),
        HttpResponds("http://s3:7412"),
        SocketAccepts(Path("/data/run/x.sock")),
        PostgresResponds("postgresql://x"),
        KafkaResponds("kafka:7411"),
        AirflowHeartbeat("http://airflow-api:7480", "scheduler"),
    ],
)
def test_a_readiness_check_survives_its_file(check: ReadinessCheck) -> None:
    assert from_json(to_json(check)) == check


def test_a_service_in_setup_is_not_healthy(tmp_path: Path) -> None:
    assert container.healthy(tmp_path / "check") == "its setup steps are running"


def test_a_service_is_as_old_as_its_check_file(tmp_path: Path) -> None:
    check_file, beat = tmp_path / "check", tmp_path / "beat"
    check_file.write_text(to_json(HeartbeatFile(beat, 60.0)))
    beat.touch()
    now = time.time()
    os.utime(check_file, (now - 10, now - 10))
    assert container.healthy(check_file) == 0
    os.utime(beat, (now - 20, now - 20))
    assert container.healthy(check_file) == "it has not started working yet", (
        "a heartbeat from before the restart does not count"
    )


def test_the_health_check_imports_no_heavy_module(tmp_path: Path) -> None:
    probe = (
        "import sys, pathlib; from fennel_core.apps import container; "
        "container.healthy(pathlib.Path(sys.argv[1]));"
        "print(*sorted({'pydantic', 'psycopg', 'confluent_kafka', 'click'} & sys.modules.keys()))"
    )
    check_file = tmp_path / "check"
    check_file.write_text(to_json(HttpResponds("http://127.0.0.1:1")))
    done = subprocess.run(  # noqa: S603  # a program of this test, and no shell
        [sys.executable, "-c", probe, str(check_file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "usage"),
        (["run"], "usage"),
        (
            ["prepare", "make-coffee"],
            "unknown step `make-coffee`; valid steps: make-postgres-cluster",
        ),
    ],
)
def test_unknown_words_are_refused_with_the_valid_ones(
    tmp_path: Path, words: list[str], message: str
) -> None:
    assert str(container.main(words, tmp_path / "check")).startswith(message)
