"""The contract of a schema registry: our twin, and Apicurio's over Confluent's API.

Apicurio is started from Maven's local repository, in memory:

    mvn dependency:get -Dtransitive=false \
        -Dartifact=io.apicurio:apicurio-registry-app:3.0.9:tar.gz:all
"""

from __future__ import annotations

import os
import signal
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from fennel_core.connections.schema_registry import (
    RegistryClient,
    SchemaReference,
    SchemaRegistryUnusable,
    SchemaUnknown,
    imports_of,
)
from fennel_core.sources.avro import compile_avro
from fennel_core.sources.framed import FramedDecoder
from fennel_core.sources.protobuf import compile_protobuf
from tests.support.polling import eventually_sync
from tests.support.ports import free_ports
from tests.support.schema_registry import framed, http_registry

VERSION = "3.0.9"
HOME = Path(os.environ.get("MAVEN_REPO", str(Path.home() / ".m2" / "repository")))
ARCHIVE = (
    HOME
    / "io/apicurio/apicurio-registry-app"
    / VERSION
    / f"apicurio-registry-app-{VERSION}-all.tar.gz"
)
POINT = '{"type":"record","name":"Point","namespace":"geo","fields":[{"name":"x","type":"int"}]}'
AT = '{"type":"record","name":"At","fields":[{"name":"at","type":"geo.Point"}]}'
PROTO_POINT = 'syntax = "proto3"; message Point { int32 x = 1; }'
PROTO_AT = 'syntax = "proto3"; import "point.proto"; message At { Point at = 1; }'
Register = Callable[[str, str, str, Sequence[SchemaReference]], int]


@dataclass
class Served:
    url: str
    register: Register


@pytest.fixture(scope="module", params=["twin", "apicurio"])
def registry(request: pytest.FixtureRequest, tmp_path_factory) -> Iterator[Served]:
    if request.param == "twin":
        with http_registry() as twin:

            def register(
                subject: str, text: str, kind: str, references: Sequence[SchemaReference]
            ) -> int:
                return twin.memory.add(text, kind, subject, tuple(references))

            yield Served(twin.url, register)
        return
    if not ARCHIVE.exists():
        pytest.skip(f"Apicurio's registry is not at {ARCHIVE}: see this module")
    folder = tmp_path_factory.mktemp("apicurio")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    (jar,) = folder.glob("*-runner.jar")
    port, management = free_ports(2)
    process = subprocess.Popen(  # noqa: S603 - a program of the test's own
        [
            "/usr/bin/env",
            "java",
            "-Xmx384m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            f"-Dquarkus.http.port={port}",
            "-Dquarkus.http.host=127.0.0.1",
            f"-Dquarkus.management.port={management}",
            "-jar",
            str(jar),
        ],
        cwd=jar.parent,
        stdout=(folder / "log").open("wb"),
        stderr=subprocess.STDOUT,
    )
    url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
    try:
        eventually_sync(lambda: _is_up(url), within_s=120, what="the registry responds")
        yield Served(url, lambda *given: _registered(url, *given))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def _is_up(url: str) -> bool:
    try:
        return httpx.get(f"{url}/schemas/types", timeout=2).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def _registered(
    url: str, subject: str, text: str, kind: str, references: Sequence[SchemaReference]
) -> int:
    body = {
        "schema": text,
        "schemaType": kind,
        "references": [
            {"name": r.name, "subject": r.subject, "version": r.version} for r in references
        ],
    }
    response = httpx.post(f"{url}/subjects/{subject}/versions", json=body, timeout=20)
    response.raise_for_status()
    return int(response.json()["id"])


def test_a_registry_has_schemas_by_id_and_by_version(registry: Served) -> None:
    client = RegistryClient(registry.url)
    client.check("AVRO")
    client.check("PROTOBUF")
    with pytest.raises(SchemaRegistryUnusable, match="no schemas of type"):
        client.check("XML")
    number = registry.register("point", POINT, "AVRO", ())
    assert client.by_id(number).type == "AVRO"
    assert client.version("point", 1).text == client.by_id(number).text
    for unknown in (lambda: client.by_id(987654), lambda: client.version("nothing", 1)):
        with pytest.raises(SchemaUnknown):
            unknown()
    with pytest.raises(SchemaRegistryUnusable):
        RegistryClient(registry.url + "/wrong").by_id(number)


def test_avro_with_references_is_decoded(registry: Served) -> None:
    registry.register("point", POINT, "AVRO", ())
    number = registry.register("at", AT, "AVRO", (SchemaReference("geo.Point", "point", 1),))
    client = RegistryClient(registry.url)
    assert [each.name for each in imports_of(client.by_id(number), client)] == ["geo.Point"]
    decode = FramedDecoder(client, compile_avro, sleep=lambda _: None)
    found = decode([framed(number, b"\x0a"), framed(987654, b"")])
    assert found.rows == [{"at": {"x": 5}}]
    assert "schema 987654" in found.unreadable[0].reason


def test_protobuf_with_imports_is_decoded(registry: Served) -> None:
    registry.register("p-point", PROTO_POINT, "PROTOBUF", ())
    number = registry.register(
        "p-at", PROTO_AT, "PROTOBUF", (SchemaReference("point.proto", "p-point", 1),)
    )
    decode = FramedDecoder(RegistryClient(registry.url), compile_protobuf)
    assert decode([framed(number, b"\0\x0a\x02\x08\x05")]).rows == [{"at": {"x": 5}}]
