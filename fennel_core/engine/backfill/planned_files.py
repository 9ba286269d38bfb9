"""Read the files of history that a backfill has planned, also after they were merged with others.

Theory. A backfill plans its files once, and may run for longer than replaced objects are kept
(decision 0075). A merge changes neither rows nor ranges: what a file had, without rows of keys that
were erased since, is in the files that have its offsets now. So a file whose object is gone is read
from these, cut to its own offsets. They are larger, and the planned files are read in order, so the
last of them is kept for the next one.

Example. The files [0, 40) and [40, 75) were planned, and then merged. Both objects are gone. The
first is read from the file [0, 75), offsets 0 to 39, and the second from the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import polars as pl

from fennel_core.history.parquet import OFFSET, decode_file
from fennel_core.history.store import HistoryFile

ATTEMPTS: Final = 3
"""A file that was found may be merged again before it is read."""


class PlannedFiles:
    """The rows of planned files. `get` returns an object, None if there is none; `files_now` the
    files of the partition of a file as they are now, in order. Both block.
    """

    def __init__(
        self,
        get: Callable[[str], bytes | None],
        files_now: Callable[[HistoryFile], Sequence[HistoryFile]],
    ) -> None:
        self._get, self._files_now = get, files_now
        self._last: tuple[str, pl.DataFrame] | None = None

    def rows(self, planned: HistoryFile) -> pl.DataFrame:
        """Return the rows of a file. Raises FileNotFoundError if its offsets are not in history."""
        body = self._get(planned.object_key)
        if body is not None:
            return decode_file(body)
        for _ in range(ATTEMPTS):
            parts = [self._rows_of(each) for each in _covering(planned, self._files_now(planned))]
            found = [rows for rows in parts if rows is not None]
            if parts and len(found) == len(parts):
                mine = pl.col(OFFSET).is_between(
                    planned.first_offset, planned.next_offset, closed="left"
                )
                return pl.concat([rows.filter(mine) for rows in found])
        raise FileNotFoundError(
            f"history file {planned.object_key} is missing from the bucket, and no other file has "
            f"its offsets {planned.first_offset} to {planned.next_offset - 1}"
        )

    def _rows_of(self, file: HistoryFile) -> pl.DataFrame | None:
        if self._last is None or self._last[0] != file.object_key:
            body = self._get(file.object_key)
            if body is None:
                return None
            self._last = file.object_key, decode_file(body)
        return self._last[1]


def _covering(planned: HistoryFile, files: Sequence[HistoryFile]) -> list[HistoryFile]:
    """Return the files that have the offsets of a planned one, empty if some are in none."""
    found, reached = [], planned.first_offset
    for file in files:
        if file.first_offset <= reached < file.next_offset and reached < planned.next_offset:
            found.append(file)
            reached = file.next_offset
    return found if reached >= planned.next_offset else []
