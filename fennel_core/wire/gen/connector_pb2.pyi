import datetime

from fennel_core.wire.gen import expression_pb2 as _expression_pb2
from fennel_core.wire.gen import kinesis_pb2 as _kinesis_pb2
from fennel_core.wire.gen import pycode_pb2 as _pycode_pb2
from fennel_core.wire.gen import schema_pb2 as _schema_pb2
from fennel_core.wire.gen import schema_registry_pb2 as _schema_registry_pb2
from fennel_core.wire.gen import secret_pb2 as _secret_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CDCStrategy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    Append: _ClassVar[CDCStrategy]
    Upsert: _ClassVar[CDCStrategy]
    Debezium: _ClassVar[CDCStrategy]
    Native: _ClassVar[CDCStrategy]
    Delete: _ClassVar[CDCStrategy]
Append: CDCStrategy
Upsert: CDCStrategy
Debezium: CDCStrategy
Native: CDCStrategy
Delete: CDCStrategy

class ExtDatabase(_message.Message):
    __slots__ = ("name", "mysql", "postgres", "reference", "s3", "bigquery", "snowflake", "kafka", "webhook", "kinesis", "redshift", "mongo", "pubsub", "http")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MYSQL_FIELD_NUMBER: _ClassVar[int]
    POSTGRES_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    S3_FIELD_NUMBER: _ClassVar[int]
    BIGQUERY_FIELD_NUMBER: _ClassVar[int]
    SNOWFLAKE_FIELD_NUMBER: _ClassVar[int]
    KAFKA_FIELD_NUMBER: _ClassVar[int]
    WEBHOOK_FIELD_NUMBER: _ClassVar[int]
    KINESIS_FIELD_NUMBER: _ClassVar[int]
    REDSHIFT_FIELD_NUMBER: _ClassVar[int]
    MONGO_FIELD_NUMBER: _ClassVar[int]
    PUBSUB_FIELD_NUMBER: _ClassVar[int]
    HTTP_FIELD_NUMBER: _ClassVar[int]
    name: str
    mysql: MySQL
    postgres: Postgres
    reference: Reference
    s3: S3
    bigquery: Bigquery
    snowflake: Snowflake
    kafka: Kafka
    webhook: Webhook
    kinesis: Kinesis
    redshift: Redshift
    mongo: Mongo
    pubsub: PubSub
    http: Http
    def __init__(self, name: _Optional[str] = ..., mysql: _Optional[_Union[MySQL, _Mapping]] = ..., postgres: _Optional[_Union[Postgres, _Mapping]] = ..., reference: _Optional[_Union[Reference, _Mapping]] = ..., s3: _Optional[_Union[S3, _Mapping]] = ..., bigquery: _Optional[_Union[Bigquery, _Mapping]] = ..., snowflake: _Optional[_Union[Snowflake, _Mapping]] = ..., kafka: _Optional[_Union[Kafka, _Mapping]] = ..., webhook: _Optional[_Union[Webhook, _Mapping]] = ..., kinesis: _Optional[_Union[Kinesis, _Mapping]] = ..., redshift: _Optional[_Union[Redshift, _Mapping]] = ..., mongo: _Optional[_Union[Mongo, _Mapping]] = ..., pubsub: _Optional[_Union[PubSub, _Mapping]] = ..., http: _Optional[_Union[Http, _Mapping]] = ...) -> None: ...

class SamplingStrategy(_message.Message):
    __slots__ = ("sampling_rate", "columns_used")
    SAMPLING_RATE_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_USED_FIELD_NUMBER: _ClassVar[int]
    sampling_rate: float
    columns_used: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, sampling_rate: _Optional[float] = ..., columns_used: _Optional[_Iterable[str]] = ...) -> None: ...

class PubSubFormat(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: JsonFormat
    def __init__(self, json: _Optional[_Union[JsonFormat, _Mapping]] = ...) -> None: ...

class KafkaFormat(_message.Message):
    __slots__ = ("json", "avro", "protobuf")
    JSON_FIELD_NUMBER: _ClassVar[int]
    AVRO_FIELD_NUMBER: _ClassVar[int]
    PROTOBUF_FIELD_NUMBER: _ClassVar[int]
    json: JsonFormat
    avro: AvroFormat
    protobuf: ProtobufFormat
    def __init__(self, json: _Optional[_Union[JsonFormat, _Mapping]] = ..., avro: _Optional[_Union[AvroFormat, _Mapping]] = ..., protobuf: _Optional[_Union[ProtobufFormat, _Mapping]] = ...) -> None: ...

class AvroFormat(_message.Message):
    __slots__ = ("schema_registry",)
    SCHEMA_REGISTRY_FIELD_NUMBER: _ClassVar[int]
    schema_registry: _schema_registry_pb2.SchemaRegistry
    def __init__(self, schema_registry: _Optional[_Union[_schema_registry_pb2.SchemaRegistry, _Mapping]] = ...) -> None: ...

class ProtobufFormat(_message.Message):
    __slots__ = ("schema_registry",)
    SCHEMA_REGISTRY_FIELD_NUMBER: _ClassVar[int]
    schema_registry: _schema_registry_pb2.SchemaRegistry
    def __init__(self, schema_registry: _Optional[_Union[_schema_registry_pb2.SchemaRegistry, _Mapping]] = ...) -> None: ...

class Reference(_message.Message):
    __slots__ = ("dbtype",)
    class ExtDBType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        MYSQL: _ClassVar[Reference.ExtDBType]
        POSTGRES: _ClassVar[Reference.ExtDBType]
        S3: _ClassVar[Reference.ExtDBType]
        KAFKA: _ClassVar[Reference.ExtDBType]
        BIGQUERY: _ClassVar[Reference.ExtDBType]
        SNOWFLAKE: _ClassVar[Reference.ExtDBType]
        WEBHOOK: _ClassVar[Reference.ExtDBType]
        KINESIS: _ClassVar[Reference.ExtDBType]
        REDSHIFT: _ClassVar[Reference.ExtDBType]
        MONGO: _ClassVar[Reference.ExtDBType]
        PUBSUB: _ClassVar[Reference.ExtDBType]
    MYSQL: Reference.ExtDBType
    POSTGRES: Reference.ExtDBType
    S3: Reference.ExtDBType
    KAFKA: Reference.ExtDBType
    BIGQUERY: Reference.ExtDBType
    SNOWFLAKE: Reference.ExtDBType
    WEBHOOK: Reference.ExtDBType
    KINESIS: Reference.ExtDBType
    REDSHIFT: Reference.ExtDBType
    MONGO: Reference.ExtDBType
    PUBSUB: Reference.ExtDBType
    DBTYPE_FIELD_NUMBER: _ClassVar[int]
    dbtype: Reference.ExtDBType
    def __init__(self, dbtype: _Optional[_Union[Reference.ExtDBType, str]] = ...) -> None: ...

class Webhook(_message.Message):
    __slots__ = ("name", "retention")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    name: str
    retention: _duration_pb2.Duration
    def __init__(self, name: _Optional[str] = ..., retention: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class MySQL(_message.Message):
    __slots__ = ("user", "username_secret", "password", "password_secret", "host", "database", "port", "jdbc_params")
    USER_FIELD_NUMBER: _ClassVar[int]
    USERNAME_SECRET_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_SECRET_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    DATABASE_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    JDBC_PARAMS_FIELD_NUMBER: _ClassVar[int]
    user: str
    username_secret: _secret_pb2.SecretRef
    password: str
    password_secret: _secret_pb2.SecretRef
    host: str
    database: str
    port: int
    jdbc_params: str
    def __init__(self, user: _Optional[str] = ..., username_secret: _Optional[_Union[_secret_pb2.SecretRef, _Mapping]] = ..., password: _Optional[str] = ..., password_secret: _Optional[_Union[_secret_pb2.SecretRef, _Mapping]] = ..., host: _Optional[str] = ..., database: _Optional[str] = ..., port: _Optional[int] = ..., jdbc_params: _Optional[str] = ...) -> None: ...

class Postgres(_message.Message):
    __slots__ = ("user", "username_secret", "password", "password_secret", "host", "database", "port", "jdbc_params")
    USER_FIELD_NUMBER: _ClassVar[int]
    USERNAME_SECRET_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_SECRET_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    DATABASE_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    JDBC_PARAMS_FIELD_NUMBER: _ClassVar[int]
    user: str
    username_secret: _secret_pb2.SecretRef
    password: str
    password_secret: _secret_pb2.SecretRef
    host: str
    database: str
    port: int
    jdbc_params: str
    def __init__(self, user: _Optional[str] = ..., username_secret: _Optional[_Union[_secret_pb2.SecretRef, _Mapping]] = ..., password: _Optional[str] = ..., password_secret: _Optional[_Union[_secret_pb2.SecretRef, _Mapping]] = ..., host: _Optional[str] = ..., database: _Optional[str] = ..., port: _Optional[int] = ..., jdbc_params: _Optional[str] = ...) -> None: ...

class S3(_message.Message):
    __slots__ = ("aws_secret_access_key", "aws_secret_access_key_secret", "aws_access_key_id", "aws_access_key_id_secret", "role_arn")
    AWS_SECRET_ACCESS_KEY_FIELD_NUMBER: _ClassVar[int]
    AWS_SECRET_ACCESS_KEY_SECRET_FIELD_NUMBER: _ClassVar[int]
    AWS_ACCESS_KEY_ID_FIELD_NUMBER: _ClassVar[int]
    AWS_ACCESS_KEY_ID_SECRET_FIELD_NUMBER: _ClassVar[int]
    ROLE_ARN_FIELD_NUMBER: _ClassVar[int]
    aws_secret_access_key: str
    aws_secret_access_key_secret: _secret_pb2.SecretRef
    aws_access_key_id: str
    aws_access_key_id_secret: _secret_pb2.SecretRef
    role_arn: str
    def __init__(self, aws_secret_access_key: _Optional[str] = ..., aws_secret_access_key_secret: _Optional[_Union[_secret_pb2.SecretRef, _Mapping]] = ..., aws_access_key_id: _Optional[str] = ..., aws_access_key_id_secret: _Optional[_Union[_secret_pb2.SecretRef, _Mapping]] = ..., role_arn: _Optional[str] = ...) -> None: ...

class Bigquery(_message.Message):
    __slots__ = ("service_account_key", "service_account_key_secret", "dataset_id", "project_id")
    SERVICE_ACCOUNT_KEY_FIELD_NUMBER: _ClassVar[int]
    SERVICE_ACCOUNT_KEY_SECRET_FIELD_NUMBER: _ClassVar[int]
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    PROJECT_ID_FIELD_NUMBER: _ClassVar[int]
    service_account_key: str
    service_account_key_secret: _secret_pb2.SecretRef
    dataset_id: str
    project_id: str
    def __init__(self, service_account_key: _Optional[str] = ..., service_account_key_secret: _Optional[_Union[_secret_pb2.SecretRef, _Mapping]] = ..., dataset_id: _Optional[str] = ..., project_id: _Optional[str] = ...) -> None: ...

class Snowflake(_message.Message):
    __slots__ = ("user", "username_secret", "password", "password_secret", "account", "schema", "warehouse", "role", "database")
    USER_FIELD_NUMBER: _ClassVar[int]
    USERNAME_SECRET_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_SECRET_FIELD_NUMBER: _ClassVar[int]
    ACCOUNT_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    WAREHOUSE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    DATABASE_FIELD_NUMBER: _ClassVar[int]
    user: str
    username_secret: _secret_pb2.SecretRef
    password: str
    password_secret: _secret_pb2.SecretRef
    account: str
    schema: str
    warehouse: str
    role: str
    database: str
    def __init__(self, user: _Optional[str] = ..., username_secret: _Optional[_Union[_secret_pb2.SecretRef, _Mapping]] = ..., password: _Optional[str] = ..., password_secret: _Optional[_Union[_secret_pb2.SecretRef, _Mapping]] = ..., account: _Optional[str] = ..., schema: _Optional[str] = ..., warehouse: _Optional[str] = ..., role: _Optional[str] = ..., database: _Optional[str] = ...) -> None: ...

class Kafka(_message.Message):
    __slots__ = ("sasl_plain_username", "sasl_username_secret", "sasl_plain_password", "sasl_password_secret", "bootstrap_servers", "security_protocol", "sasl_mechanism", "sasl_jaas_config", "group_id")
    SASL_PLAIN_USERNAME_FIELD_NUMBER: _ClassVar[int]
    SASL_USERNAME_SECRET_FIELD_NUMBER: _ClassVar[int]
    SASL_PLAIN_PASSWORD_FIELD_NUMBER: _ClassVar[int]
    SASL_PASSWORD_SECRET_FIELD_NUMBER: _ClassVar[int]
    BOOTSTRAP_SERVERS_FIELD_NUMBER: _ClassVar[int]
    SECURITY_PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    SASL_MECHANISM_FIELD_NUMBER: _ClassVar[int]
    SASL_JAAS_CONFIG_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    sasl_plain_username: str
    sasl_username_secret: _secret_pb2.SecretRef
    sasl_plain_password: str
    sasl_password_secret: _secret_pb2.SecretRef
    bootstrap_servers: str
    security_protocol: str
    sasl_mechanism: str
    sasl_jaas_config: str
    group_id: str
    def __init__(self, sasl_plain_username: _Optional[str] = ..., sasl_username_secret: _Optional[_Union[_secret_pb2.SecretRef, _Mapping]] = ..., sasl_plain_password: _Optional[str] = ..., sasl_password_secret: _Optional[_Union[_secret_pb2.SecretRef, _Mapping]] = ..., bootstrap_servers: _Optional[str] = ..., security_protocol: _Optional[str] = ..., sasl_mechanism: _Optional[str] = ..., sasl_jaas_config: _Optional[str] = ..., group_id: _Optional[str] = ...) -> None: ...

class Kinesis(_message.Message):
    __slots__ = ("role_arn",)
    ROLE_ARN_FIELD_NUMBER: _ClassVar[int]
    role_arn: str
    def __init__(self, role_arn: _Optional[str] = ...) -> None: ...

class Credentials(_message.Message):
    __slots__ = ("username", "username_secret", "password", "password_secret")
    USERNAME_FIELD_NUMBER: _ClassVar[int]
    USERNAME_SECRET_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_SECRET_FIELD_NUMBER: _ClassVar[int]
    username: str
    username_secret: _secret_pb2.SecretRef
    password: str
    password_secret: _secret_pb2.SecretRef
    def __init__(self, username: _Optional[str] = ..., username_secret: _Optional[_Union[_secret_pb2.SecretRef, _Mapping]] = ..., password: _Optional[str] = ..., password_secret: _Optional[_Union[_secret_pb2.SecretRef, _Mapping]] = ...) -> None: ...

class RedshiftAuthentication(_message.Message):
    __slots__ = ("s3_access_role_arn", "credentials")
    S3_ACCESS_ROLE_ARN_FIELD_NUMBER: _ClassVar[int]
    CREDENTIALS_FIELD_NUMBER: _ClassVar[int]
    s3_access_role_arn: str
    credentials: Credentials
    def __init__(self, s3_access_role_arn: _Optional[str] = ..., credentials: _Optional[_Union[Credentials, _Mapping]] = ...) -> None: ...

class Redshift(_message.Message):
    __slots__ = ("database", "host", "port", "schema", "redshift_authentication")
    DATABASE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    REDSHIFT_AUTHENTICATION_FIELD_NUMBER: _ClassVar[int]
    database: str
    host: str
    port: int
    schema: str
    redshift_authentication: RedshiftAuthentication
    def __init__(self, database: _Optional[str] = ..., host: _Optional[str] = ..., port: _Optional[int] = ..., schema: _Optional[str] = ..., redshift_authentication: _Optional[_Union[RedshiftAuthentication, _Mapping]] = ...) -> None: ...

class Mongo(_message.Message):
    __slots__ = ("user", "username_secret", "password", "password_secret", "host", "database")
    USER_FIELD_NUMBER: _ClassVar[int]
    USERNAME_SECRET_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_SECRET_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    DATABASE_FIELD_NUMBER: _ClassVar[int]
    user: str
    username_secret: _secret_pb2.SecretRef
    password: str
    password_secret: _secret_pb2.SecretRef
    host: str
    database: str
    def __init__(self, user: _Optional[str] = ..., username_secret: _Optional[_Union[_secret_pb2.SecretRef, _Mapping]] = ..., password: _Optional[str] = ..., password_secret: _Optional[_Union[_secret_pb2.SecretRef, _Mapping]] = ..., host: _Optional[str] = ..., database: _Optional[str] = ...) -> None: ...

class PubSub(_message.Message):
    __slots__ = ("service_account_key", "service_account_key_secret", "project_id")
    SERVICE_ACCOUNT_KEY_FIELD_NUMBER: _ClassVar[int]
    SERVICE_ACCOUNT_KEY_SECRET_FIELD_NUMBER: _ClassVar[int]
    PROJECT_ID_FIELD_NUMBER: _ClassVar[int]
    service_account_key: str
    service_account_key_secret: _secret_pb2.SecretRef
    project_id: str
    def __init__(self, service_account_key: _Optional[str] = ..., service_account_key_secret: _Optional[_Union[_secret_pb2.SecretRef, _Mapping]] = ..., project_id: _Optional[str] = ...) -> None: ...

class SensitiveDatum(_message.Message):
    __slots__ = ("secret", "secret_ref")
    SECRET_FIELD_NUMBER: _ClassVar[int]
    SECRET_REF_FIELD_NUMBER: _ClassVar[int]
    secret: str
    secret_ref: _secret_pb2.SecretRef
    def __init__(self, secret: _Optional[str] = ..., secret_ref: _Optional[_Union[_secret_pb2.SecretRef, _Mapping]] = ...) -> None: ...

class Http(_message.Message):
    __slots__ = ("host", "host_secret", "healthz", "ca_cert")
    HOST_FIELD_NUMBER: _ClassVar[int]
    HOST_SECRET_FIELD_NUMBER: _ClassVar[int]
    HEALTHZ_FIELD_NUMBER: _ClassVar[int]
    CA_CERT_FIELD_NUMBER: _ClassVar[int]
    host: str
    host_secret: _secret_pb2.SecretRef
    healthz: str
    ca_cert: SensitiveDatum
    def __init__(self, host: _Optional[str] = ..., host_secret: _Optional[_Union[_secret_pb2.SecretRef, _Mapping]] = ..., healthz: _Optional[str] = ..., ca_cert: _Optional[_Union[SensitiveDatum, _Mapping]] = ...) -> None: ...

class ExtTable(_message.Message):
    __slots__ = ("mysql_table", "pg_table", "s3_table", "kafka_topic", "snowflake_table", "bigquery_table", "endpoint", "kinesis_stream", "redshift_table", "mongo_collection", "pubsub_topic", "http_path")
    MYSQL_TABLE_FIELD_NUMBER: _ClassVar[int]
    PG_TABLE_FIELD_NUMBER: _ClassVar[int]
    S3_TABLE_FIELD_NUMBER: _ClassVar[int]
    KAFKA_TOPIC_FIELD_NUMBER: _ClassVar[int]
    SNOWFLAKE_TABLE_FIELD_NUMBER: _ClassVar[int]
    BIGQUERY_TABLE_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    KINESIS_STREAM_FIELD_NUMBER: _ClassVar[int]
    REDSHIFT_TABLE_FIELD_NUMBER: _ClassVar[int]
    MONGO_COLLECTION_FIELD_NUMBER: _ClassVar[int]
    PUBSUB_TOPIC_FIELD_NUMBER: _ClassVar[int]
    HTTP_PATH_FIELD_NUMBER: _ClassVar[int]
    mysql_table: MySQLTable
    pg_table: PostgresTable
    s3_table: S3Table
    kafka_topic: KafkaTopic
    snowflake_table: SnowflakeTable
    bigquery_table: BigqueryTable
    endpoint: WebhookEndpoint
    kinesis_stream: KinesisStream
    redshift_table: RedshiftTable
    mongo_collection: MongoCollection
    pubsub_topic: PubSubTopic
    http_path: HttpPath
    def __init__(self, mysql_table: _Optional[_Union[MySQLTable, _Mapping]] = ..., pg_table: _Optional[_Union[PostgresTable, _Mapping]] = ..., s3_table: _Optional[_Union[S3Table, _Mapping]] = ..., kafka_topic: _Optional[_Union[KafkaTopic, _Mapping]] = ..., snowflake_table: _Optional[_Union[SnowflakeTable, _Mapping]] = ..., bigquery_table: _Optional[_Union[BigqueryTable, _Mapping]] = ..., endpoint: _Optional[_Union[WebhookEndpoint, _Mapping]] = ..., kinesis_stream: _Optional[_Union[KinesisStream, _Mapping]] = ..., redshift_table: _Optional[_Union[RedshiftTable, _Mapping]] = ..., mongo_collection: _Optional[_Union[MongoCollection, _Mapping]] = ..., pubsub_topic: _Optional[_Union[PubSubTopic, _Mapping]] = ..., http_path: _Optional[_Union[HttpPath, _Mapping]] = ...) -> None: ...

class MySQLTable(_message.Message):
    __slots__ = ("db", "table_name")
    DB_FIELD_NUMBER: _ClassVar[int]
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    db: ExtDatabase
    table_name: str
    def __init__(self, db: _Optional[_Union[ExtDatabase, _Mapping]] = ..., table_name: _Optional[str] = ...) -> None: ...

class PostgresTable(_message.Message):
    __slots__ = ("db", "table_name", "slot_name")
    DB_FIELD_NUMBER: _ClassVar[int]
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    SLOT_NAME_FIELD_NUMBER: _ClassVar[int]
    db: ExtDatabase
    table_name: str
    slot_name: str
    def __init__(self, db: _Optional[_Union[ExtDatabase, _Mapping]] = ..., table_name: _Optional[str] = ..., slot_name: _Optional[str] = ...) -> None: ...

class S3Table(_message.Message):
    __slots__ = ("bucket", "path_prefix", "delimiter", "format", "db", "pre_sorted", "path_suffix", "spread", "headers")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    PATH_PREFIX_FIELD_NUMBER: _ClassVar[int]
    DELIMITER_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    DB_FIELD_NUMBER: _ClassVar[int]
    PRE_SORTED_FIELD_NUMBER: _ClassVar[int]
    PATH_SUFFIX_FIELD_NUMBER: _ClassVar[int]
    SPREAD_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    path_prefix: str
    delimiter: str
    format: str
    db: ExtDatabase
    pre_sorted: bool
    path_suffix: str
    spread: _duration_pb2.Duration
    headers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, bucket: _Optional[str] = ..., path_prefix: _Optional[str] = ..., delimiter: _Optional[str] = ..., format: _Optional[str] = ..., db: _Optional[_Union[ExtDatabase, _Mapping]] = ..., pre_sorted: _Optional[bool] = ..., path_suffix: _Optional[str] = ..., spread: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., headers: _Optional[_Iterable[str]] = ...) -> None: ...

class KafkaTopic(_message.Message):
    __slots__ = ("db", "topic", "format")
    DB_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    db: ExtDatabase
    topic: str
    format: KafkaFormat
    def __init__(self, db: _Optional[_Union[ExtDatabase, _Mapping]] = ..., topic: _Optional[str] = ..., format: _Optional[_Union[KafkaFormat, _Mapping]] = ...) -> None: ...

class BigqueryTable(_message.Message):
    __slots__ = ("db", "table_name")
    DB_FIELD_NUMBER: _ClassVar[int]
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    db: ExtDatabase
    table_name: str
    def __init__(self, db: _Optional[_Union[ExtDatabase, _Mapping]] = ..., table_name: _Optional[str] = ...) -> None: ...

class SnowflakeTable(_message.Message):
    __slots__ = ("db", "table_name")
    DB_FIELD_NUMBER: _ClassVar[int]
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    db: ExtDatabase
    table_name: str
    def __init__(self, db: _Optional[_Union[ExtDatabase, _Mapping]] = ..., table_name: _Optional[str] = ...) -> None: ...

class WebhookEndpoint(_message.Message):
    __slots__ = ("db", "endpoint", "duration")
    DB_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    db: ExtDatabase
    endpoint: str
    duration: _duration_pb2.Duration
    def __init__(self, db: _Optional[_Union[ExtDatabase, _Mapping]] = ..., endpoint: _Optional[str] = ..., duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class KinesisStream(_message.Message):
    __slots__ = ("stream_arn", "init_position", "init_timestamp", "format", "db")
    STREAM_ARN_FIELD_NUMBER: _ClassVar[int]
    INIT_POSITION_FIELD_NUMBER: _ClassVar[int]
    INIT_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    DB_FIELD_NUMBER: _ClassVar[int]
    stream_arn: str
    init_position: _kinesis_pb2.InitPosition
    init_timestamp: _timestamp_pb2.Timestamp
    format: str
    db: ExtDatabase
    def __init__(self, stream_arn: _Optional[str] = ..., init_position: _Optional[_Union[_kinesis_pb2.InitPosition, str]] = ..., init_timestamp: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., format: _Optional[str] = ..., db: _Optional[_Union[ExtDatabase, _Mapping]] = ...) -> None: ...

class RedshiftTable(_message.Message):
    __slots__ = ("db", "table_name")
    DB_FIELD_NUMBER: _ClassVar[int]
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    db: ExtDatabase
    table_name: str
    def __init__(self, db: _Optional[_Union[ExtDatabase, _Mapping]] = ..., table_name: _Optional[str] = ...) -> None: ...

class PubSubTopic(_message.Message):
    __slots__ = ("db", "topic_id", "format")
    DB_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    db: ExtDatabase
    topic_id: str
    format: PubSubFormat
    def __init__(self, db: _Optional[_Union[ExtDatabase, _Mapping]] = ..., topic_id: _Optional[str] = ..., format: _Optional[_Union[PubSubFormat, _Mapping]] = ...) -> None: ...

class HttpPath(_message.Message):
    __slots__ = ("db", "endpoint", "limit", "headers")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    DB_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    db: ExtDatabase
    endpoint: str
    limit: int
    headers: _containers.ScalarMap[str, str]
    def __init__(self, db: _Optional[_Union[ExtDatabase, _Mapping]] = ..., endpoint: _Optional[str] = ..., limit: _Optional[int] = ..., headers: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Eval(_message.Message):
    __slots__ = ("schema", "expr", "pycode")
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    EXPR_FIELD_NUMBER: _ClassVar[int]
    PYCODE_FIELD_NUMBER: _ClassVar[int]
    schema: _schema_pb2.Schema
    expr: _expression_pb2.Expr
    pycode: _pycode_pb2.PyCode
    def __init__(self, schema: _Optional[_Union[_schema_pb2.Schema, _Mapping]] = ..., expr: _Optional[_Union[_expression_pb2.Expr, _Mapping]] = ..., pycode: _Optional[_Union[_pycode_pb2.PyCode, _Mapping]] = ...) -> None: ...

class PreProcValue(_message.Message):
    __slots__ = ("ref", "value", "eval")
    REF_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    EVAL_FIELD_NUMBER: _ClassVar[int]
    ref: str
    value: _schema_pb2.Value
    eval: Eval
    def __init__(self, ref: _Optional[str] = ..., value: _Optional[_Union[_schema_pb2.Value, _Mapping]] = ..., eval: _Optional[_Union[Eval, _Mapping]] = ...) -> None: ...

class MongoCollection(_message.Message):
    __slots__ = ("db", "collection_name")
    DB_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_NAME_FIELD_NUMBER: _ClassVar[int]
    db: ExtDatabase
    collection_name: str
    def __init__(self, db: _Optional[_Union[ExtDatabase, _Mapping]] = ..., collection_name: _Optional[str] = ...) -> None: ...

class SnapshotData(_message.Message):
    __slots__ = ("marker", "num_retain")
    MARKER_FIELD_NUMBER: _ClassVar[int]
    NUM_RETAIN_FIELD_NUMBER: _ClassVar[int]
    marker: str
    num_retain: int
    def __init__(self, marker: _Optional[str] = ..., num_retain: _Optional[int] = ...) -> None: ...

class Style(_message.Message):
    __slots__ = ("incremental", "recreate", "snapshot")
    INCREMENTAL_FIELD_NUMBER: _ClassVar[int]
    RECREATE_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    incremental: Incremental
    recreate: Recreate
    snapshot: SnapshotData
    def __init__(self, incremental: _Optional[_Union[Incremental, _Mapping]] = ..., recreate: _Optional[_Union[Recreate, _Mapping]] = ..., snapshot: _Optional[_Union[SnapshotData, _Mapping]] = ...) -> None: ...

class Source(_message.Message):
    __slots__ = ("table", "dataset", "ds_version", "every", "cursor", "disorder", "timestamp_field", "cdc", "starting_from", "pre_proc", "version", "bounded", "idleness", "until", "filter", "sampling_strategy", "filter_expr", "filter_schema")
    class PreProcEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: PreProcValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[PreProcValue, _Mapping]] = ...) -> None: ...
    TABLE_FIELD_NUMBER: _ClassVar[int]
    DATASET_FIELD_NUMBER: _ClassVar[int]
    DS_VERSION_FIELD_NUMBER: _ClassVar[int]
    EVERY_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    DISORDER_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_FIELD_NUMBER: _ClassVar[int]
    CDC_FIELD_NUMBER: _ClassVar[int]
    STARTING_FROM_FIELD_NUMBER: _ClassVar[int]
    PRE_PROC_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BOUNDED_FIELD_NUMBER: _ClassVar[int]
    IDLENESS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_STRATEGY_FIELD_NUMBER: _ClassVar[int]
    FILTER_EXPR_FIELD_NUMBER: _ClassVar[int]
    FILTER_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    table: ExtTable
    dataset: str
    ds_version: int
    every: _duration_pb2.Duration
    cursor: str
    disorder: _duration_pb2.Duration
    timestamp_field: str
    cdc: CDCStrategy
    starting_from: _timestamp_pb2.Timestamp
    pre_proc: _containers.MessageMap[str, PreProcValue]
    version: int
    bounded: bool
    idleness: _duration_pb2.Duration
    until: _timestamp_pb2.Timestamp
    filter: _pycode_pb2.PyCode
    sampling_strategy: SamplingStrategy
    filter_expr: _expression_pb2.Expr
    filter_schema: _schema_pb2.Schema
    def __init__(self, table: _Optional[_Union[ExtTable, _Mapping]] = ..., dataset: _Optional[str] = ..., ds_version: _Optional[int] = ..., every: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., cursor: _Optional[str] = ..., disorder: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., timestamp_field: _Optional[str] = ..., cdc: _Optional[_Union[CDCStrategy, str]] = ..., starting_from: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., pre_proc: _Optional[_Mapping[str, PreProcValue]] = ..., version: _Optional[int] = ..., bounded: _Optional[bool] = ..., idleness: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., filter: _Optional[_Union[_pycode_pb2.PyCode, _Mapping]] = ..., sampling_strategy: _Optional[_Union[SamplingStrategy, _Mapping]] = ..., filter_expr: _Optional[_Union[_expression_pb2.Expr, _Mapping]] = ..., filter_schema: _Optional[_Union[_schema_pb2.Schema, _Mapping]] = ...) -> None: ...

class Sink(_message.Message):
    __slots__ = ("table", "dataset", "ds_version", "cdc", "every", "how", "create", "renames", "since", "until", "stacked")
    class RenamesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TABLE_FIELD_NUMBER: _ClassVar[int]
    DATASET_FIELD_NUMBER: _ClassVar[int]
    DS_VERSION_FIELD_NUMBER: _ClassVar[int]
    CDC_FIELD_NUMBER: _ClassVar[int]
    EVERY_FIELD_NUMBER: _ClassVar[int]
    HOW_FIELD_NUMBER: _ClassVar[int]
    CREATE_FIELD_NUMBER: _ClassVar[int]
    RENAMES_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    STACKED_FIELD_NUMBER: _ClassVar[int]
    table: ExtTable
    dataset: str
    ds_version: int
    cdc: CDCStrategy
    every: _duration_pb2.Duration
    how: Style
    create: bool
    renames: _containers.ScalarMap[str, str]
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    stacked: bool
    def __init__(self, table: _Optional[_Union[ExtTable, _Mapping]] = ..., dataset: _Optional[str] = ..., ds_version: _Optional[int] = ..., cdc: _Optional[_Union[CDCStrategy, str]] = ..., every: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., how: _Optional[_Union[Style, _Mapping]] = ..., create: _Optional[bool] = ..., renames: _Optional[_Mapping[str, str]] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., stacked: _Optional[bool] = ...) -> None: ...

class DebeziumFormat(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class JsonFormat(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Incremental(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Recreate(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
