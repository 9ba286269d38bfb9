"""Clients of Kafka authenticate with the settings of their process."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from pydantic import SecretStr, ValidationError

from fennel_core.connections.kafka import (
    client_config,
    consumer_config,
    jvm_security_options,
    producer_config,
)
from fennel_core.settings.model import Settings


def test_a_plain_connection_needs_nothing() -> None:
    assert set(client_config(Settings())) == {"bootstrap.servers", "log.connection.close"}
    assert jvm_security_options(Settings()) == {}


def test_every_client_has_the_user_of_its_process(tmp_path: Path) -> None:
    settings = Settings(
        kafka_security="SASL_SSL",
        kafka_user="ingest",
        kafka_password=SecretStr("canary"),
        kafka_ca_file=tmp_path / "ca.pem",
    )
    wanted = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "ingest",
        "sasl.password": "canary",
        "ssl.ca.location": str(tmp_path / "ca.pem"),
    }
    for config in (
        client_config(settings),
        consumer_config(settings),
        producer_config(settings, "id"),
    ):
        assert config.items() >= wanted.items()


def test_librdkafka_accepts_the_configuration() -> None:
    settings = Settings(
        kafka_security="SASL_PLAINTEXT",
        kafka_sasl="PLAIN",
        kafka_user="ingest",
        kafka_password=SecretStr("x"),
        kafka_bootstrap="127.0.0.1:1",
    )
    AdminClient(client_config(settings))


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [("PLAIN", "plain.PlainLoginModule"), ("SCRAM-SHA-256", "scram.ScramLoginModule")],
)
def test_the_java_client_gets_the_same_with_quoted_values(mechanism: str, module: str) -> None:
    settings = Settings(
        kafka_security="SASL_PLAINTEXT",
        kafka_sasl=mechanism,  # type: ignore[arg-type]  # one of the literals
        kafka_user="history",
        kafka_password=SecretStr('a"b\\c'),
    )
    options = jvm_security_options(settings)
    assert options["kafka.sasl.mechanism"] == mechanism
    assert options["kafka.sasl.jaas.config"] == (
        f"org.apache.kafka.common.security.{module} required "
        'username="history" password="a\\"b\\\\c";'
    )


def test_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(ValidationError):
        Settings(kafka_security="TLS")  # type: ignore[arg-type]  # the point of the test
