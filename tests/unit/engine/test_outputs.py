"""Rows that do not fit into one record are split, in order."""

from random import Random

import polars as pl
import pytest

from fennel_core.blueprints.spec import Job
from fennel_core.engine import outputs
from fennel_core.operators.spec import MapSpec, StepSpec, UserCodeSpec
from fennel_core.operators.step import DeadRows
from fennel_core.vocab.dead_letters import DeadLetterKind, DeadLetterOrigin, origin_of
from fennel_core.vocab.dtypes import Field, Str
from fennel_core.vocab.ids import JobId, TopicName, WorkspaceId
from fennel_core.vocab.schema import Schema
from fennel_core.vocab.versions import decode, row_count
from fennel_core.wire.pycode import PyCode

TOPIC = TopicName("target")
EVENT = Schema((), (Field("uid", Str()),), "at")
CODE = PyCode("f", "", "", "", "", (), ())


@pytest.mark.parametrize("rows", [1, 7, 300])
def test_rows_are_split_into_records_of_bounded_size(
    monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(outputs, "RECORD_BYTES", 4_000)
    random = Random(rows)  # noqa: S311  # repeatable, and no secret. bytes that do not compress
    texts = [random.randbytes(900) for _ in range(rows)]
    frame = pl.DataFrame({"number": range(rows), "text": texts})
    records = list(outputs._records(TOPIC, 3, frame, ()))
    assert pl.concat([decode(record.value) for record in records]).equals(frame)
    assert all(len(r.value) <= 4_000 or len(decode(r.value)) == 1 for r in records)
    assert {(record.topic, record.partition) for record in records} == {(TOPIC, 3)}
    assert (len(records) > 1) == (rows > 3)


def test_rows_that_fit_are_one_record() -> None:
    frame = pl.DataFrame({"number": range(1000)})
    assert len(list(outputs._records(TOPIC, 0, frame, ()))) == 1


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        (MapSpec((EVENT,), ((),), EVENT), DeadLetterKind.EXPRESSION),
        (UserCodeSpec("filter", CODE, None, EVENT, EVENT), DeadLetterKind.USER_CODE),
    ],
)
def test_dead_letters_name_their_job_and_the_kind_of_the_reason(
    step: StepSpec, kind: DeadLetterKind
) -> None:
    read, replaylog, letters = map(TopicName, ("in", "log", "dead"))
    title = "Orders.clean: map"
    job = Job(JobId("job"), WorkspaceId("w"), (read,), (), step, replaylog, letters, 4, title)
    dead = DeadRows("column `amount`: no number", pl.DataFrame({"uid": ["a", "b"]}))
    (record,) = outputs.output_records(job, 2, (), (dead,))
    assert (record.topic, record.partition) == (job.dead_letters, 2)
    assert row_count(record.value) == 2
    assert origin_of(record.headers) == DeadLetterOrigin(kind, job.id, job.title, dead.reason)
