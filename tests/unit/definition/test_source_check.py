"""Streams that cannot be read are found before a commit is accepted."""

from dataclasses import replace

import pytest

from fennel_core.blueprints.asset_names import is_asset_name
from fennel_core.connections import external_kafka
from fennel_core.connections.external_kafka import ExternalKafka, describe_topic, opened
from fennel_core.connections.secrets import CREDENTIAL, Sealer, make_key_file
from fennel_core.definition.source_check import added_streams, source_problems
from fennel_core.graph.entity_graph import Graph
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import BranchName, WorkspaceId
from fennel_core.wire.connectors import (
    S3,
    AvroFormat,
    BasicAuth,
    FromLatest,
    JsonFormat,
    Kafka,
    KafkaTopic,
    Kinesis,
    KinesisStream,
    Login,
    PlainSecret,
    ProtobufFormat,
    S3Table,
    SchemaRegistry,
    SealedSecret,
)
from tests.support.ingest_world import binding, catalog, source
from tests.support.schema_registry import basic, http_registry

WORKSPACE = WorkspaceId("w")
# No server listens on the port 1 of this machine.
NOWHERE = Kafka("shop", "127.0.0.1:1", "PLAINTEXT", "PLAIN", None, "", Login(None, None))


def stream(topic: str = "orders", db: Kafka = NOWHERE):
    return source("Orders", table=KafkaTopic(db, topic, JsonFormat()))


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_kafka, "REQUEST_S", 1.0)


async def test_a_cluster_that_does_not_respond_is_named_with_its_dataset() -> None:
    (problem,) = await source_problems((stream(),), {}, WORKSPACE, None)
    assert (problem.code, problem.entity) == ("source-unreachable", "Orders")
    assert "`shop`" in problem.text
    assert "127.0.0.1:1" in problem.text


def test_a_source_that_the_branch_has_is_not_checked_again() -> None:
    both = (stream(), stream("others"))
    assert added_streams(Graph(sources=both), (stream(),)) == [stream("others")]


async def test_branches_must_agree_on_the_address_of_a_stream_that_they_share() -> None:
    moved = replace(NOWHERE, bootstrap_servers="127.0.0.1:2")
    main = catalog(replace(binding(), source=stream()))
    found = await source_problems((stream(db=moved),), {BranchName("main"): main}, WORKSPACE, None)
    assert [problem.code for problem in found] == ["connector-redefined", "source-unreachable"]
    assert "leads to `127.0.0.1:2`, and in branch `main` to `127.0.0.1:1`" in found[0].text
    for agreed in (stream(), stream("payments", moved)):
        (other,) = await source_problems((agreed,), {BranchName("main"): main}, WORKSPACE, None)
        assert other.code == "source-unreachable"


@pytest.mark.parametrize(
    "topic",
    ["other.raw.4f1c.12", "a.b.topic.4f1c.1", "__consumer_offsets", "fennel-audit-4f1c"],
)
async def test_topics_of_a_platform_are_no_sources(topic: str) -> None:
    (problem,) = await source_problems((stream(topic),), {}, WORKSPACE, None)
    assert problem.code == "connector-not-served"


@pytest.mark.parametrize("name", ["orders", "shop.orders.v1", "shop.raw.x", "shop.raw.x.y", "1"])
def test_other_names_are_not_those_of_assets(name: str) -> None:
    assert not is_asset_name(name)


def test_a_sealed_password_is_opened_for_both_clients(tmp_path) -> None:
    make_key_file(tmp_path / "key")
    sealer = Sealer.from_file(tmp_path / "key")
    token = sealer.seal(WORKSPACE, CREDENTIAL, 'se"cret').decode()
    sealed = SealedSecret(sealer.fingerprint(WORKSPACE, 'se"cret'), token)
    db = replace(
        NOWHERE,
        security_protocol="SASL_SSL",
        sasl_mechanism="SCRAM-SHA-512",
        login=Login(PlainSecret("ann"), sealed),
    )
    kafka = opened(db, lambda s: sealer.open(WORKSPACE, CREDENTIAL, s.token.encode()))
    assert kafka.client_config()["sasl.password"] == 'se"cret'
    jaas = kafka.spark_options()["kafka.sasl.jaas.config"]
    assert "scram.ScramLoginModule" in jaas
    assert r'password="se\"cret"' in jaas
    assert 'se"cret' not in repr(kafka)


def test_a_refused_connection_says_why() -> None:
    kafka = ExternalKafka("shop", "127.0.0.1:1", "PLAINTEXT", "", "", "")
    with pytest.raises(external_kafka.ExternalKafkaUnusable, match="refused"):
        describe_topic(kafka, "orders")


async def test_a_registry_that_cannot_be_used_is_named_with_its_dataset(tmp_path) -> None:
    key_file = tmp_path / "key"
    make_key_file(key_file)
    sealer = Sealer.from_file(key_file)
    token = sealer.seal(WORKSPACE, CREDENTIAL, "pw").decode("ascii")
    login = Login(PlainSecret("ann"), SealedSecret("f", token))
    with http_registry() as registry:
        registry.auth = basic("ann", "pw")
        for auth, codes in (
            (BasicAuth(login), ["source-unreachable"]),
            (None, ["source-unreachable", "schema-registry-unreachable"]),
        ):
            avro = AvroFormat(SchemaRegistry(registry.url, auth))
            of = source("Orders", table=KafkaTopic(NOWHERE, "orders", avro))
            found = await source_problems((of,), {}, WORKSPACE, sealer)
            assert [problem.code for problem in found] == codes
    assert "refuses the credentials" in found[1].text


async def test_branches_must_agree_on_the_format_of_a_stream() -> None:
    proto = ProtobufFormat(SchemaRegistry("http://127.0.0.1:1", None))
    of = source("Orders", table=KafkaTopic(NOWHERE, "orders", proto))
    main = catalog(replace(binding(), source=stream()))
    found = await source_problems((of,), {BranchName("main"): main}, WORKSPACE, None)
    assert found[0].code == "connector-redefined"
    assert "Protobuf" in found[0].text


def files(bucket: str, *, keys: bool = True):
    pair = Login(PlainSecret("key"), PlainSecret("other")) if keys else Login(None, None)
    table = S3Table(S3("lake", None, pair), bucket, "in/", "*", "json", "", (), False, None)
    return source("Orders", table=table)


@pytest.mark.parametrize(
    ("bucket", "keys", "code", "text"),
    [
        ("own", True, "connector-not-served", "bucket of the platform itself"),
        ("own", False, "connector-not-served", "bucket of the platform itself"),
        ("other", False, "connector-not-served", "FENNEL_SOURCE_SHARED_BUCKETS"),
        ("shared", False, "source-unreachable", "`lake`"),
        ("other", True, "source-unreachable", "`lake`"),
    ],
)
async def test_buckets_that_may_be_read_are_reached(
    bucket: str, keys: bool, code: str, text: str
) -> None:
    settings = Settings(
        s3_endpoint="http://127.0.0.1:1", s3_bucket="own", source_shared_buckets=("shared",)
    )
    (problem,) = await source_problems((files(bucket, keys=keys),), {}, WORKSPACE, None, settings)
    assert problem.code == code
    assert text in problem.text
    (refused,) = await source_problems((files(bucket, keys=keys),), {}, WORKSPACE, None)
    assert refused.code == "connector-not-served"


def test_files_that_a_commit_adds_are_streams() -> None:
    assert added_streams(Graph(sources=(files("b"),)), ()) == [files("b")]


async def test_branches_must_agree_on_the_order_of_files_that_they_share() -> None:
    settings = Settings(s3_endpoint="http://127.0.0.1:1", s3_bucket="own")
    own = files("other")
    sorted_ = replace(own, table=replace(own.table, presorted=True))
    main = {BranchName("main"): catalog(replace(binding(), source=sorted_))}
    found = await source_problems((own,), main, WORKSPACE, None, settings)
    assert [problem.code for problem in found] == ["connector-redefined", "source-unreachable"]
    assert "`presorted=False`, and in branch `main` with `presorted=True`" in found[0].text
    elsewhere = replace(sorted_, table=replace(sorted_.table, bucket="another"))
    for agreed in (sorted_, replace(own, table=replace(own.table, prefix="out/")), elsewhere):
        (other,) = await source_problems((agreed,), main, WORKSPACE, None, settings)
        assert other.code == "source-unreachable"


@pytest.mark.parametrize(
    ("settings", "code", "text"),
    [
        (None, "connector-not-served", "without an installation"),
        (Settings(), "connector-not-served", "FENNEL_SOURCE_ROLES"),
        (
            Settings(
                source_roles=("arn:aws:iam::123456789012:role/reader",),
                aws_access_key="test",
                kinesis_endpoint="http://127.0.0.1:1",
                sts_endpoint="http://127.0.0.1:1",
            ),
            "source-unreachable",
            "AWS cannot be used",
        ),
    ],
)
async def test_a_stream_of_kinesis_is_reached_with_a_role_that_the_operator_names(
    settings: Settings | None, code: str, text: str
) -> None:
    role = Kinesis("shop", "arn:aws:iam::123456789012:role/reader")
    arn = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"
    of = source("Orders", table=KinesisStream(role, arn, FromLatest(), "json"))
    (problem,) = await source_problems((of,), {}, WORKSPACE, None, settings)
    assert (problem.code, problem.entity) == (code, "Orders")
    assert text in problem.text
