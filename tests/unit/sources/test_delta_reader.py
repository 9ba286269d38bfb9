"""What a reader of a Delta table keeps between its rounds, and what it asks again."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from fennel_core.sources import file_rows
from fennel_core.sources.delta_changes import origin_of
from fennel_core.sources.delta_reader import DeltaReader
from fennel_core.wire.connectors import Cdc
from tests.support.delta_source import UserTable
from tests.support.ingest_world import catalog
from tests.support.source_world import SourceWorld, stream_source


async def test_a_round_that_goes_on_reads_what_has_come_since_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_rows, "TRANSACTION_ROWS", 1)
    sources = SourceWorld()
    sources.world.commit(main=catalog(stream_source(cdc=Cdc.NATIVE, disorder_us=0)))
    table = UserTable(tmp_path / "t")
    table.append({"a", "b", "c"})
    writer = sources.writer(origin=origin_of(table.table_id))
    clock = itertools.count().__next__
    reader = DeltaReader(writer, table.store(), table.table_id, ("user",), clock)
    assert await reader.round(1e9, 1) == 1
    table.append({"d"})
    assert await reader.round(1e9) == 0
    assert sorted(row["user"] for row in sources.read()) == ["a", "b", "c", "d"]
    await sources.world.close()
