"""Frontiers are a function of what was accepted, so what a job tells depends on what it was given,
not on what it made of it.
"""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from fennel_core.blueprints.spec import Job, Output
from fennel_core.engine.broker import OutgoingRecord, Record
from fennel_core.engine.watermarks import OutputWatermarks, given, told
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


def heard_by(sent: list[OutgoingRecord]) -> dict[int, Micros | None]:
    """The frontier per partition."""
    return {m.partition: told([Record(Offset(0), m.value, m.headers[0][1].decode())]) for m in sent}


def test_a_join_is_given_event_time_by_its_left_side_alone() -> None:
    assert given(JOB, 0, rows((1, 5), (1, 9), (-1, 30))) == 9
    assert given(JOB, 1, rows((1, 70))) is None


def test_a_join_of_tables_is_given_event_time_by_both_sides() -> None:
    keyed = replace(JOB, step=replace(JOIN, output=USERS))
    assert [given(keyed, source, rows((1, 7))) for source in (0, 1)] == [7, 7]


def test_a_map_is_given_nothing_because_rows_that_a_filter_refuses_do_not_count() -> None:
    assert given(replace(JOB, step=spec.MapSpec((CLICKS,), ((),), CLICKS)), 0, rows((1, 7))) is None


def test_every_partition_hears_of_what_was_heard_or_emitted_whichever_is_later_and_only_once() -> (
    None
):
    frontiers = OutputWatermarks(JOB)
    assert heard_by(frontiers.messages((OutputBatch(0, rows((1, 5), (-1, 90))),), Micros(9))) == {
        0: 9,
        1: 9,
    }
    assert frontiers.messages((), Micros(9)) == []
    assert heard_by(frontiers.messages((OutputBatch(0, rows((1, 12))),), None)) == {0: 12, 1: 12}
    assert frontiers.messages((), None) == []


def test_an_output_that_carries_no_frontier_gets_none() -> None:
    silent = OutputWatermarks(replace(JOB, outputs=(Output(OUT, ()),)))
    assert not silent.wanted
    assert silent.messages((), Micros(9)) == []
