"""What a worker of Spark proposes, as the driver gets it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fennel_core.history.roll import PROPOSAL_SCHEMA, decode_proposals, encode_proposals
from fennel_core.history.spark import SCHEMA, session
from fennel_core.history.store import HistoryFile
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import Micros, Offset, PartitionIndex, TopicName

if TYPE_CHECKING:
    import pyarrow as pa

ROOT = Path(__file__).parents[3]


def test_a_proposal_arrives_as_it_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = TopicName("w.topic.a.1"), PartitionIndex(3), Offset(4), Offset(9), "key"
    file = HistoryFile(*place, 5, 600, Micros(1), Micros(2), min_stamp=7)

    def propose(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield from encode_proposals([file])

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    spark = session(Settings(data_dir=tmp_path, history_workers=1))
    try:
        made = spark.range(1, numPartitions=1).mapInArrow(propose, SCHEMA).toArrow()
    finally:
        spark.stop()
    assert made.column_names == PROPOSAL_SCHEMA.names
    assert decode_proposals(made) == [file]
