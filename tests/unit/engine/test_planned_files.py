"""Planned files of history are read also after they were merged and their objects deleted."""

from __future__ import annotations

import itertools
from dataclasses import replace

import polars as pl
import pytest

from fennel_core.engine.backfill.planned_files import PlannedFiles
from fennel_core.history.parquet import OFFSET, encode_file, file_frame
from fennel_core.history.store import HistoryFile
from fennel_core.vocab.ids import Micros, Offset, PartitionIndex
from tests.support.history_world import TOPIC, batch

CUTS = (0, 4, 5, 9, 12)


def made(first: int, following: int, objects: dict[str, bytes]) -> HistoryFile:
    """Return the file of these offsets, each a message of two rows."""
    messages = [(Offset(at), batch(2 * at, 2)) for at in range(first, following)]
    key = f"{first}-{following}"
    objects[key] = encode_file(file_frame(messages, ("k",)))
    place = (TOPIC, PartitionIndex(0), Offset(first), Offset(following), key)
    return HistoryFile(*place, 2 * len(messages), 1, Micros(0), Micros(9))


class Archive:
    """Files of history whose index changes while they are read."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.reads: list[str] = []
        pairs = itertools.pairwise(CUTS)
        self.planned = [made(first, following, self.objects) for first, following in pairs]
        self.now = list(self.planned)
        self.files = PlannedFiles(self.get, lambda _: self.now)

    def get(self, key: str) -> bytes | None:
        self.reads.append(key)
        return self.objects.get(key)

    def merge(self, first: int, following: int) -> None:
        """Replace files by one, and delete their objects."""
        gone = [f for f in self.now if first <= f.first_offset < following]
        at = self.now.index(gone[0])
        self.now[at : at + len(gone)] = [made(first, following, self.objects)]
        for file in gone:
            del self.objects[file.object_key]

    def rows(self) -> list[pl.DataFrame]:
        return [self.files.rows(each).sort(OFFSET, "at") for each in self.planned]


def test_merged_files_have_the_rows_that_were_planned() -> None:
    archive = Archive()
    expected = archive.rows()
    archive.merge(0, 5)
    archive.merge(0, 9)
    archive.reads.clear()
    for found, wanted in zip(archive.rows(), expected, strict=True):
        assert found.equals(wanted)
    assert archive.reads.count("0-9") == 1, "a merged file is read once for its parts"


def test_a_file_that_is_merged_again_while_it_is_read_is_found() -> None:
    archive = Archive()
    expected = archive.rows()
    archive.merge(0, 5)
    stale = list(archive.now)
    archive.merge(0, 12)
    answers = iter([stale])
    files = PlannedFiles(archive.get, lambda _: next(answers, archive.now))
    assert files.rows(archive.planned[1]).sort(OFFSET, "at").equals(expected[1])


def test_offsets_that_no_file_has_are_named() -> None:
    archive = Archive()
    archive.merge(4, 9)
    del archive.now[1]
    with pytest.raises(FileNotFoundError, match=r"4-5 is missing .* its offsets 4 to 4"):
        archive.files.rows(archive.planned[1])
    half = replace(archive.planned[1], next_offset=Offset(99), object_key="gone")
    with pytest.raises(FileNotFoundError, match="offsets 4 to 98"):
        archive.files.rows(half)
