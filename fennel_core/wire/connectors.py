"""External databases, the tables in them, and the sources and sinks that use them.

Theory. A connector is two values: the database (how to reach it) and the table (what to read or
write in it). Each kind of table holds its own kind of database, so a mismatch cannot be
constructed. A credential is either plain text or a reference to a secret; it never appears in a
`repr` and is not part of a definition's logic (rotating a password does not change computed
values). An empty host means: find the connector by name among those configured on the platform.
Times are `Micros`, durations integer microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, Final

from fennel_core.vocab.dtypes import Bool, Field, Float, Int, Str, Timestamp
from fennel_core.vocab.ids import DatasetName, Micros
from fennel_core.wire.expr import Expr
from fennel_core.wire.pycode import PyCode

# --- credentials ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlainSecret:
    value: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class SealedSecret:
    """A plain secret after it was encrypted for storage (`definition/sealed_request.py`).

    Two are equal if their secrets were: `fingerprint` depends on the secret, `token` changes with
    every encryption.
    """

    fingerprint: str
    token: str = field(repr=False, compare=False)

    PREFIX: ClassVar[str] = "sealed:"

    @property
    def text(self) -> str:
        """Return the text that takes the secret's place in a message."""
        return f"{self.PREFIX}{self.fingerprint}:{self.token}"

    @classmethod
    def parse(cls, text: str) -> SealedSecret | None:
        """Return the sealed secret in a message's text, None if it is not one."""
        prefix, _, rest = text.partition(":")
        fingerprint, _, token = rest.partition(":")
        return cls(fingerprint, token) if f"{prefix}:" == cls.PREFIX and token else None


@dataclass(frozen=True, slots=True)
class SecretRef:
    """A value inside a secret of an external store: `path` selects a member of its JSON."""

    arn: str
    role_arn: str | None
    path: tuple[str, ...]


SecretText = PlainSecret | SealedSecret
"""A text of the user's own that may contain a password, as parameters of a connection may."""
Credential = SecretText | SecretRef


@dataclass(frozen=True, slots=True)
class Login:
    """User name and password; each is None if the client did not send it."""

    user: Credential | None
    password: Credential | None


# --- databases ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Webhook:
    name: str
    retention_us: int


@dataclass(frozen=True, slots=True)
class MySQL:
    name: str
    host: str
    port: int
    database: str
    jdbc_params: SecretText | None
    login: Login


@dataclass(frozen=True, slots=True)
class Postgres:
    name: str
    host: str
    port: int
    database: str
    jdbc_params: SecretText | None
    login: Login


@dataclass(frozen=True, slots=True)
class S3:
    """`login` is (access key id, secret access key)."""

    name: str
    role_arn: str | None
    login: Login


@dataclass(frozen=True, slots=True)
class BigQuery:
    name: str
    project_id: str
    dataset_id: str
    service_account_key: Credential | None


@dataclass(frozen=True, slots=True)
class Snowflake:
    name: str
    account: str
    database: str
    schema: str
    warehouse: str
    role: str
    login: Login


@dataclass(frozen=True, slots=True)
class Kafka:
    name: str
    bootstrap_servers: str
    security_protocol: str
    sasl_mechanism: str
    sasl_jaas_config: SecretText | None
    group_id: str
    login: Login


@dataclass(frozen=True, slots=True)
class Kinesis:
    name: str
    role_arn: str


@dataclass(frozen=True, slots=True)
class Redshift:
    """A Redshift database; either `s3_access_role_arn` or `login` is set."""

    name: str
    host: str
    port: int
    database: str
    schema: str
    s3_access_role_arn: str | None
    login: Login | None


@dataclass(frozen=True, slots=True)
class Mongo:
    name: str
    host: str
    database: str
    login: Login


@dataclass(frozen=True, slots=True)
class PubSub:
    name: str
    project_id: str
    service_account_key: Credential | None


@dataclass(frozen=True, slots=True)
class Http:
    name: str
    host: Credential | None
    healthz: str
    ca_cert: Credential | None


@dataclass(frozen=True, slots=True)
class NamedReference:
    """A connector that the platform stores, only named in the definition.

    `kind` is the protocol's name of its type: `kafka`, `postgres`, `mysql`, `http`, …
    """

    name: str
    kind: str


Database = (
    Webhook
    | MySQL
    | Postgres
    | S3
    | BigQuery
    | Snowflake
    | Kafka
    | Kinesis
    | Redshift
    | Mongo
    | PubSub
    | Http
    | NamedReference
)

# --- record formats -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BasicAuth:
    login: Login


@dataclass(frozen=True, slots=True)
class TokenAuth:
    token: Credential | None


@dataclass(frozen=True, slots=True)
class SchemaRegistry:
    """A Confluent schema registry."""

    url: str
    auth: BasicAuth | TokenAuth | None


@dataclass(frozen=True, slots=True)
class JsonFormat:
    pass


@dataclass(frozen=True, slots=True)
class AvroFormat:
    registry: SchemaRegistry


@dataclass(frozen=True, slots=True)
class ProtobufFormat:
    registry: SchemaRegistry


RecordFormat = JsonFormat | AvroFormat | ProtobufFormat

# --- tables ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WebhookEndpoint:
    db: Webhook
    endpoint: str


@dataclass(frozen=True, slots=True)
class MySQLTable:
    db: MySQL | NamedReference
    table: str


@dataclass(frozen=True, slots=True)
class PostgresTable:
    db: Postgres | NamedReference
    table: str
    slot_name: str | None


@dataclass(frozen=True, slots=True)
class PostgresChanges:
    """The changes of a table, as the database records them: a table with cdc `debezium`."""

    db: Postgres | NamedReference
    table: str


@dataclass(frozen=True, slots=True)
class MySQLChanges:
    """The changes of a table of MySQL or MariaDB: a table with cdc `debezium`."""

    db: MySQL | NamedReference
    table: str


@dataclass(frozen=True, slots=True)
class S3Table:
    """Objects under `prefix` whose key matches the pattern `suffix`.

    `format` is csv, json, parquet, hudi or delta.
    """

    db: S3 | NamedReference
    bucket: str
    prefix: str
    suffix: str
    format: str
    delimiter: str
    headers: tuple[str, ...]
    presorted: bool
    spread_us: int | None


@dataclass(frozen=True, slots=True)
class KafkaTopic:
    db: Kafka | NamedReference
    topic: str
    format: RecordFormat


@dataclass(frozen=True, slots=True)
class SnowflakeTable:
    db: Snowflake | NamedReference
    table: str


@dataclass(frozen=True, slots=True)
class BigQueryTable:
    db: BigQuery | NamedReference
    table: str


@dataclass(frozen=True, slots=True)
class FromLatest:
    pass


@dataclass(frozen=True, slots=True)
class FromTrimHorizon:
    pass


@dataclass(frozen=True, slots=True)
class FromTimestamp:
    at_us: Micros


InitPosition = FromLatest | FromTrimHorizon | FromTimestamp


@dataclass(frozen=True, slots=True)
class KinesisStream:
    db: Kinesis | NamedReference
    stream_arn: str
    init_position: InitPosition
    format: str


@dataclass(frozen=True, slots=True)
class RedshiftTable:
    db: Redshift | NamedReference
    table: str


@dataclass(frozen=True, slots=True)
class MongoCollection:
    db: Mongo | NamedReference
    collection: str


@dataclass(frozen=True, slots=True)
class PubSubTopic:
    db: PubSub | NamedReference
    topic: str
    format: JsonFormat


@dataclass(frozen=True, slots=True)
class HttpPath:
    """The path of an HTTP sink.

    At most `limit` rows per request if set; `headers` are sorted by name.
    """

    db: Http | NamedReference
    endpoint: str
    limit: int | None
    headers: tuple[tuple[str, SecretText], ...]


Table = (
    WebhookEndpoint
    | MySQLTable
    | PostgresTable
    | PostgresChanges
    | MySQLChanges
    | S3Table
    | KafkaTopic
    | SnowflakeTable
    | BigQueryTable
    | KinesisStream
    | RedshiftTable
    | MongoCollection
    | PubSubTopic
    | HttpPath
)


class Cdc(Enum):
    APPEND = "append"
    UPSERT = "upsert"
    DEBEZIUM = "debezium"
    NATIVE = "native"
    DELETE = "delete"


DEFAULT_EVERY_US: Final = 30 * 60 * 1_000_000
"""The interval that the client gives to a source without `every`."""

# --- sources --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FromPayload:
    """Copies a payload field; `A[B][C]` selects a member of nested JSON."""

    path: str


@dataclass(frozen=True, slots=True)
class Constant:
    """The same value for every row; a timestamp is in epoch microseconds.

    `dtype` distinguishes 1, 1.0 and True.
    """

    value: str | bool | int | float
    dtype: Str | Bool | Int | Float | Timestamp


@dataclass(frozen=True, slots=True)
class EvalExpr:
    """An expression over the dataset's fields and the payload columns of `schema`.

    Fields assigned by preprocessing are not visible to it.
    """

    expr: Expr
    schema: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class EvalCode:
    """User code that computes the field from the whole frame.

    `schema` types extra payload columns.
    """

    pycode: PyCode
    schema: tuple[Field, ...]


PreProc = FromPayload | Constant | EvalExpr | EvalCode


@dataclass(frozen=True, slots=True)
class Sampling:
    """Keeps the fraction `rate` (0..1) of rows, decided by a hash of `columns`."""

    rate: float
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """A source of a dataset's rows.

    Rows pass `preproc` (sorted by field), then `where`, then the cast to the schema.
    """

    dataset: DatasetName
    version: int
    table: Table
    cdc: Cdc
    disorder_us: int
    every_us: int | None
    cursor: str | None
    timestamp_field: str | None
    since_us: Micros | None
    until_us: Micros | None
    bounded: bool
    idleness_us: int | None
    preproc: tuple[tuple[str, PreProc], ...]
    where: EvalExpr | EvalCode | None
    sampling: Sampling | None


# --- sinks ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Incremental:
    pass


@dataclass(frozen=True, slots=True)
class Recreate:
    pass


@dataclass(frozen=True, slots=True)
class Snapshot:
    marker: str
    num_retain: int


SinkStyle = Incremental | Recreate | Snapshot


@dataclass(frozen=True, slots=True)
class Sink:
    dataset: DatasetName
    version: int
    table: Table
    cdc: Cdc | None
    every_us: int | None
    how: SinkStyle | None
    create: bool
    stacked: bool
    renames: tuple[tuple[str, str], ...]
    since_us: Micros | None
    until_us: Micros | None
