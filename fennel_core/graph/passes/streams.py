"""Which streaming sources the platform reads, and with which options.

Every kind of source that is read has one function here, which yields a problem for each option that
would have no effect or a wrong one. A kind without a function is refused as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final, assert_never

from fennel_core.graph.delta_keys import DELTA, is_delta
from fennel_core.graph.entity_graph import Graph
from fennel_core.graph.passes.changes import check_changes
from fennel_core.graph.passes.delta_sources import check_delta_source
from fennel_core.graph.passes.kinesis import unusable_stream
from fennel_core.graph.passes.tables import check_table
from fennel_core.graph.s3_paths import UnknownDirective, file_path
from fennel_core.vocab.problems import Problem
from fennel_core.wire import connectors as c
from fennel_core.wire.entities import Dataset

SECURITY: Final = ("PLAINTEXT", "SASL_PLAINTEXT", "SASL_SSL")
ADDRESS: Final = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[\w.\-]+)(:[0-9]{1,5})?(/[^?#@\s]*)?")
"""The URL of a schema registry."""
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


FILES: Final = ("csv", "json", "parquet")
BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
"""The names that S3 gives; an ARN or an address is no bucket."""


def reads(table: c.Table) -> bool:
    """Return whether the platform reads the external stream `table`."""
    match table:
        case c.KafkaTopic() | c.KinesisStream():
            return True
        case c.PostgresTable() | c.MySQLTable() | c.PostgresChanges() | c.MySQLChanges():
            return True
        case c.S3Table():
            return table.format in (*FILES, DELTA)
        case _:
            return False


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


def check_orders(graph: Graph) -> Iterator[Problem]:
    """Yield a problem for each path of files that is read in two orders: it has one reader."""
    first: dict[c.S3Table, bool] = {}
    for source in graph.sources:
        table = source.table
        if not isinstance(table, c.S3Table):
            continue
        if first.setdefault(without_order(table), table.presorted) != table.presorted:
            text = (
                f"Dataset `{source.dataset}` reads {table.format} files of connector "
                f"`{table.db.name}` with `presorted={table.presorted}`, and another dataset reads "
                f"them with `presorted={not table.presorted}`; files are read "
                "once, so give both the same `presorted`"
            )
            yield Problem("connector-redefined", source.dataset, text)


def without_order(table: c.S3Table) -> c.S3Table:
    """Return a table that is the same for all readers of the same files."""
    db, delimiter = c.NamedReference(table.db.name, "s3"), table.delimiter or ","
    return replace(table, db=db, delimiter=delimiter, presorted=False, spread_us=None)


def check_stream(dataset: Dataset, source: c.Source) -> Iterator[Problem]:
    """Yield one problem per option of a stream that is read, if the option cannot be served."""
    table = source.table
    if isinstance(table, c.PostgresTable | c.MySQLTable):
        yield from check_table(dataset, source, table)
        return
    if isinstance(table, c.PostgresChanges | c.MySQLChanges):
        yield from check_changes(dataset, source, table)
        return
    assert isinstance(table, c.KafkaTopic | c.KinesisStream | c.S3Table), "these kinds are read"
    if is_delta(source):
        assert isinstance(table, c.S3Table), "Delta tables are on S3"
        yield from check_delta_source(dataset, source, table)
        yield from connector_problems(dataset, table)
        return
    match table:
        case c.KafkaTopic():
            what, where = f"Kafka topic `{table.topic}`", "Kafka"
            polled = {"every": source.every_us is not None}
            served = {c.Cdc.APPEND, c.Cdc.UPSERT, c.Cdc.DEBEZIUM}
            hint = (
                "which a topic does not have: it is for tables that record their changes "
                "themselves. Use `append`, `upsert` or `debezium`."
            )
            if source.cdc is c.Cdc.DEBEZIUM and isinstance(table.format, c.ProtobufFormat):
                served -= {c.Cdc.DEBEZIUM}
                hint = "which is not read from Protobuf. Let Debezium write JSON or Avro."
        case c.KinesisStream():
            what, where = f"Kinesis stream `{table.stream_arn}`", "Kinesis"
            polled = {"every": source.every_us is not None}
            served = {c.Cdc.APPEND, c.Cdc.UPSERT, c.Cdc.DEBEZIUM}
            hint = (
                "which a stream does not have: it is for tables that record their changes "
                "themselves. Use `append`, `upsert` or `debezium`."
            )
        case c.S3Table():
            what, where = f"{table.format} files in S3 bucket `{table.bucket}`", "files on S3"
            polled = {}
            yield from _spread_problems(dataset, source, table)
            served = {c.Cdc.APPEND, c.Cdc.UPSERT}
            hint = (
                "which this platform does not read from files. Use cdc `append` without key "
                "fields, or `upsert` with key fields."
            )
        case unreachable:
            assert_never(unreachable)
    if source.cdc not in served:
        text = (
            f"Dataset `{dataset.name}` has a source of {what} with cdc `{source.cdc.value}`, {hint}"
        )
        yield Problem("cdc-not-served", dataset.name, text)
    without_effect = {
        **polled,
        "cursor": source.cursor is not None,
        "timestamp_field": source.timestamp_field not in (None, dataset.schema.timestamp),
    }
    for option, is_set in without_effect.items():
        if is_set:
            text = (
                f"Dataset `{dataset.name}` has a source of {what} with "
                f"`{option}`, which this platform does not serve for {where}; remove the option"
            )
            yield Problem("source-option-not-served", dataset.name, text)
    yield from connector_problems(dataset, table)


def _spread_problems(dataset: Dataset, source: c.Source, table: c.S3Table) -> Iterator[Problem]:
    """Yield a problem if `spread` leaves out no file, whatever there is."""
    if table.spread_us is None:
        return
    try:
        path = file_path(table.prefix, table.suffix)
    except UnknownDirective:
        return  # another problem says so
    why = None
    if path.period_us is None:
        why = "its path names no year; use strftime parts, as `%Y-%m-%d`"
    elif source.since_us is None and source.until_us is None:
        why = "it has neither `since` nor `until`, by which paths are left out; add one"
    if why is not None:
        text = (
            f"Dataset `{dataset.name}` has a source of {table.format} files in S3 bucket "
            f"`{table.bucket}` with `spread`, but {why}, or remove the option"
        )
        yield Problem("source-option-not-served", dataset.name, text)


def connector_problems(
    dataset: Dataset, table: c.KafkaTopic | c.KinesisStream | c.S3Table
) -> Iterator[Problem]:
    """Yield one problem per property of a connector with which nothing can be reached."""
    reasons: tuple[str, ...]
    match table:
        case c.KafkaTopic():
            what, reasons = (
                f"Kafka topic `{table.topic}`",
                (
                    *(() if isinstance(table.db, c.NamedReference) else unusable_kafka(table.db)),
                    *_unusable_registry(table.format),
                ),
            )
        case c.KinesisStream():
            what, reasons = f"Kinesis stream `{table.stream_arn}`", (*unusable_stream(table),)
        case c.S3Table():
            what = (
                f"a Delta table in S3 bucket `{table.bucket}`"
                if table.format == DELTA
                else f"{table.format} files in S3 bucket `{table.bucket}`"
            )
            reasons = (*_unusable_bucket(table),)
        case unreachable:
            assert_never(unreachable)
    for reason in reasons:
        text = f"Dataset `{dataset.name}`: connector `{table.db.name}` of {what} {reason}"
        yield Problem("connector-not-served", dataset.name, text)


def _unusable_bucket(table: c.S3Table) -> Iterator[str]:
    """Yield what about a source of files cannot be served; as `unusable_kafka`."""
    if BUCKET.fullmatch(table.bucket) is None:
        yield f"has the bucket `{table.bucket}`, which is no name of a bucket"
    if not isinstance(table.db, c.NamedReference):
        yield from unusable_s3(table.db)
    if table.format == "csv" and len(table.delimiter.encode()) > 1:
        yield f"has the delimiter `{table.delimiter}`; csv is read with one of one byte"
    if len(set(table.headers)) < len(table.headers):
        yield "names a column of csv twice in its headers"
    try:
        file_path(table.prefix, table.suffix)
    except UnknownDirective as unknown:
        yield f"has a path that cannot be read: {unknown}"


def unusable_s3(db: c.S3) -> Iterator[str]:
    """Yield what about a connector cannot be served; as `unusable_kafka`."""
    if db.role_arn is not None:
        yield "has a role, which this platform does not assume; give it keys"
    login = (db.login.user, db.login.password)
    if any(isinstance(each, c.SecretRef) for each in login):
        yield (
            "refers to a secret of another store, which this platform does not read yet; give "
            "the keys as text, which is encrypted on arrival"
        )
    if (login[0] is None) != (login[1] is None):
        yield "has one key of two; give `aws_access_key_id` and `aws_secret_access_key`, or neither"


def unusable_kafka(db: c.Kafka) -> Iterator[str]:
    """Yield what about a connector cannot be served, as the end of a sentence about it."""
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
