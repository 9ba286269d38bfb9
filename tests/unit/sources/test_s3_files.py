"""What a round of a source of files reports, and what is checked before the first."""

from __future__ import annotations

import pyarrow as pa

from fennel_core.sources.s3_files import NAMED, ROUND, round_end
from fennel_core.sources.task import Counts


def test_a_round_reports_files_that_could_not_be_read() -> None:
    unread = {f"f{number:02}": "refused" for number in range(30)}
    end = round_end(Counts().batch(), 31, unread)
    assert end.schema == ROUND
    (row,) = end.to_pylist()
    assert (row["left"], row["waiting"]) == (31, 30)
    assert row["unread"] == [f"f{number:02}: refused" for number in range(NAMED)]


def test_a_round_reports_what_became_of_rows() -> None:
    counts = pa.RecordBatch.from_pylist([{"source": "a", "dataset": "b", "accepted": 3}])
    counted, end = round_end(counts, 0, {}).to_pylist()
    assert (counted["accepted"], counted["left"]) == (3, None)
    assert (end["source"], end["left"], end["waiting"], end["unread"]) == (None, 0, 0, [])
