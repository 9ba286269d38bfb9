"""Decode databases and tables into `wire.connectors`."""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import Message

from fennel_core.wire import connectors as c
from fennel_core.wire.decode_datatypes import (
    chosen,
    decode_duration_us,
    decode_instant_us,
    known,
    unknown,
)
from fennel_core.wire.errors import UnsupportedValue
from fennel_core.wire.gen import connector_pb2 as pb
from fennel_core.wire.gen import http_auth_pb2, kinesis_pb2, schema_registry_pb2, secret_pb2

DB = TypeVar("DB", bound=c.Database)

ADDRESSES = {
    "kafka": "bootstrap_servers",
    "mysql": "host",
    "postgres": "host",
    "http": "host",
}
"""The field with the address of a kind of connector; an empty one refers to a stored connector."""
REFERENCE_KINDS = {number: name.lower() for name, number in pb.Reference.ExtDBType.items()}


# --- credentials ----------------------------------------------------------------------------------


def _credential(message: Message, plain: str, secret: str) -> c.Credential | None:
    """Return the credential in the fields `plain` and `secret`; empty text counts as none."""
    if message.HasField(secret):
        ref: secret_pb2.SecretRef = getattr(message, secret)
        return c.SecretRef(
            ref.secret_arn, ref.role_arn if ref.HasField("role_arn") else None, tuple(ref.path)
        )
    return _secret_text(getattr(message, plain))


def _secret_text(text: str) -> c.SecretText | None:
    return _stored_or_plain(text) if text else None


def _stored_or_plain(text: str) -> c.SecretText:
    return c.SealedSecret.parse(text) or c.PlainSecret(text)


def _login(message: Message, user: str = "user", user_secret: str = "username_secret") -> c.Login:  # noqa: S107 - field names, not secrets
    return c.Login(
        _credential(message, user, user_secret), _credential(message, "password", "password_secret")
    )


# --- databases ------------------------------------------------------------------------------------


def decode_database(message: pb.ExtDatabase) -> c.Database:
    """Decode the connection to a database; raises `UnsupportedValue` for an unknown kind.

    The client sends what `Kafka.get(name)` returns as a connector without an address. An S3
    connector has none, so without keys it stays one (`c.S3`).
    """
    name, kind = message.name, chosen(message, "variant")
    field = ADDRESSES.get(kind)
    if field is not None:
        connector = getattr(message, kind)
        by_secret = kind == "http" and connector.HasField("host_secret")
        if not getattr(connector, field) and not by_secret:
            return c.NamedReference(name, kind)
    match kind:
        case "webhook":
            return c.Webhook(name, decode_duration_us(message.webhook.retention))
        case "mysql":
            m = message.mysql
            return c.MySQL(name, m.host, m.port, m.database, _secret_text(m.jdbc_params), _login(m))
        case "postgres":
            p = message.postgres
            return c.Postgres(
                name, p.host, p.port, p.database, _secret_text(p.jdbc_params), _login(p)
            )
        case "reference":
            return c.NamedReference(
                name,
                known(
                    REFERENCE_KINDS, message.reference.dbtype, message.reference, "database type"
                ),
            )
        case "kafka":
            return _kafka(name, message.kafka)
        case "redshift":
            return _redshift(name, message.redshift)
        case "mongo":
            return c.Mongo(name, message.mongo.host, message.mongo.database, _login(message.mongo))
        case "http":
            return _http(name, message.http)
        case other:
            return _cloud_database(message, other)


def _cloud_database(message: pb.ExtDatabase, kind: str) -> c.Database:
    name = message.name
    match kind:
        case "s3":
            s = message.s3
            login = c.Login(
                _credential(s, "aws_access_key_id", "aws_access_key_id_secret"),
                _credential(s, "aws_secret_access_key", "aws_secret_access_key_secret"),
            )
            return c.S3(name, s.role_arn if s.HasField("role_arn") else None, login)
        case "bigquery":
            b = message.bigquery
            return c.BigQuery(
                name,
                b.project_id,
                b.dataset_id,
                _credential(b, "service_account_key", "service_account_key_secret"),
            )
        case "snowflake":
            f = message.snowflake
            return c.Snowflake(
                name, f.account, f.database, f.schema, f.warehouse, f.role, _login(f)
            )
        case "kinesis":
            return c.Kinesis(name, message.kinesis.role_arn)
        case "pubsub":
            u = message.pubsub
            return c.PubSub(
                name,
                u.project_id,
                _credential(u, "service_account_key", "service_account_key_secret"),
            )
        case other:
            raise unknown(message, other)


def _kafka(name: str, message: pb.Kafka) -> c.Kafka:
    return c.Kafka(
        name=name,
        bootstrap_servers=message.bootstrap_servers,
        security_protocol=message.security_protocol,
        sasl_mechanism=message.sasl_mechanism,
        sasl_jaas_config=_secret_text(message.sasl_jaas_config),
        group_id=message.group_id,
        login=c.Login(
            _credential(message, "sasl_plain_username", "sasl_username_secret"),
            _credential(message, "sasl_plain_password", "sasl_password_secret"),
        ),
    )


def _redshift(name: str, message: pb.Redshift) -> c.Redshift:
    auth = message.redshift_authentication
    by_role = chosen(auth, "variant") == "s3_access_role_arn"
    return c.Redshift(
        name=name,
        host=message.host,
        port=message.port,
        database=message.database,
        schema=message.schema,
        s3_access_role_arn=auth.s3_access_role_arn if by_role else None,
        login=None if by_role else _login(auth.credentials, "username"),
    )


def _http(name: str, message: pb.Http) -> c.Http:
    ca_cert = (
        _credential(message.ca_cert, "secret", "secret_ref")
        if message.HasField("ca_cert")
        else None
    )
    return c.Http(name, _credential(message, "host", "host_secret"), message.healthz, ca_cert)


# --- tables ---------------------------------------------------------------------------------------


def decode_table(message: pb.ExtTable) -> c.Table:
    """Decode the table that a source reads or a sink writes.

    Raises `UnsupportedValue` if its database is of another kind than the table.
    """
    match chosen(message, "variant"):
        case "endpoint":
            e = message.endpoint
            return c.WebhookEndpoint(_exactly(c.Webhook, e.db), e.endpoint)
        case "mysql_table":
            return c.MySQLTable(
                _db(c.MySQL, message.mysql_table.db), message.mysql_table.table_name
            )
        case "pg_table":
            p = message.pg_table
            return c.PostgresTable(
                _db(c.Postgres, p.db),
                p.table_name,
                p.slot_name if p.HasField("slot_name") else None,
            )
        case "s3_table":
            return _s3_table(message.s3_table)
        case "kafka_topic":
            k = message.kafka_topic
            return c.KafkaTopic(_db(c.Kafka, k.db), k.topic, _kafka_format(k.format))
        case "kinesis_stream":
            s = message.kinesis_stream
            return c.KinesisStream(_db(c.Kinesis, s.db), s.stream_arn, _init_position(s), s.format)
        case "pubsub_topic":
            u = message.pubsub_topic
            chosen(u.format, "variant")
            return c.PubSubTopic(_db(c.PubSub, u.db), u.topic_id, c.JsonFormat())
        case "http_path":
            h = message.http_path
            headers = tuple((name, _stored_or_plain(h.headers[name])) for name in sorted(h.headers))
            return c.HttpPath(
                _db(c.Http, h.db), h.endpoint, h.limit if h.HasField("limit") else None, headers
            )
        case other:
            return _warehouse_table(message, other)


def _warehouse_table(message: pb.ExtTable, kind: str) -> c.Table:
    match kind:
        case "snowflake_table":
            return c.SnowflakeTable(
                _db(c.Snowflake, message.snowflake_table.db), message.snowflake_table.table_name
            )
        case "bigquery_table":
            return c.BigQueryTable(
                _db(c.BigQuery, message.bigquery_table.db), message.bigquery_table.table_name
            )
        case "redshift_table":
            return c.RedshiftTable(
                _db(c.Redshift, message.redshift_table.db), message.redshift_table.table_name
            )
        case "mongo_collection":
            return c.MongoCollection(
                _db(c.Mongo, message.mongo_collection.db), message.mongo_collection.collection_name
            )
        case other:
            raise unknown(message, other)


def _exactly(expected: type[DB], message: pb.ExtDatabase) -> DB:
    database = decode_database(message)
    if not isinstance(database, expected):
        got, needed = type(database).__name__, expected.__name__
        if isinstance(database, c.NamedReference):
            got = f"reference to one of {database.kind}"
        raise UnsupportedValue(
            f"connector `{message.name}` is a {got}, but its table needs a {needed}; "
            "use one connector for both"
        )
    return database


def _db(expected: type[DB], message: pb.ExtDatabase) -> DB | c.NamedReference:
    database = decode_database(message)
    if isinstance(database, c.NamedReference) and database.kind == expected.__name__.lower():
        return database
    return _exactly(expected, message)


def _s3_table(message: pb.S3Table) -> c.S3Table:
    return c.S3Table(
        db=_db(c.S3, message.db),
        bucket=message.bucket,
        prefix=message.path_prefix,
        suffix=message.path_suffix,
        format=message.format,
        delimiter=message.delimiter,
        headers=tuple(message.headers),
        presorted=message.pre_sorted,
        spread_us=decode_duration_us(message.spread) if message.HasField("spread") else None,
    )


def _kafka_format(message: pb.KafkaFormat) -> c.RecordFormat:
    match message.WhichOneof("variant"):
        case "json" | None:
            return c.JsonFormat()
        case "avro":
            return c.AvroFormat(_registry(message.avro.schema_registry))
        case "protobuf":
            return c.ProtobufFormat(_registry(message.protobuf.schema_registry))
        case other:
            raise unknown(message, other)


def _registry(message: schema_registry_pb2.SchemaRegistry) -> c.SchemaRegistry:
    if message.registry_provider != schema_registry_pb2.RegistryProvider.CONFLUENT:
        raise UnsupportedValue(
            f"schema registry provider {message.registry_provider} is unknown; use `confluent`"
        )
    return c.SchemaRegistry(message.url, _http_auth(message.auth))


def _http_auth(message: http_auth_pb2.HTTPAuthentication) -> c.BasicAuth | c.TokenAuth | None:
    match message.WhichOneof("variant"):
        case "basic":
            basic = message.basic
            password: c.Credential | None = None
            match basic.WhichOneof("password_variant"):
                case "password":
                    password = _stored_or_plain(basic.password.value)
                case "password_secret":
                    password = _credential(basic, "password", "password_secret")
            return c.BasicAuth(c.Login(_credential(basic, "username", "username_secret"), password))
        case "token":
            return c.TokenAuth(_credential(message.token, "token", "token_secret"))
        case _:
            return None


def _init_position(message: pb.KinesisStream) -> c.InitPosition:
    match message.init_position:
        case kinesis_pb2.InitPosition.LATEST:
            return c.FromLatest()
        case kinesis_pb2.InitPosition.TRIM_HORIZON:
            return c.FromTrimHorizon()
        case kinesis_pb2.InitPosition.AT_TIMESTAMP:
            return c.FromTimestamp(decode_instant_us(message.init_timestamp))
        case other:
            raise UnsupportedValue(
                f"init position {other} of a Kinesis stream is unknown; use latest, "
                "trim_horizon or a timestamp"
            )
