"""What people give of a connector becomes one of the protocol, or a sentence that says why not."""

from __future__ import annotations

import pytest

from fennel_core.connections.secrets import CREDENTIAL, Sealer, make_key_file
from fennel_core.connectors.errors import PropertiesInvalid
from fennel_core.connectors.properties import PROPERTIES, message_of, shown
from fennel_core.connectors.references import Access, address_of, kind_of
from fennel_core.definition.errors import SecretsNotConfigured
from fennel_core.definition.sealed_request import reseal_connector, seal_connector
from fennel_core.vocab.ids import WorkspaceId
from fennel_core.wire.connectors import SealedSecret
from fennel_core.wire.decode_connectors import decode_database
from fennel_core.wire.gen import connector_pb2

SHOP = WorkspaceId("shop")
KAFKA = {
    "bootstrap_servers": "broker:9092",
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "PLAIN",
    "sasl_plain_username": "ann",
    "sasl_plain_password": "first-word",
}
DATABASE = {"host": "db", "db_name": "shop", "username": "ann", "password": "first-word"}
GIVEN = {
    "kafka": KAFKA,
    "postgres": DATABASE | {"jdbc_params": "sslmode=require"},
    "mysql": DATABASE | {"port": "3307"},
    "s3": {"aws_access_key_id": "key", "aws_secret_access_key": "first-word"},
    "http": {"host": "https://hooks.example.com", "healthz": "/health", "ca_cert": "first-word"},
}
ADDRESSES = {
    "kafka": "broker:9092",
    "postgres": "db:5432/shop",
    "mysql": "db:3307/shop",
    "s3": "",
    "http": "https://hooks.example.com",
}


@pytest.fixture
def sealer(tmp_path) -> Sealer:
    make_key_file(tmp_path / "key")
    return Sealer.from_file(tmp_path / "key")


@pytest.mark.parametrize("kind", PROPERTIES)
def test_secrets_are_sealed_and_nothing_shows_them(kind: str, sealer: Sealer) -> None:
    stored = seal_connector(message_of("shop", kind, GIVEN[kind]), SHOP, sealer)
    assert b"first-word" not in stored
    assert b"sslmode" not in stored
    database = decode_database(connector_pb2.ExtDatabase.FromString(stored))
    assert isinstance(database, Access)
    assert (database.name, kind_of(database)) == ("shop", kind)
    assert address_of(database) == ADDRESSES[kind]
    public = shown(stored)
    assert public.keys() >= GIVEN[kind].keys()
    assert "first-word" not in str(public)
    secret = next(each for each in PROPERTIES[kind] if each.secret)
    assert public[secret.name] == "(set)"


def test_a_rotation_keeps_what_is_not_given(sealer: Sealer) -> None:
    before = seal_connector(message_of("shop", "kafka", KAFKA), SHOP, sealer)
    message = message_of("shop", "kafka", {"sasl_plain_password": "second-word"}, before)
    after = decode_database(
        connector_pb2.ExtDatabase.FromString(seal_connector(message, SHOP, sealer))
    )
    was = decode_database(connector_pb2.ExtDatabase.FromString(before))
    assert isinstance(was, Access)
    assert after != was
    assert (after.name, address_of(after)) == (was.name, address_of(was))  # type: ignore[arg-type]  # of Kafka
    password = after.login.password  # type: ignore[union-attr]  # of Kafka
    assert isinstance(password, SealedSecret)
    assert sealer.open(SHOP, CREDENTIAL, password.token.encode()) == "second-word"
    assert shown(message.SerializeToString())["sasl_plain_username"] == "ann"


def test_the_same_credentials_again_are_no_change(sealer: Sealer) -> None:
    twice = [seal_connector(message_of("s", "kafka", KAFKA), SHOP, sealer) for _ in range(2)]
    assert twice[0] != twice[1]
    one, two = (decode_database(connector_pb2.ExtDatabase.FromString(each)) for each in twice)
    assert one == two


def test_connectors_are_sealed_again_with_the_first_key(tmp_path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    make_key_file(old)
    make_key_file(new)
    first = Sealer.from_file(old)
    stored = seal_connector(message_of("shop", "kafka", KAFKA), SHOP, first)
    both = tmp_path / "both"
    both.write_bytes(new.read_bytes() + old.read_bytes())
    both.chmod(0o600)
    again = reseal_connector(stored, SHOP, Sealer.from_file(both))
    database = decode_database(connector_pb2.ExtDatabase.FromString(again))
    password = database.login.password  # type: ignore[union-attr]  # of Kafka
    assert isinstance(password, SealedSecret)
    token = password.token.encode()
    assert Sealer.from_file(new).open(SHOP, CREDENTIAL, token) == "first-word"


def test_secrets_need_a_key() -> None:
    with pytest.raises(SecretsNotConfigured):
        seal_connector(message_of("shop", "kafka", KAFKA), SHOP, None)


@pytest.mark.parametrize(
    ("kind", "given", "says"),
    [
        ("redis", {}, "no kind `redis` of connectors; kinds: kafka, postgres"),
        ("kafka", KAFKA | {"topic": "x"}, "property `topic` is none of a kafka connector"),
        ("kafka", {}, "`bootstrap_servers` is missing; property `security_protocol` is missing"),
        ("kafka", KAFKA | {"bootstrap_servers": "broker"}, "address `broker` without a port"),
        ("kafka", KAFKA | {"security_protocol": "SSL"}, "security protocol `SSL`"),
        ("kafka", KAFKA | {"sasl_mechanism": "GSSAPI"}, "SASL mechanism `GSSAPI`"),
        ("kafka", KAFKA | {"security_protocol": "PLAINTEXT"}, "without effect with `PLAINTEXT`"),
        ("kafka", KAFKA | {"sasl_plain_password": "sealed:a:b"}, "begins as stored secrets do"),
        ("kafka", KAFKA | {"sasl_plain_password": ""}, "`sasl_plain_password` is empty"),
        ("postgres", DATABASE | {"port": "x"}, "`port` is no port: x"),
        ("postgres", DATABASE | {"port": 0}, "`port` is no port: 0"),
        ("postgres", DATABASE | {"port": 70_000}, "`port` is no port: 70000"),
        ("postgres", DATABASE | {"host": "a,b"}, "has the host `a,b`"),
        ("postgres", DATABASE | {"username": 1}, "`username` is empty or no text"),
        ("s3", {"aws_access_key_id": "k"}, "`aws_secret_access_key` is missing"),
        ("http", {"host": "ftp://x", "healthz": "/h"}, "`host` that is no address"),
        ("http", {"host": "https://x", "healthz": "/h?a"}, "the healthz `/h`"),
    ],
)
def test_what_makes_no_connector_is_named(kind: str, given: dict[str, object], says: str) -> None:
    with pytest.raises(PropertiesInvalid) as refused:
        message_of("shop", kind, given)
    assert says in str(refused.value)
    assert "first-word" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "a rotation changes one of sasl_plain_username, sasl_plain_password"),
        ({"bootstrap_servers": "b:1"}, "`bootstrap_servers` is not changed by a rotation"),
    ],
)
def test_a_rotation_changes_the_login_only(given: dict[str, object], says: str) -> None:
    before = message_of("shop", "kafka", KAFKA).SerializeToString()
    with pytest.raises(PropertiesInvalid, match=says):
        message_of("shop", "kafka", given, before)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a\nb", "-a", "..", "a" * 201])
def test_names_are_words(name: str) -> None:
    with pytest.raises(PropertiesInvalid, match="a name has 1 to 200"):
        message_of(name, "kafka", KAFKA)
