"""Which streaming sources the platform reads, and with which options.

Every kind of source that is read has one function here, which yields a problem for each option that
would have no effect or a wrong one. A kind without a function is refused as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, assert_never

from fennel_core.graph.entity_graph import Graph
from fennel_core.vocab.problems import Problem
from fennel_core.wire import connectors as c
from fennel_core.wire.entities import Dataset

SECURITY: Final = ("PLAINTEXT", "SASL_PLAINTEXT", "SASL_SSL")
ADDRESS: Final = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[\w.\-]+)(:[0-9]{1,5})?(/[^?#@\s]*)?")
"""The URL of a schema registry."""
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


def reads(table: c.Table) -> bool:
    """Return whether the platform reads the external stream `table`."""
    return isinstance(table, c.KafkaTopic)


def format_title(record_format: c.RecordFormat) -> str:
    """Return the format of a topic as part of its name, with the registry; empty for JSON."""
    match record_format:
        case c.JsonFormat():
            return ""
        case c.AvroFormat(registry):
            return f" (Avro with the schema registry `{registry.url}`)"
        case c.ProtobufFormat(registry):
            return f" (Protobuf with the schema registry `{registry.url}`)"
        case unreachable:
            assert_never(unreachable)


def check_formats(graph: Graph) -> Iterator[Problem]:
    """Yield a problem for each topic that is read in two formats: it has one reader."""
    first: dict[tuple[str, str], c.KafkaTopic] = {}
    for source in graph.sources:
        table = source.table
        if not isinstance(table, c.KafkaTopic):
            continue
        other = first.setdefault((table.db.name, table.topic), table)
        own, others = format_title(table.format), format_title(other.format)
        if own != others:
            text = (
                f"Dataset `{source.dataset}` reads Kafka topic `{table.topic}` of connector "
                f"`{table.db.name}` as{own or ' JSON'}, and another dataset as{others or ' JSON'}; "
                "a topic is read once, so use one format, or connectors of two names"
            )
            yield Problem("connector-redefined", source.dataset, text)


def check_stream(dataset: Dataset, source: c.Source) -> Iterator[Problem]:
    """Yield one problem per option of a stream that is read, if the option cannot be served."""
    table = source.table
    assert isinstance(table, c.KafkaTopic), "only topics of Kafka are read"
    if source.cdc not in (c.Cdc.APPEND, c.Cdc.UPSERT, c.Cdc.DEBEZIUM):
        text = (
            f"Dataset `{dataset.name}` has a source of Kafka topic `{table.topic}` with cdc "
            f"`{source.cdc.value}`, which a topic does not have: it is for tables that record "
            "their changes themselves. Use `append`, `upsert` or `debezium`."
        )
        yield Problem("cdc-not-served", dataset.name, text)
    without_effect = {
        "every": source.every_us is not None,
        "cursor": source.cursor is not None,
        "timestamp_field": source.timestamp_field not in (None, dataset.schema.timestamp),
        # A partition that is silent does not say that the others are: no partition can decide.
        "bounded": source.bounded,
    }
    for option, is_set in without_effect.items():
        if is_set:
            text = (
                f"Dataset `{dataset.name}` has a source of Kafka topic `{table.topic}` with "
                f"`{option}`, which this platform does not serve for Kafka; remove the option"
            )
            yield Problem("source-option-not-served", dataset.name, text)
    yield from connector_problems(dataset, table)


def connector_problems(dataset: Dataset, table: c.KafkaTopic) -> Iterator[Problem]:
    """Yield one problem per property of a connector with which no cluster can be reached."""
    for what in (*_unusable(table.db), *_unusable_registry(table.format)):
        text = (
            f"Dataset `{dataset.name}`: connector `{table.db.name}` of Kafka topic "
            f"`{table.topic}` {what}"
        )
        yield Problem("connector-not-served", dataset.name, text)


def _unusable(db: c.Kafka | c.NamedReference) -> Iterator[str]:
    """Yield what about a connector cannot be served, as the end of a sentence about it."""
    if isinstance(db, c.NamedReference) or not db.bootstrap_servers:
        yield (
            "is a reference to a connector that was defined elsewhere, and this platform has no "
            "list of connectors yet; define it with `bootstrap_servers` in the code"
        )
        return
    for address in db.bootstrap_servers.split(","):
        if not address.rpartition(":")[2].strip().isdecimal():
            yield f"has the address `{address.strip()}` without a port; write `host:port`"
    security = db.security_protocol or SECURITY[0]
    if security not in SECURITY:
        yield f"has security protocol `{security}`; use one of {', '.join(SECURITY)}"
    if db.sasl_jaas_config is not None:
        yield "has a JAAS configuration; use user name and password"
    if security == SECURITY[0]:
        return
    if db.sasl_mechanism not in MECHANISMS:
        yield f"has SASL mechanism `{db.sasl_mechanism}`; use one of {', '.join(MECHANISMS)}"
    login = (db.login.user, db.login.password)
    if any(isinstance(each, c.SecretRef) for each in login):
        yield (
            "refers to a secret of another store, which this platform does not read yet; give "
            "user name and password as text, which is encrypted on arrival"
        )
    if None in login:
        yield "needs user name and password for SASL; set both"


def _unusable_registry(record_format: c.RecordFormat) -> Iterator[str]:
    """As `_unusable`, about the schema registry of a format."""
    if isinstance(record_format, c.JsonFormat):
        return
    registry = record_format.registry
    if not ADDRESS.fullmatch(registry.url):
        if set(registry.url) & set("@?#"):
            yield (
                "has a schema registry whose `url` is more than an address; give user and password "
                "as `username` and `password`, which are encrypted on arrival"
            )
        else:
            yield "has a schema registry whose `url` is not one: write `https://host:port`"
    match registry.auth:
        case None:
            secrets: tuple[c.Credential | None, ...] = ()
        case c.BasicAuth(login):
            secrets = (login.user, login.password)
        case c.TokenAuth(token):
            secrets = (token,)
    if any(isinstance(each, c.SecretRef) for each in secrets):
        yield (
            "has a schema registry with a secret of another store, which this platform does not "
            "read yet; give it as text, which is encrypted on arrival"
        )
    if None in secrets:
        yield "has a schema registry without all of its credentials; set user name and password"
