"""What a query reads: files that are early enough, the tails, and how much both are."""

from __future__ import annotations

from fennel_core.history.store import HistoryFile
from fennel_core.history.topic_slices import TopicSlice
from fennel_core.offline.request_row import ReadEstimate
from fennel_core.offline.version_pieces import estimate_of, pieces_to_read
from fennel_core.vocab.ids import Micros, Offset, PartitionIndex, TopicName
from tests.laws.offline.worlds import SPECS, job_of, planned

TOPIC, PART = TopicName("t"), PartitionIndex(0)


def file(first: int, rows: int, earliest: int) -> HistoryFile:
    bounds = (Offset(first), Offset(first + 10))
    return HistoryFile(
        TOPIC, PART, *bounds, f"k{first}", rows, 100 * rows, Micros(earliest), Micros(earliest)
    )


SLICE = TopicSlice((TOPIC, PART), (file(0, 3, 5), file(10, 4, 50)), Offset(20), Offset(27), "root/")


def estimate(output: str, latest: int | None) -> ReadEstimate:
    query = planned([output])
    specs = {job_of(name): spec for name, spec in SPECS.items()}
    slices = dict.fromkeys(query.jobs(), (SLICE,))
    limit = None if latest is None else Micros(latest)
    return estimate_of(pieces_to_read(query.program(), specs, slices, limit).values())


def test_files_that_are_later_than_every_row_are_not_read() -> None:
    assert estimate("F.v", 10) == ReadEstimate(3, 300, 7)
    assert estimate("F.v", 50) == ReadEstimate(7, 700, 7)
    assert estimate("F.v", None) == ReadEstimate(7, 700, 7)


def test_datasets_that_user_code_looks_up_count() -> None:
    assert estimate("F.code", 10) == ReadEstimate(3, 300, 7)
    assert estimate("F.pair", 50) == ReadEstimate(14, 1400, 14)
