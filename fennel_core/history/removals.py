"""What a run that removes rows from files of history did, how many it searches, and how it replaces
one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import reduce

import structlog

from fennel_core.history.merging import MergeRefused
from fennel_core.history.store import HistoryFile, HistoryFiles, Readers

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RemovedRows:
    """What a run did.

    `searched`: files that were searched; `rewritten`: those of them that were
    replaced, without `rows` rows. `superseded`: files that another process had changed, whose
    deadline had passed, or whose rows others need since. `refused`: files that cannot be read.
    `waiting`: files that a replay or Kafka's log may still hold. `left`: files that the limit of a
    run leaves to the next one, with `left_bytes`.
    """

    searched: int = 0
    rewritten: int = 0
    rows: int = 0
    superseded: int = 0
    refused: int = 0
    waiting: int = 0
    left: int = 0
    left_bytes: int = 0

    def plus(self, other: RemovedRows) -> RemovedRows:
        """Return the sums of both."""
        return RemovedRows(
            self.searched + other.searched,
            self.rewritten + other.rewritten,
            self.rows + other.rows,
            self.superseded + other.superseded,
            self.refused + other.refused,
            self.waiting + other.waiting,
            self.left + other.left,
            self.left_bytes + other.left_bytes,
        )


def sums(results: Iterable[RemovedRows]) -> RemovedRows:
    """Return the sums of all."""
    return reduce(RemovedRows.plus, results, RemovedRows())


def split_run(
    files: Sequence[HistoryFile], most_bytes: int
) -> tuple[Sequence[HistoryFile], RemovedRows]:
    """Return the first files that have at most `most_bytes` together, or one, and the others as
    what is left.
    """
    size, count = 0, 0
    for file in files:
        size += file.size_bytes
        if count and size > most_bytes:
            break
        count += 1
    others = files[count:]
    return files[:count], RemovedRows(
        left=len(others), left_bytes=sum(file.size_bytes for file in others)
    )


@dataclass(frozen=True, slots=True)
class Replacer:
    """Replaces files by those with fewer rows. `kept`: how long the objects of replaced files stay.

    `dry_run`: nothing is replaced, and the rows are counted as if it were.
    """

    files: HistoryFiles
    kept: timedelta
    dry_run: bool = False

    async def replace(
        self,
        file: HistoryFile,
        made: HistoryFile | MergeRefused,
        deadline: datetime,
        rows: str,
        readers: Readers | None = None,
    ) -> RemovedRows:
        """Replace a file; `rows`: which rows `made` lacks, for the log.

        `readers`: the file stays if others read the rows of its workspace now.
        """
        if isinstance(made, MergeRefused):
            log.error(
                f"a file of history cannot be searched for {rows}",
                topic=file.topic,
                part=file.part,
                reason=made.reason,
            )
            return RemovedRows(refused=1)
        if self.dry_run or await self.files.replace([file], made, deadline, self.kept, readers):
            return RemovedRows(searched=1, rewritten=1, rows=file.row_count - made.row_count)
        log.warning(
            f"a file of history was changed while it was searched for {rows}, or what needs them",
            topic=file.topic,
            part=file.part,
            orphan=made.object_key,
        )
        return RemovedRows(superseded=1)
