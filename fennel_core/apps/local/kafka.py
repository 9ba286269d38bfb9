"""Kafka from Maven's jars: one KRaft node, broker and controller, with single-replica topics."""

import subprocess
from collections.abc import Mapping
from typing import Final

from fennel_core.apps.errors import SetupFailed
from fennel_core.apps.local.file_layout import FileLayout
from fennel_core.apps.local.host_environment import HostEnvironment
from fennel_core.apps.local.platform_keys import PlatformKeys
from fennel_core.settings.model import MIB, Settings

NODE: Final = "1"
CONTROLLER_HOST: Final = "127.0.0.1"
"""The address of the controller, which only the broker itself speaks to."""
MESSAGE_BYTES: Final = 16 * MIB
"""One message is one Arrow batch; it must hold the largest request and its positions."""
JVM: Final = ("-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-Djava.awt.headless=true")
LOGGING: Final = (
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSZ",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info",
)


def _java(layout: FileLayout, host: HostEnvironment) -> tuple[str, ...]:
    return (host.java, *JVM, *LOGGING, "-cp", f"{layout.jars / 'kafka'}/*")


def command(layout: FileLayout, host: HostEnvironment) -> tuple[str, ...]:
    return (*_java(layout, host), "kafka.Kafka", str(layout.data / "kafka" / "server.properties"))


def bind_address(settings: Settings) -> str:
    """Return the address that the broker listens for clients on."""
    return settings.host if settings.reach_by_name else settings.broker_address


def properties(settings: Settings, layout: FileLayout) -> Mapping[str, str]:
    """Return server.properties as a mapping."""
    broker = f"{bind_address(settings)}:{settings.kafka_port}"
    controller = f"{CONTROLLER_HOST}:{settings.kafka_controller_port}"
    return {
        "process.roles": "broker,controller",
        "node.id": NODE,
        "controller.quorum.voters": f"{NODE}@{controller}",
        "listeners": f"PLAINTEXT://{broker},CONTROLLER://{controller}",
        "advertised.listeners": f"PLAINTEXT://{settings.broker_address}:{settings.kafka_port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": str(layout.data / "kafka" / "logs"),
        "num.partitions": str(settings.partitions),
        # A missing topic is an error; auto-creation would hide it.
        "auto.create.topics.enable": "false",
        "default.replication.factor": "1",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "8",
        "transaction.max.timeout.ms": str(max(settings.transaction_timeout_ms, 60_000)),
        "group.initial.rebalance.delay.ms": "0",
        "message.max.bytes": str(MESSAGE_BYTES),
        "replica.fetch.max.bytes": str(MESSAGE_BYTES),
        "log.retention.ms": str(settings.kafka_retention_ms),
        "log.segment.bytes": str(256 * MIB),
        "log.index.size.max.bytes": str(1 * MIB),
        "log.cleaner.threads": "1",
        "log.cleaner.dedupe.buffer.size": str(32 * MIB),
        "num.network.threads": "2",
        "num.io.threads": "4",
        "num.recovery.threads.per.data.dir": "2",
    }


def format_storage(
    settings: Settings, layout: FileLayout, keys: PlatformKeys, host: HostEnvironment
) -> None:
    """Write the configuration and format the log folder once.

    Raises SetupFailed with the tool's last line.
    """
    folder = layout.data / "kafka"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = folder / "server.properties"
    file.write_text(
        "".join(f"{name}={value}\n" for name, value in properties(settings, layout).items())
    )
    if (folder / "logs" / "meta.properties").exists():
        return
    words = [
        *_java(layout, host),
        "kafka.tools.StorageTool",
        "format",
        "-t",
        keys.kafka_cluster_id,
        "-c",
        str(file),
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603  # a fixed list of arguments, and no shell
    if done.returncode != 0:
        raise SetupFailed(
            f"Kafka could not format {folder}: "
            f"{(done.stderr or done.stdout).strip().splitlines()[-1]}"
        )
