"""A real Kafka broker for tests, with SCRAM users and ACLs."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from pydantic import SecretStr

from fennel_core.connections.kafka import client_config
from fennel_core.settings.model import Settings
from tests.support.polling import eventually_sync
from tests.support.ports import free_ports

JARS = Path(__file__).parents[2] / ".fennel" / "jars" / "kafka"
ADMIN = "admin"
PASSWORD = "test-secret"  # noqa: S105  # a fixed value of a test
CLUSTER = "AAAAAAAAAAAAAAAAAAAAAA"
JAVA = ("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{JARS}/*")


def settings_of(port: int, user: str, password: str) -> Settings:
    return Settings(
        kafka_bootstrap=f"127.0.0.1:{port}",
        kafka_security="SASL_PLAINTEXT",
        kafka_user=user,
        kafka_password=SecretStr(password),
    )


def properties(folder: Path, port: int, controller: int) -> dict[str, str]:
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"SASL_PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"SASL_PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "SASL_PLAINTEXT",
        "listener.security.protocol.map": ("CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT"),
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
        "listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config": (
            f'{login[:-1]} username="{ADMIN}" password="{PASSWORD}";'
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{ADMIN};User:ANONYMOUS",
        "log.dirs": str(folder / "logs"),
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "1",
    }


@pytest.fixture(scope="module")
def secured_kafka() -> Iterator[Settings]:
    """The settings of the administrator of a broker that starts empty."""
    with secured_broker() as settings:
        yield settings


@contextmanager
def secured_broker(**more: str) -> Iterator[Settings]:
    """Run a broker that starts empty, and yield the settings of its administrator.

    `more`: properties with `_` for each dot.
    """
    assert any(JARS.glob("kafka-server-*.jar")), "Kafka's jars are missing: run `make jars`"
    folder = Path(tempfile.mkdtemp(prefix="fennel-kafka-"))
    port, controller = free_ports(2)
    file = folder / "server.properties"
    lines = properties(folder, port, controller)
    lines |= {name.replace("_", "."): value for name, value in more.items()}
    file.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    scram = f"SCRAM-SHA-512=[name={ADMIN},password={PASSWORD}]"
    words = (*JAVA, "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(file))
    subprocess.run([*words, "--add-scram", scram], check=True, capture_output=True)  # noqa: S603  # a fixed list of arguments, and no shell
    settings = settings_of(port, ADMIN, PASSWORD)
    with (folder / "log").open("wb") as log:
        broker = subprocess.Popen([*JAVA, "kafka.Kafka", str(file)], stdout=log, stderr=log)  # noqa: S603  # a program of this test, and no shell

    def responds() -> bool:
        assert broker.poll() is None, (folder / "log").read_text()
        try:
            client = AdminClient(client_config(settings) | {"log_level": 0})
            return bool(client.list_topics(timeout=5).brokers)
        except KafkaException:
            return False

    try:
        eventually_sync(responds, within_s=120, interval_s=0.5, what="the broker responds")
        yield settings
    finally:
        broker.kill()
        broker.wait()
        shutil.rmtree(folder, ignore_errors=True)
