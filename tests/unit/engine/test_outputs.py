"""Rows that do not fit into one record are split, in order."""

from random import Random

import polars as pl
import pytest

from fennel_core.engine import outputs
from fennel_core.vocab.ids import TopicName
from fennel_core.vocab.versions import decode

TOPIC = TopicName("target")


@pytest.mark.parametrize("rows", [1, 7, 300])
def test_rows_are_split_into_records_of_bounded_size(
    monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(outputs, "RECORD_BYTES", 4_000)
    random = Random(rows)  # bytes that do not compress
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
