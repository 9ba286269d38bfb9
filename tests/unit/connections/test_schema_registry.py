"""What a registry responds decides whether messages are at fault: the two are never confused."""

import time

import httpx
import pytest

from fennel_core.connections.schema_registry import (
    PAUSES_S,
    RESPONSE_BYTES,
    RegisteredSchema,
    RegistryClient,
    SchemaReference,
    SchemaRegistryUnusable,
    SchemaUnknown,
    imports_of,
)
from fennel_core.wire.connectors import (
    BasicAuth,
    Login,
    PlainSecret,
    SchemaRegistry,
    SealedSecret,
    TokenAuth,
)
from tests.support.ports import free_port
from tests.support.schema_registry import MemoryRegistry, basic, http_registry

SCHEMA = {"type": "record", "name": "R", "fields": []}


def client(url: str, auth: tuple[str, str] | None = None) -> RegistryClient:
    return RegistryClient(url, auth, sleep=lambda _: None)


def test_a_status_that_passes_is_tried_again_and_others_are_not() -> None:
    with http_registry() as registry:
        number = registry.memory.add(SCHEMA)
        registry.statuses = [503, 429]
        assert client(registry.url).by_id(number).type == "AVRO"
        assert len(registry.requests) == 3
        registry.statuses = [503] * 9
        with pytest.raises(SchemaRegistryUnusable, match="status 503"):
            client(registry.url).by_id(number)
        assert len(registry.statuses) == 9 - 1 - len(PAUSES_S)
        for status, text in ((401, "refuses the credentials"), (400, "status 400"), (302, "302")):
            registry.statuses, registry.requests = [status], []
            with pytest.raises(SchemaRegistryUnusable, match=text):
                client(registry.url).by_id(number)
            assert len(registry.requests) == 1


def test_only_the_registrys_own_word_makes_a_schema_unknown() -> None:
    with http_registry() as registry:
        with pytest.raises(SchemaUnknown):
            client(registry.url).by_id(7)
        with pytest.raises(SchemaUnknown):
            client(registry.url).version("a/b", 1)
        assert registry.requests[-1] == "/subjects/a%2Fb/versions/1?deleted=true"
        with pytest.raises(SchemaRegistryUnusable, match="no such path"):
            client(registry.url + "/wrong").by_id(7)
        registry.memory.add(SCHEMA)
        for body in (b"<html>", b"[]", b'{"id": 1}', b"\xff"):
            registry.body = body
            with pytest.raises(SchemaRegistryUnusable, match="no schema"):
                client(registry.url).by_id(1)
        registry.body = b" " * (RESPONSE_BYTES + 1)
        with pytest.raises(SchemaRegistryUnusable, match="more than"):
            client(registry.url).by_id(1)


def test_a_registry_that_is_away_is_given_up_within_the_deadline() -> None:
    began = time.monotonic()
    away = RegistryClient(f"http://127.0.0.1:{free_port()}", deadline_s=0.2)
    with pytest.raises(SchemaRegistryUnusable, match="cannot be used"):
        away.by_id(1)
    assert time.monotonic() - began < 2


def test_a_response_that_cannot_be_decoded_says_nothing_about_messages() -> None:
    with http_registry() as registry:
        registry.memory.add(SCHEMA)
        registry.body, registry.encoding = b"no gzip", "gzip"
        with pytest.raises(SchemaRegistryUnusable, match="DecodingError"):
            client(registry.url).by_id(1)


@pytest.mark.parametrize("host", ["a" * 64, "registry..example"])
def test_a_name_that_no_host_has_is_an_address_that_is_not_valid(host: str) -> None:
    with pytest.raises(SchemaRegistryUnusable, match="address is not valid"):
        client(f"http://{host}:8081").by_id(1)


@pytest.mark.parametrize(
    ("auth", "header"),
    [
        (None, None),
        (BasicAuth(Login(PlainSecret("ann"), SealedSecret("f", "t"))), basic("ann", "opened")),
        (TokenAuth(SealedSecret("f", "t")), "Bearer opened"),
    ],
)
def test_credentials_are_opened_and_sent(auth, header) -> None:
    with http_registry() as registry:
        registry.auth = header
        of = SchemaRegistry(registry.url + "/", auth)
        RegistryClient.of(of, lambda _: "opened").check("AVRO")
        if header is not None:
            with pytest.raises(SchemaRegistryUnusable, match="refuses the credentials"):
                client(registry.url, ("ann", "wrong")).check("AVRO")


def test_the_check_of_a_registry_asks_for_the_kind_of_schema() -> None:
    with http_registry() as registry:
        with pytest.raises(SchemaRegistryUnusable, match="no schemas of type XML"):
            client(registry.url).check("XML")
        registry.body = b'{"a": 1}'
        with pytest.raises(SchemaRegistryUnusable, match="as a schema registry does"):
            client(registry.url).check("AVRO")


def test_imports_come_before_what_imports_them_and_a_cycle_is_refused() -> None:
    registry = MemoryRegistry()
    registry.add("c", subject="c")
    registry.add("b", subject="b", references=(SchemaReference("c", "c", 1),))
    top = RegisteredSchema(
        "a", references=(SchemaReference("b", "b", 1), SchemaReference("c", "c", 1))
    )
    assert [each.name for each in imports_of(top, registry)] == ["c", "b"]
    registry.add("d", subject="d", references=(SchemaReference("e", "e", 1),))
    registry.add("e", subject="e", references=(SchemaReference("d", "d", 1),))
    cycle = RegisteredSchema("a", references=(SchemaReference("d", "d", 1),))
    with pytest.raises(SchemaUnknown, match="cycle"):
        imports_of(cycle, registry)


def test_a_reference_to_a_deleted_subject_is_read() -> None:
    with http_registry() as registry:
        registry.memory.add(SCHEMA, subject="point")
        registry.memory.deleted.add("point")
        assert client(registry.url).version("point", 1).type == "AVRO"


@pytest.mark.parametrize(
    "auth", ["hidden\n", "hidden\r\nX: y", "hidd\xe9n", ("ann", "hidden\n"), ("hidden\0", "")]
)
def test_credentials_that_cannot_be_sent_are_refused_and_not_shown(auth) -> None:
    with http_registry() as registry:
        with pytest.raises(SchemaRegistryUnusable, match="cannot be sent") as refused:
            RegistryClient(registry.url, auth).check("AVRO")
        assert "hid" not in str(refused.value)
        assert registry.requests == []


def test_an_error_of_the_protocol_shows_no_header(monkeypatch) -> None:
    def stream(*_: object, **__: object) -> object:
        raise httpx.LocalProtocolError("Illegal header value b'Bearer hidden'")

    made = client("http://127.0.0.1:1")
    monkeypatch.setattr(made._client, "stream", stream)
    with pytest.raises(SchemaRegistryUnusable, match="LocalProtocolError") as refused:
        made.by_id(1)
    assert "hidden" not in str(refused.value)
