"""What a positions topic holds beside positions: notes, which are never read as positions."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fennel_core.settings.model import Settings
from fennel_core.sources import kafka
from fennel_core.sources.positions import SourcePosition
from fennel_core.vocab.ids import PartitionIndex
from tests.support.source_world import ORIGIN, POSITIONS, partition


def test_notes_do_not_hide_the_positions_of_a_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    at = (POSITIONS, PartitionIndex(0))
    place = SourcePosition(3, ORIGIN)
    records = [partition().record(place), partition().note("file/1", b"seen")]
    sent = [
        (at, SimpleNamespace(key=lambda r=r: r.key, value=lambda r=r: r.value)) for r in records
    ]
    monkeypatch.setattr(kafka, "log_ends", lambda *_: {at: 2})
    monkeypatch.setattr(kafka, "committed_records", lambda *_: iter(sent))
    assert kafka.read_positions(Settings(), *at) == {b"0": place}
