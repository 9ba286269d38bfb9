"""Plain secrets of connectors before a commit is stored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import pytest

from fennel_core.blueprints import stored_names
from fennel_core.blueprints.spec import Catalog, SinkBinding
from fennel_core.connections.secrets import CREDENTIAL, Sealer, SecretUnreadable, make_key_file
from fennel_core.definition.errors import SecretsNotConfigured
from fennel_core.definition.reseal import resealed_catalog
from fennel_core.definition.sealed_request import reseal_body, seal_request
from fennel_core.graph.entity_graph import build_graph
from fennel_core.graph.rebase import units
from fennel_core.vocab.ids import DatasetName, TopicName, WorkspaceId
from fennel_core.wire.connectors import (
    S3,
    Cdc,
    Http,
    HttpPath,
    JsonFormat,
    KafkaTopic,
    Login,
    PlainSecret,
    S3Table,
    SealedSecret,
    Sink,
)
from fennel_core.wire.decode import decode_sync_request
from fennel_core.wire.gen import services_pb2
from tests.support.compiler_inputs import schema
from tests.support.definition_world import recorded
from tests.support.ingest_world import binding, catalog, source
from tests.support.source_world import CONNECTOR

SHOP = WorkspaceId("shop")
CONNECTORS = recorded("connectors")
SECRETS = {
    *("p", "mysql-password", "secret-key", "token", "certificate", "useSSL=true"),
    *("data", "*/*"),
    '{"type": "service_account"}',
}
"""Every plain secret of the recorded connectors; their user names and hosts are no secrets."""


@pytest.fixture
def sealer(tmp_path: Path) -> Sealer:
    make_key_file(tmp_path / "key")
    return Sealer.from_file(tmp_path / "key")


def values_in(value: object) -> Iterator[object]:
    """Yield every value inside a decoded message."""
    yield value
    if isinstance(value, tuple):
        for item in value:
            yield from values_in(item)
    elif is_dataclass(value):
        for each in fields(value):
            yield from values_in(getattr(value, each.name))


def plain_in(body: bytes) -> set[str]:
    found = values_in(decode_sync_request(body))
    return {value.value for value in found if isinstance(value, PlainSecret)}


def sealed_in(body: bytes) -> list[SealedSecret]:
    found = values_in(decode_sync_request(body))
    return [value for value in found if isinstance(value, SealedSecret)]


def test_every_plain_secret_is_replaced_by_one_that_only_the_key_opens(sealer: Sealer) -> None:
    assert plain_in(CONNECTORS) >= SECRETS
    stored = seal_request(CONNECTORS, SHOP, sealer).stored
    assert plain_in(stored).isdisjoint(SECRETS)
    for secret in SECRETS - {"p", "token", "data", "*/*"}:
        assert secret.encode() not in stored
    opened = {sealer.open(SHOP, CREDENTIAL, s.token.encode()) for s in sealed_in(stored)}
    assert opened == SECRETS


def test_equal_commits_stay_equal_although_every_encryption_differs(sealer: Sealer) -> None:
    first, second = (seal_request(CONNECTORS, SHOP, sealer) for _ in range(2))
    assert first.stored != second.stored
    assert first.comparable == second.comparable
    one, two = (units(build_graph(decode_sync_request(s.stored))) for s in (first, second))
    assert one == two
    other = seal_request(CONNECTORS.replace(b"mysql-password", b"mysql-passw0rd"), SHOP, sealer)
    assert other.comparable != first.comparable, "a changed password is a change"
    for each in sealed_in(first.stored):
        assert each.token.encode() not in first.comparable


def test_without_a_key_a_plain_secret_is_refused_and_other_commits_are_not() -> None:
    with pytest.raises(SecretsNotConfigured):
        seal_request(CONNECTORS, SHOP, None)
    features = recorded("featuresets")
    assert seal_request(features, SHOP, None).stored == features
    assert seal_request(b"\xff" * 40, SHOP, None).stored == b"\xff" * 40


def with_parameters(body: bytes) -> bytes:
    """Return a commit with passwords inside longer texts."""
    message = services_pb2.SyncRequest.FromString(body)
    kafka = message.extdbs.add(name="events").kafka
    kafka.sasl_jaas_config = 'PlainLoginModule required password="in-jaas";'
    message.extdbs.add(name="db").postgres.jdbc_params = "user=me&password=in-jdbc"
    http = message.sources.add().table.http_path
    http.db.http.host, http.endpoint = "api.example", "rows"
    http.headers["Authorization"] = "Bearer in-header"
    return bytes(message.SerializeToString(deterministic=True))


def test_a_text_that_may_contain_a_password_is_sealed_as_a_whole(sealer: Sealer) -> None:
    body = with_parameters(b"")
    stored = seal_request(body, SHOP, sealer).stored
    for secret in (b"in-jaas", b"in-jdbc", b"in-header"):
        assert secret in body
        assert secret not in stored
    assert b"api.example" in stored


def test_after_a_change_of_the_key_the_new_one_opens_everything(
    sealer: Sealer, tmp_path: Path
) -> None:
    body = with_parameters(CONNECTORS)
    before = seal_request(body, SHOP, sealer)
    make_key_file(tmp_path / "new")
    new, old = (tmp_path / "new").read_text(), (tmp_path / "key").read_text()
    (tmp_path / "key").write_text(new + old)
    changed = reseal_body(before.stored, SHOP, Sealer.from_file(tmp_path / "key"))
    only_new = Sealer.from_file(tmp_path / "new")
    resealed = sealed_in(changed)
    assert len(resealed) >= len(SECRETS)
    assert {only_new.open(SHOP, CREDENTIAL, s.token.encode()) for s in resealed} >= SECRETS
    with pytest.raises(SecretUnreadable):
        reseal_body(before.stored, SHOP, only_new)
    again = seal_request(body, SHOP, only_new).stored
    one, two = (units(build_graph(decode_sync_request(s))) for s in (changed, again))
    assert one == two, "the same commit, sent again, is no change"


def test_the_passwords_of_streams_and_sinks_are_sealed_again_inside_a_catalog(
    sealer: Sealer, tmp_path: Path
) -> None:
    token = sealer.seal(SHOP, CREDENTIAL, "password").decode()
    login = Login(PlainSecret("ann"), SealedSecret(sealer.fingerprint(SHOP, "password"), token))
    table = KafkaTopic(replace(CONNECTOR, login=login), "orders", JsonFormat())
    name = DatasetName("Users")
    written = Sink(name, 1, table, Cdc.DEBEZIUM, None, None, False, False, (), None, None)
    topic = TopicName("w.topic.users.1")
    before = replace(
        catalog(binding(of=source(table=table)), binding(dataset="Others")),
        sinks=(SinkBinding(TopicName("w.sink.a.1"), written, name, schema("user"), (), topic),),
    )
    make_key_file(tmp_path / "new")
    keys = (tmp_path / "new").read_text() + (tmp_path / "key").read_text()
    (tmp_path / "key").write_text(keys)
    both, new = Sealer.from_file(tmp_path / "key"), Sealer.from_file(tmp_path / "new")
    after = stored_names.loads(resealed_catalog(stored_names.dumps(before), SHOP, both), Catalog)
    for changed in (after.sources[0].source.table, after.sinks[0].sink.table):
        assert isinstance(changed, KafkaTopic)
        found = changed.db.login
        assert found.user == PlainSecret("ann")
        assert isinstance(found.password, SealedSecret)
        assert new.open(SHOP, CREDENTIAL, found.password.token.encode()) == "password"
    assert after.sources[1] == before.sources[1]


def test_headers_of_http_sinks_and_keys_of_buckets_are_sealed_again_inside_a_catalog(
    sealer: Sealer, tmp_path: Path
) -> None:
    token = sealer.seal(SHOP, CREDENTIAL, "password").decode()
    sealed = SealedSecret(sealer.fingerprint(SHOP, "password"), token)
    hooks = Http("hooks", PlainSecret("https://a.example"), "/health", sealed)
    table = HttpPath(hooks, "/rows", None, (("Authorization", sealed),))
    name, topic = DatasetName("Users"), TopicName("w.topic.users.1")
    written = Sink(name, 1, table, Cdc.DEBEZIUM, None, None, False, False, (), None, None)
    lake = S3("lake", None, Login(PlainSecret("id"), sealed))
    files = S3Table(lake, "shop", "orders/", "", "csv", "", (), False, None)
    before = replace(
        catalog(binding(of=source(table=files))),
        sinks=(SinkBinding(TopicName("w.sink.a.1"), written, name, schema("user"), (), topic),),
    )
    make_key_file(tmp_path / "new")
    keys = (tmp_path / "new").read_text() + (tmp_path / "key").read_text()
    (tmp_path / "key").write_text(keys)
    both, new = Sealer.from_file(tmp_path / "key"), Sealer.from_file(tmp_path / "new")
    after = stored_names.loads(resealed_catalog(stored_names.dumps(before), SHOP, both), Catalog)
    sent, read = after.sinks[0].sink.table, after.sources[0].source.table
    assert isinstance(sent, HttpPath)
    assert isinstance(sent.db, Http)
    assert isinstance(read, S3Table)
    assert isinstance(read.db, S3)
    for found in (sent.headers[0][1], sent.db.ca_cert, read.db.login.password):
        assert isinstance(found, SealedSecret)
        assert new.open(SHOP, CREDENTIAL, found.token.encode()) == "password"
