"""What a round of a source of files reports, and what is checked before the first."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from fennel_core.connections.external_s3 import ExternalBucketUnusable
from fennel_core.settings.model import Settings
from fennel_core.sources import rounds
from fennel_core.sources.feeds import Feed
from fennel_core.sources.kinds import StartedBy
from fennel_core.sources.rounds import RoundFailed
from fennel_core.sources.s3_files import start
from fennel_core.sources.task import Counts
from fennel_core.sources.task_rounds import NAMED, ROUND, TaskRounds, round_end
from fennel_core.wire.connectors import S3, Login, PlainSecret, S3Table
from tests.support.ingest_world import WORKSPACE
from tests.support.source_world import POSITIONS, RAW

LAKE = S3Table(
    S3("lake", None, Login(None, None)), "shared", "in/", "*", "json", "", (), False, None
)


def test_a_round_reports_files_that_could_not_be_read() -> None:
    unread = {f"f{number:02}": "refused" for number in range(30)}
    end = round_end(Counts().batch(), 7, 31, unread)
    assert end.schema == ROUND
    (row,) = end.to_pylist()
    assert (row["read"], row["left"], row["waiting"]) == (7, 31, 30)
    assert row["unread"] == [f"f{number:02}: refused" for number in range(NAMED)]


def test_a_round_reports_what_became_of_rows() -> None:
    counts = pa.RecordBatch.from_pylist([{"source": "a", "dataset": "b", "accepted": 3}])
    counted, end = round_end(counts, 3, 0, {}).to_pylist()
    assert (counted["accepted"], counted["left"]) == (3, None)
    assert (end["source"], end["left"], end["waiting"], end["unread"]) == (None, 0, 0, [])


def test_a_limited_round_that_failed_has_read_rows_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Spark's wants a context where another test of the process has had one.
    monkeypatch.setattr(rounds, "InheritableThread", threading.Thread)
    counts = pa.RecordBatch.from_pylist([{"source": "a", "dataset": "b", "accepted": 3}])
    found = pa.Table.from_batches([round_end(counts, 5, "the broker refused", {})])
    frame = SimpleNamespace(toArrow=lambda: found)
    spark = SimpleNamespace(
        range=lambda *_, **__: SimpleNamespace(mapInArrow=lambda *_: frame), sparkContext=None
    )
    counted: list[pa.Table] = []
    by = SimpleNamespace(
        spark=spark,
        settings=Settings(),
        feed=Feed(WORKSPACE, RAW, POSITIONS, 1, LAKE),
        count_rows=counted.append,
    )
    reading = TaskRounds(cast(Any, by), lambda: found)
    with pytest.raises(RoundFailed, match="the broker refused") as failed:
        reading.read()
    assert failed.value.rows == 5
    assert counted[-1].to_pylist()[0]["accepted"] == 3


@pytest.mark.parametrize(
    ("bucket", "keys", "text"),
    [
        ("own", True, "bucket of the platform itself"),
        ("other", False, "FENNEL_SOURCE_SHARED_BUCKETS"),
        ("other", True, "cannot be used"),
        ("shared", False, "cannot be used"),
    ],
)
def test_buckets_are_checked_at_each_start(bucket: str, keys: bool, text: str) -> None:
    pair = Login(PlainSecret("key"), PlainSecret("other")) if keys else Login(None, None)
    table = S3Table(S3("lake", None, pair), bucket, "in/", "*", "json", "", (), False, None)
    settings = Settings(
        s3_endpoint="http://127.0.0.1:1", s3_bucket="own", source_shared_buckets=("shared",)
    )
    feed = Feed(WORKSPACE, RAW, POSITIONS, 1, table)
    spark: SparkSession = None  # type: ignore[assignment]  # what is refused starts nothing
    by = StartedBy(spark, settings, feed, lambda *_: "", lambda _: None)
    with pytest.raises(ExternalBucketUnusable, match=text):
        start(by, table)
