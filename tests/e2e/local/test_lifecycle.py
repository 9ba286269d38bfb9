"""The launcher with real processes: a second platform with its own ports and data folder.

Postgres, Kafka and S3 are enough to show its behaviour; all other services are rows of the same
table.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from fennel_core.apps.local.processes import is_running
from tests.support.own_platform import PORTS
from tests.support.polling import eventually_sync
from tests.support.ports import free_ports

SERVICES = "postgres,kafka,s3"


class Platform:
    """A separate platform, controlled through the command line."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
        ours = {f"FENNEL_{name}_PORT": str(port) for name, port in self.ports.items()} | {
            "FENNEL_DATA_DIR": str(data)
        }
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith("FENNEL_")
        } | ours

    def run(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "fennel_core.apps.cli", *words]
        return subprocess.run(  # noqa: S603  # a program of this test, and no shell
            command,
            env=self.environment | more,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    def states(self) -> dict[str, str]:
        return {
            row["service"]: row["state"]
            for row in json.loads(self.run("status", "--json").stdout)["services"]
        }

    def pids(self) -> dict[str, int]:
        return {
            path.name: json.loads(path.read_text())["pid"]
            for path in (self.data / "pids").iterdir()
        }

    def settings(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in (self.data / "env").read_text().splitlines())


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    platform = Platform(tmp_path_factory.mktemp("platform"))
    try:
        done = platform.run("up", "--only", SERVICES)
        assert done.returncode == 0, done.stdout + done.stderr
        yield platform
    finally:
        platform.run("down")


def test_started_services_become_ready_and_status_shows_port_and_log(ours: Platform) -> None:
    states = ours.states()
    assert [states[name] for name in SERVICES.split(",")] == ["ready"] * 3
    assert states["airflow-api"] == states["query"] == "stopped"
    shown = ours.run("status").stdout
    assert str(ours.ports["KAFKA"]) in shown
    assert "kafka.log" in shown


def test_up_again_keeps_what_is_running(ours: Platform) -> None:
    before = ours.pids()
    done = ours.run("up", "--only", SERVICES)
    assert done.returncode == 0
    assert done.stdout.count("ready (was running)") == 4  # and the watchdog
    assert ours.pids() == before


def test_everything_listens_on_loopback_only(ours: Platform) -> None:
    listening = (
        Path("/proc/net/tcp").read_text().splitlines()[1:]
        + Path("/proc/net/tcp6").read_text().splitlines()[1:]
    )
    ports = set(ours.ports.values())
    found = [
        words[1]
        for line in listening
        if (words := line.split())[3] == "0A" and int(words[1].rpartition(":")[2], 16) in ports
    ]
    assert len(found) == 4  # Postgres, Kafka's two, S3
    assert not [
        address
        for address in found
        if not address.startswith("0100007F") and "FFFF00000100007F" not in address
    ]


def test_the_watchdog_restarts_a_killed_service(ours: Platform) -> None:
    before = ours.pids()["s3"]
    os.kill(before, 9)
    eventually_sync(
        lambda: ours.pids()["s3"] != before and ours.states()["s3"] == "ready",
        within_s=30,
        what="a restart of S3",
    )


def test_up_starts_a_service_that_died_without_a_watchdog(ours: Platform) -> None:
    ours.run("down", "--only", "watchdog")
    os.kill(ours.pids()["s3"], 9)
    assert ours.states()["s3"] in {"died", "not ready"}
    assert ours.run("up", "--only", SERVICES).returncode == 0
    assert ours.states()["s3"] == "ready"


def test_a_second_platform_is_refused_a_port_in_use(ours: Platform) -> None:
    """The error names the port and its owner, and no service is started."""
    other = Platform(ours.data.parent / "other")
    done = other.run("up", "--only", SERVICES, FENNEL_POSTGRES_PORT=str(ours.ports["POSTGRES"]))
    assert done.returncode == 1
    assert (
        f"Port {ours.ports['POSTGRES']}, which Postgres needs, is in use by pid "
        f"{ours.pids()['postgres']}"
    ) in done.stderr
    assert "Traceback" not in done.stderr
    assert other.pids() == {}
    assert other.run("down").stdout == "Nothing was running.\n"
    assert ours.states()["postgres"] == "ready"


def test_data_survives_down_and_up(ours: Platform) -> None:
    dsn, bootstrap = (
        ours.settings()["FENNEL_POSTGRES_DSN"],
        ours.settings()["FENNEL_KAFKA_BOOTSTRAP"],
    )
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE kept (n int)")
        connection.execute("INSERT INTO kept VALUES (42)")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("kept", 1, 1)])["kept"].result(timeout=10)
    pids = ours.pids()
    bystander = subprocess.Popen(["sleep", "60"], start_new_session=True)  # noqa: S607  # found on the PATH, as by its users

    done = ours.run("down")

    assert sorted(done.stdout.splitlines()) == [
        "stopped kafka",
        "stopped postgres",
        "stopped s3",
        "stopped watchdog",
    ]
    assert not [pid for pid in pids.values() if is_running(pid)]
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()
    assert ours.run("up", "--only", SERVICES).returncode == 0
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT n FROM kept").fetchone() == (42,)
    assert "kept" in AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10).topics


def test_a_changed_setting_restarts_only_the_affected_services(ours: Platform) -> None:
    before = ours.pids()
    moved = free_ports(1)[0]
    ours.environment["FENNEL_POSTGRES_PORT"] = str(moved)
    assert ours.run("up", "--only", SERVICES).returncode == 0
    after = ours.pids()
    assert after["postgres"] != before["postgres"]
    assert (after["kafka"], after["s3"]) == (before["kafka"], before["s3"])
    assert f":{moved}/" in ours.settings()["FENNEL_POSTGRES_DSN"]


def test_a_failed_start_shows_the_last_log_lines_and_the_next_action(ours: Platform) -> None:
    ours.run("down", "--only", "kafka")
    meta = ours.data / "kafka" / "logs" / "meta.properties"
    good = meta.read_text()
    meta.write_text(good.replace("node.id=1", "node.id=7"))
    done = ours.run("up", "--only", "kafka")
    meta.write_text(good)
    assert done.returncode == 1
    assert "Kafka did not become ready: its process ended during the start." in done.stderr
    assert "node" in done.stderr.lower()
    assert "run `fennel-core up` again" in done.stderr


def test_env_prints_shell_exports_without_passwords(ours: Platform) -> None:
    done = ours.run("env")
    assert done.stdout == (
        f"export FENNEL_URL=http://127.0.0.1:{ours.ports['QUERY']}\nexport FENNEL_TOKEN=dev-demo\n"
    )
    script = ours.run("env", "--all").stdout + 'echo "$FENNEL_S3_ENDPOINT"'
    everything = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)  # noqa: S603, S607  # a program of this test, and no shell; found on the PATH, as by its users
    assert everything.stdout == f"http://127.0.0.1:{ours.ports['S3']}\n"


def test_ctrl_c_stops_waiting_and_keeps_every_record(ours: Platform) -> None:
    ours.run("down")
    command = [sys.executable, "-m", "fennel_core.apps.cli", "up", "--only", SERVICES]
    waiting = subprocess.Popen(  # noqa: S603  # a program of this test, and no shell
        command,
        env=ours.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert waiting.stdout is not None
    while "Kafka" not in (line := waiting.stdout.readline()) or "starting" not in line:
        assert line, "`up` ended before Kafka was started"
    waiting.send_signal(signal.SIGINT)
    _, message = waiting.communicate(timeout=20)
    assert waiting.returncode == 1
    assert message.startswith("Stopped waiting. The started services keep running")
    started = {name for name, pid in ours.pids().items() if is_running(pid)}
    assert started
    assert {
        line.removeprefix("stopped ") for line in ours.run("down").stdout.splitlines()
    } == started


def test_clean_stops_and_deletes_everything(ours: Platform) -> None:
    assert ours.run("clean", "--yes").returncode == 0
    assert list(ours.data.iterdir()) == []
