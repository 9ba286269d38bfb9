"""The jars that Maven resolved are enough for Spark.

The test writes Parquet to S3 and reads a topic as a stream with its checkpoint on S3. It runs as a
program because Spark's classpath is fixed when its JVM starts.
"""

import subprocess
import sys
import uuid

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from fennel_core.settings.model import Settings

PROGRAM = """
import sys
from pyspark.sql import SparkSession
from fennel_core.settings.model import Settings

topic, settings = sys.argv[1], Settings()
jars = ",".join(str(path) for path in sorted((settings.jars_dir / "spark").glob("*.jar")))
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.jars", jars)
    .config("spark.ui.enabled", False)
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.sql.shuffle.partitions", 1)
    .config("spark.hadoop.fs.s3a.endpoint", settings.s3_endpoint)
    .config("spark.hadoop.fs.s3a.endpoint.region", settings.s3_region)
    .config("spark.hadoop.fs.s3a.path.style.access", True)
    .config("spark.hadoop.fs.s3a.access.key", settings.s3_access_key)
    .config("spark.hadoop.fs.s3a.secret.key", settings.s3_secret_key.get_secret_value())
    .getOrCreate()
)
base = f"s3a://{settings.s3_bucket}/tests/{topic}"
spark.range(5).write.parquet(f"{base}/batch")
print("batch", spark.read.parquet(f"{base}/batch").count())
servers = settings.kafka_bootstrap
stream = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
stream = stream.option("subscribe", topic).option("startingOffsets", "earliest")
rows = stream.load().selectExpr("CAST(value AS STRING) AS value")
writer = rows.writeStream.trigger(availableNow=True)
writer = writer.option("checkpointLocation", f"{base}/checkpoint")
query = writer.format("parquet").start(f"{base}/stream")
query.awaitTermination()
print("stream", sorted(row.value for row in spark.read.parquet(f"{base}/stream").collect()))
spark.stop()
"""


@pytest.mark.long
@pytest.mark.platform
def test_spark_reads_kafka_and_writes_parquet_to_s3(infra: None) -> None:
    topic = f"jars-{uuid.uuid4().hex}"
    bootstrap = Settings().kafka_bootstrap
    admin, producer = (
        AdminClient({"bootstrap.servers": bootstrap}),
        Producer({"bootstrap.servers": bootstrap}),
    )
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(timeout=10)
    try:
        for value in ("one", "two"):
            producer.produce(topic, value)
        producer.flush(10)
        done = subprocess.run(  # noqa: S603  # a program of this test, and no shell
            [sys.executable, "-c", PROGRAM, topic],
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
    finally:
        admin.delete_topics([topic])[topic].result(timeout=10)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == ["batch 5", "stream ['one', 'two']"]
