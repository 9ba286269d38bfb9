"""Stored connectors take the place of their names, and of nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fennel_core.blueprints.identity import source_identity
from fennel_core.blueprints.streams import stream_of
from fennel_core.connections.stored_connectors import ConnectorNotStored, required
from fennel_core.connectors.properties import PROPERTIES
from fennel_core.connectors.references import (
    SECRETS,
    Access,
    ConnectorUsers,
    is_other,
    reference_of,
    remedy,
    resolved_catalog,
    resolved_table,
)
from fennel_core.wire import connectors as c
from fennel_core.wire.decode_connectors import decode_database
from fennel_core.wire.gen import connector_pb2
from tests.support.ingest_world import KEYED, binding, catalog, source

LOGIN = c.Login(c.PlainSecret("ann"), c.SealedSecret("1", "a"))
KAFKA = c.Kafka("shop", "broker:9092", "SASL_PLAINTEXT", "PLAIN", None, "", LOGIN)
POSTGRES = c.Postgres("shop", "db", 5432, "shop", None, LOGIN)
LAKE = c.S3("lake", None, LOGIN)
NAMED = c.KafkaTopic(c.NamedReference("shop", "kafka"), "orders", c.JsonFormat())
FILES = c.S3Table(
    c.S3("lake", None, c.Login(None, None)), "b", "p", "", "csv", ",", (), False, None
)


@pytest.mark.parametrize(
    ("kind", "empty"),
    [
        ("kafka", connector_pb2.Kafka(security_protocol="PLAINTEXT", sasl_mechanism="PLAIN")),
        ("postgres", connector_pb2.Postgres(port=5432)),
        ("mysql", connector_pb2.MySQL(port=3306)),
        ("http", connector_pb2.Http(ca_cert=connector_pb2.SensitiveDatum(secret=""))),
    ],
)
def test_a_connector_without_an_address_is_a_name(kind: str, empty: object) -> None:
    message = connector_pb2.ExtDatabase(name="shop", **{kind: empty})
    assert decode_database(message) == c.NamedReference("shop", kind)


def test_s3_without_keys_stays_a_connector_that_may_be_stored() -> None:
    message = connector_pb2.ExtDatabase(name="lake", s3=connector_pb2.S3())
    assert decode_database(message) == FILES.db
    assert reference_of(FILES) == c.NamedReference("lake", "s3")
    for other in (replace(FILES.db, role_arn="arn"), LAKE):
        assert reference_of(replace(FILES, db=other)) is None


@pytest.mark.parametrize(
    ("table", "stored", "found"),
    [
        (NAMED, {"shop": KAFKA}, KAFKA),
        (NAMED, {"shop": POSTGRES}, NAMED.db),
        (NAMED, {"other": KAFKA}, NAMED.db),
        (NAMED, {}, NAMED.db),
        (FILES, {"lake": LAKE}, LAKE),
        (FILES, {}, FILES.db),
        (replace(NAMED, db=replace(KAFKA, group_id="own")), {"shop": KAFKA}, None),
    ],
)
def test_a_name_is_resolved_by_one_of_its_kind_only(
    table: c.Table, stored: dict[str, Access], found: c.Database | None
) -> None:
    assert resolved_table(table, stored).db == (table.db if found is None else found)


def test_a_change_of_a_stored_connector_changes_no_identity() -> None:
    named = source("Orders", table=NAMED)
    [changed] = [
        each.source
        for each in resolved_catalog(
            catalog(replace(binding(), source=named)), {"shop": KAFKA}
        ).sources
    ]
    assert changed.table.db == KAFKA
    assert isinstance(changed.table, c.KafkaTopic)
    in_code = c.KafkaTopic(KAFKA, "orders", c.JsonFormat())
    assert stream_of(NAMED) == stream_of(changed.table) == stream_of(in_code)
    # What a commit stores has the name alone, so nothing about the store is in it.
    assert source_identity(named, KEYED, 1) == source_identity(
        source("Orders", table=NAMED), KEYED, 1
    )


def test_users_of_a_connector_are_named_once_with_branch_and_dataset() -> None:
    main = catalog(
        replace(binding(), source=source("Orders", table=NAMED)),
        replace(binding(), source=source("Files", table=FILES)),
        replace(binding(), source=source("Others", table=replace(NAMED, db=KAFKA))),
    )
    users = ConnectorUsers({"main": main, "copy": main}, (source("New", table=NAMED),))
    assert users.titles("shop", "kafka") == [
        "the source of dataset `New` in a commit under way",
        "the source of dataset `Orders` in branch `copy`",
        "the source of dataset `Orders` in branch `main`",
    ]
    assert users.titles("shop", "postgres") == []
    assert len(users.titles("lake", "s3")) == 2
    found = users.of("shop", "kafka")
    assert found is not None
    assert [each.source.dataset for each in found.sources] == ["Orders"]
    assert users.of("other", "kafka") is None
    assert users.others(KAFKA) == []
    assert [text.split("`")[1] for text in users.others(replace(KAFKA, bootstrap_servers="b:1"))]
    assert users.others(POSTGRES)[0].startswith("the source of dataset `Others`")


@pytest.mark.parametrize(
    ("table", "stored", "says"),
    [
        (replace(NAMED, db=KAFKA), {"shop": KAFKA}, "connector rotate shop --secret sasl_plain"),
        (replace(NAMED, db=KAFKA), {}, "commit connector `shop` with the new ones"),
        (
            replace(NAMED, db=KAFKA),
            {"shop": replace(KAFKA, login=c.Login(None, c.PlainSecret("other")))},
            "commit connector `shop` with the new ones",
        ),
        (
            replace(NAMED, db=replace(KAFKA, name="a;b")),
            {"a;b": replace(KAFKA, name="a;b")},
            "connector rotate 'a;b' --secret",
        ),
        (NAMED, {}, None),
    ],
)
def test_the_remedy_is_a_command_that_can_be_run_or_a_commit(
    table: c.Table, stored: dict[str, Access], says: str | None
) -> None:
    found = remedy(table, stored)
    assert found is None if says is None else says in (found or "")


def test_the_remedy_of_each_kind_names_its_secret() -> None:
    secrets = {
        kind: [each.name for each in found if each.secret] for kind, found in PROPERTIES.items()
    }
    assert secrets == {kind: [name] for kind, name in SECRETS.items()}


@pytest.mark.parametrize(
    ("own", "other"),
    [
        (KAFKA, False),
        (replace(KAFKA, login=c.Login(None, None)), False),
        (replace(KAFKA, bootstrap_servers="elsewhere:9092"), True),
        (POSTGRES, True),
        (replace(POSTGRES, name="else"), False),
        (c.NamedReference("shop", "postgres"), False),
        (c.Webhook("shop", 1), False),
        (c.PubSub("shop", "p", None), True),
    ],
)
def test_a_connector_in_code_is_another_one_by_kind_and_address(
    own: c.Database, other: bool
) -> None:
    table = replace(NAMED, db=own)  # type: ignore[arg-type]  # only the connector matters
    assert is_other(table, KAFKA) is other


def test_a_name_that_is_not_stored_any_more_is_an_error_with_the_command() -> None:
    assert required(c.Kafka, KAFKA) is KAFKA
    with pytest.raises(ConnectorNotStored, match="fennel-core connector add shop"):
        required(c.Kafka, NAMED.db)
