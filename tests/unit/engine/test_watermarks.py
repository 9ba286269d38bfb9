"""The watermark depends on the accepted rows only, not on what a job makes of them."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from fennel_core.blueprints.spec import Job, Output
from fennel_core.engine.broker import OutgoingRecord, Record
from fennel_core.engine.watermarks import (
    OutputWatermarks,
    batch_max_time,
    carries_watermark,
    received_watermark,
)
from fennel_core.operators import spec
from fennel_core.operators.step import OutputBatch
from fennel_core.vocab.dtypes import Field, Int, Str
from fennel_core.vocab.ids import JobId, Micros, Offset, TopicName, WorkspaceId
from fennel_core.vocab.schema import Schema

CLICKS = Schema((), (Field("uid", Str()),), "at")
USERS = Schema((Field("uid", Str()),), (Field("n", Int()),), "at")
MET = Schema((), (Field("uid", Str()), Field("n", Int())), "at")
JOIN = spec.JoinSpec(CLICKS, USERS, ("uid",), ("n",), True, None, 0, MET)
OUT = TopicName("out")
JOB = Job(
    JobId("j"),
    WorkspaceId("w"),
    (TopicName("c"), TopicName("u")),
    (Output(OUT, (), True),),
    JOIN,
    TopicName("r"),
    TopicName("d"),
    2,
    "",
)


def rows(*signed: tuple[int, int]) -> pl.DataFrame:
    """(sign, time) each."""
    times = pl.Series("at", [time for _, time in signed], dtype=pl.Int64).cast(
        pl.Datetime("us", "UTC")
    )
    return pl.DataFrame(
        {"__sign": pl.Series([sign for sign, _ in signed], dtype=pl.Int8), "at": times}
    )


def watermarks_of(sent: list[OutgoingRecord]) -> dict[int, Micros | None]:
    """The watermark per partition."""
    return {
        m.partition: received_watermark([Record(Offset(0), m.value, m.headers[0][1].decode())])
        for m in sent
    }


def test_only_the_left_side_of_a_join_counts_for_the_watermark() -> None:
    assert batch_max_time(JOB, 0, rows((1, 5), (1, 9), (-1, 30))) == 9
    assert batch_max_time(JOB, 1, rows((1, 70))) is None


def test_both_sides_of_a_table_join_count_for_the_watermark() -> None:
    keyed = replace(JOB, step=replace(JOIN, output=USERS))
    assert [batch_max_time(keyed, source, rows((1, 7))) for source in (0, 1)] == [7, 7]


def test_the_input_rows_of_a_map_do_not_count_for_the_watermark() -> None:
    assert (
        batch_max_time(replace(JOB, step=spec.MapSpec((CLICKS,), ((),), CLICKS)), 0, rows((1, 7)))
        is None
    )


def test_every_partition_gets_the_larger_of_received_and_emitted_time_once() -> None:
    watermarks = OutputWatermarks(JOB)
    assert watermarks_of(
        watermarks.records((OutputBatch(0, rows((1, 5), (-1, 90))),), Micros(9))
    ) == {
        0: 9,
        1: 9,
    }
    assert watermarks.records((), Micros(9)) == []
    assert watermarks_of(watermarks.records((OutputBatch(0, rows((1, 12))),), None)) == {
        0: 12,
        1: 12,
    }
    assert watermarks.records((), None) == []


def test_an_output_without_the_watermark_gets_no_control_records() -> None:
    job = replace(JOB, outputs=(Output(OUT, ()),))
    assert carries_watermark(JOB)
    assert not carries_watermark(job)
    assert OutputWatermarks(job).records((), Micros(9)) == []
