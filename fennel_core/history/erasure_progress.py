"""How far the rows of erased keys have left history, by topic.

Theory. A file may have rows of an erased key unless it was searched up to that erasure, or all its
rows were accepted after it: ingest accepts none of erased keys, but jobs compute them. Replaced
objects count until they are deleted. So a key is gone from a topic's history when neither is left;
until then the number of rows is a bound: only a search counts them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fennel_core.connections import erasures
from fennel_core.connections.erasures import ErasureCount, KeysLeft
from fennel_core.connections.postgres import Pool
from fennel_core.history.erasable_topics import ErasableTopic
from fennel_core.history.store import HistoryFiles, SearchedFiles, searched_upto
from fennel_core.history.topics import HistoryTopics
from fennel_core.vocab.ids import WorkspaceId


@dataclass(frozen=True, slots=True)
class ErasureProgress:
    """What history may still have of the erased keys of a dataset, on one topic.

    `left`: keys of which rows may be left, in `files` files with `rows` rows and `objects` replaced
    objects. `removed_rows`: rows that were removed so far.
    """

    topic: ErasableTopic
    keys: int
    left: KeysLeft
    files: int
    rows: int
    objects: int
    removed_rows: int

    def as_row(self) -> dict[str, object]:
        """Return it for `fennel-core status`; times are ISO 8601."""
        since = self.left.since
        return {
            "topic": self.topic.topic,
            "workspace": self.topic.workspace,
            "dataset": self.topic.dataset,
            "kept_because": self.topic.kept_because,
            "keys": self.keys,
            "keys_left": self.left.keys,
            "since": None if since is None else since.isoformat(timespec="seconds"),
            "files": self.files,
            "rows": self.rows,
            "objects": self.objects,
            "removed_rows": self.removed_rows,
        }


def progress_of(
    topic: ErasableTopic, count: ErasureCount, found: Sequence[SearchedFiles], left: KeysLeft
) -> ErasureProgress:
    """Return the progress of a topic; without keys that are left no file counts."""
    behind = [
        each for each in found if left.keys and searched_upto(each, count.dataset) < count.newest
    ]
    return ErasureProgress(
        topic,
        count.keys,
        left,
        sum(each.files for each in behind if not each.retired),
        sum(each.rows for each in behind if not each.retired),
        sum(each.files for each in behind if each.retired),
        sum(each.removed_rows for each in found),
    )


async def erasure_progress(
    pool: Pool, topics: HistoryTopics, files: HistoryFiles
) -> list[ErasureProgress]:
    """Return the progress of every topic with rows of a dataset with erased keys.

    Raises SystemUnavailable.
    """
    counts = {(count.workspace, count.dataset): count for count in await erasures.counts(pool)}
    if not counts:
        return []
    progress = []
    for topic in await topics.erasable():
        count = counts.get((topic.workspace, topic.dataset))
        if count is not None:
            found = await files.searched(topic.topic)
            stored = [
                (searched_upto(each, count.dataset), each.min_stamp if topic.is_source else 0)
                for each in found
                if each.files
            ]
            left = await erasures.keys_left(pool, count, stored)
            shown = topic.with_erasures_by(count.columns)
            progress.append(progress_of(shown, count, found, left))
    return progress


def keys_left_by_workspace(
    progress: Iterable[ErasureProgress],
) -> Mapping[tuple[WorkspaceId, str], int]:
    """Return how many erased keys may have rows left, by workspace and whether they are `waiting`
    or `kept`. A key counts once per dataset.
    """
    most: dict[tuple[WorkspaceId, str, str], int] = {}
    for each in progress:
        why = "waiting" if each.topic.kept_because is None else "kept"
        at = each.topic.workspace, why, each.topic.dataset
        most[at] = max(most.get(at, 0), each.left.keys)
    sums: dict[tuple[WorkspaceId, str], int] = {}
    for (workspace, why, _), keys in most.items():
        sums[workspace, why] = sums.get((workspace, why), 0) + keys
    return sums


def rows_removed_by_workspace(progress: Iterable[ErasureProgress]) -> dict[WorkspaceId, int]:
    """Return how many rows of erased keys were removed, by workspace."""
    by_topic = {each.topic.topic: each for each in progress}
    sums: dict[WorkspaceId, int] = {}
    for each in by_topic.values():
        sums[each.topic.workspace] = sums.get(each.topic.workspace, 0) + each.removed_rows
    return sums
