"""Every kind of source and sink, and every option a source can have."""

# ruff: noqa: UP045, DTZ001 - the client reads annotations as typing's generics, and naive datetimes
# as UTC

from datetime import datetime
from typing import Optional

from fennel.connectors import (
    CSV,
    HTTP,
    S3,
    Avro,
    BigQuery,
    Certificate,
    Kafka,
    Kinesis,
    Mongo,
    MySQL,
    Postgres,
    Protobuf,
    PubSub,
    Redshift,
    Snowflake,
    Webhook,
    at_timestamp,
    eval,
    ref,
    sink,
    source,
)
from fennel.connectors.connectors import Sample
from fennel.datasets import Dataset, dataset, field, pipeline
from fennel.expr import col
from fennel.integrations.aws import Secret
from fennel.lib import expect_column_values_to_be_between, expectations, inputs

__owner__ = "data@example.com"
secret = Secret(arn="arn:aws:secretsmanager:eu:1:secret:db", role_arn="arn:aws:iam::1:role/reader")

webhook = Webhook(name="hooks", retention="14d")
mysql = MySQL(
    name="mysql",
    host="my.example",
    db_name="shop",
    username="reader",
    password="mysql-password",  # noqa: S106  # a fixed value of a test
    jdbc_params="useSSL=true",
)
postgres = Postgres(
    name="postgres",
    host="pg.example",
    db_name="shop",
    username=secret["user"],
    password=secret["password"],
)
s3 = S3(name="s3", aws_access_key_id="key-id", aws_secret_access_key="secret-key")  # noqa: S106  # a fixed value of a test
own_s3 = S3(name="own_s3")
bigquery = BigQuery(
    name="bigquery",
    project_id="proj",
    dataset_id="shop",
    service_account_key={"type": "service_account"},
)
snowflake = Snowflake(
    name="snowflake",
    account="acme",
    db_name="shop",
    username="u",
    password="p",  # noqa: S106  # a fixed value of a test
    warehouse="wh",
    schema="public",
    role="reader",
)
kafka = Kafka(
    name="kafka",
    bootstrap_servers="broker:9092",
    security_protocol="SASL_PLAINTEXT",
    sasl_mechanism="PLAIN",
    sasl_plain_username="u",
    sasl_plain_password=secret["kafka"],
)
kinesis = Kinesis(name="kinesis", role_arn="arn:aws:iam::1:role/kinesis")
redshift = Redshift(
    name="redshift",
    s3_access_role_arn="arn:aws:iam::1:role/s3",
    db_name="shop",
    host="rs.example",
    schema="public",
)
redshift_login = Redshift(
    name="redshift_login",
    username="u",
    password="p",  # noqa: S106  # a fixed value of a test
    db_name="shop",
    host="rs.example",
    schema="public",
)
mongo = Mongo(name="mongo", host="mongo.example", db_name="shop", username="u", password="p")  # noqa: S106  # a fixed value of a test
pubsub = PubSub(name="pubsub", project_id="proj", service_account_key={"type": "service_account"})
http = HTTP(
    name="http", host="https://hook.example", healthz="/health", ca_cert=Certificate("certificate")
)
avro = Avro(
    registry="confluent",
    url="https://registry.example",
    username="u",
    password="p",  # noqa: S106  # a fixed value of a test
    token=None,
)
protobuf = Protobuf(registry="confluent", url="https://registry.example", token="token")  # noqa: S106  # a fixed value of a test


def positive_id(df):
    return df["id"] > 0


def raw_plus_one(df):
    return df["raw"].astype(int) + 1


@source(
    webhook.endpoint("Events"),
    disorder="1d",
    cdc="append",
    preproc={
        "copied": ref("payload"),
        "text": "constant",
        "number": 7,
        "ratio": 0.5,
        "flag": True,
        "at": datetime(2024, 1, 2, 3, 4, 5),
        "coded": eval(raw_plus_one, schema={"raw": str}),
        "computed": eval(col("raw_number") * 2, schema={"raw_number": int}),
    },
    where=eval(col("plain") > 0),
    bounded=True,
    idleness="1h",
    sample=Sample(0.25, using=["plain"]),
)
@dataset
class Events:
    plain: int
    copied: str
    text: str
    number: int
    ratio: float
    flag: bool
    coded: int
    computed: int
    at: datetime

    @expectations
    def quality(cls):
        return [
            expect_column_values_to_be_between(
                column="plain", min_value=0, max_value=10, mostly=0.9
            )
        ]


@source(mysql.table("orders", cursor="updated"), disorder="1h", cdc="upsert", every="5m", env="a")
@source(
    postgres.table("orders", cursor="updated"),
    disorder="1h",
    cdc="upsert",
    since=datetime(2024, 1, 1),
    env="b",
)
@source(
    snowflake.table("ORDERS", cursor="updated"),
    disorder="1h",
    cdc="upsert",
    until=datetime(2025, 1, 1),
    env="c",
)
@source(bigquery.table("orders", cursor="updated"), disorder="1h", cdc="upsert", env="d")
@source(redshift.table("orders", cursor="updated"), disorder="1h", cdc="upsert", env="e")
@source(redshift_login.table("orders", cursor="updated"), disorder="1h", cdc="upsert", env="f")
@source(mongo.collection("orders", cursor="updated"), disorder="1h", cdc="upsert", env="g")
@source(
    kafka.topic("orders"),
    disorder="1h",
    cdc="debezium",
    preproc={"note": ref("payload[note][text]")},
    env="h",
)
@source(kafka.topic("orders-avro", format=avro), disorder="1h", cdc="debezium", env="i")
@source(kafka.topic("orders-protobuf", format=protobuf), disorder="1h", cdc="debezium", env="j")
@source(
    s3.bucket("lake", path="orders/%Y/*.csv", format=CSV("|", ["id", "updated"]), spread="2d"),
    disorder="1h",
    cdc="upsert",
    env="k",
)
@source(s3.bucket("lake", prefix="delta", format="delta"), disorder="1h", cdc="native", env="l")
@source(
    kinesis.stream("arn:aws:kinesis:eu:1:stream/o", init_position="latest", format="json"),
    disorder="1h",
    cdc="upsert",
    env="m",
)
@source(
    kinesis.stream(
        "arn:aws:kinesis:eu:1:stream/o",
        init_position=at_timestamp(datetime(2024, 1, 2)),
        format="json",
    ),
    disorder="1h",
    cdc="upsert",
    env="n",
)
@source(pubsub.topic("orders", format="json"), disorder="1h", cdc="upsert", env="o")
@source(
    MySQL.get(name="configured").table("orders", cursor="updated"),
    disorder="1h",
    cdc="upsert",
    env="p",
)
@source(webhook.endpoint("Orders"), disorder="1h", cdc="upsert", where=positive_id, env="q")
@dataset
class Orders:
    id: int = field(key=True)
    note: Optional[str]
    updated: datetime


@sink(kafka.topic("out"), cdc="debezium", env="a")
@sink(
    http.path("/rows", limit=100, headers={"X-Team": "data", "Accept": "*/*"}),
    cdc="debezium",
    env="b",
)
@sink(
    own_s3.bucket("lake", prefix="out", format="delta"),
    how="incremental",
    every="1h",
    since=datetime(2024, 1, 1),
    env="c",
)
@sink(snowflake.table("OUT"), how="incremental", every="1d", env="d")
@dataset
class Copied:
    id: int = field(key=True)
    note: Optional[str]
    updated: datetime

    @pipeline
    @inputs(Orders)
    def copy(cls, orders: Dataset):
        return orders.filter(col("id") > 0)


OBJECTS = [Events, Orders, Copied]
ENV = None
