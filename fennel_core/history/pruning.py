"""Delete the history of deleted topics, and objects that no row refers to.

Theory. History is the only copy of records that Kafka has deleted, so everything here waits. A
topic that the bank does not list, and an object without a row, is marked when a run finds it and
deleted by a run that still finds it after the grace period, within the limit of
`connections.garbage`. A topic that is absent because the bank is the wrong one keeps its history.

Retired objects are different: the database says that they are its own and not needed, and when they
are due. They are deleted first, by their rows; whatever is left of them is an orphan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import structlog

from fennel_core.connections.garbage import DeletionLimit, GarbageMarks, due_for_deletion
from fennel_core.connections.object_store import ObjectStore
from fennel_core.history.roll import PREFIX, topic_of_key
from fennel_core.history.store import HistoryFiles
from fennel_core.history.writer import TopicSource
from fennel_core.vocab.ids import TopicName

log = structlog.get_logger(__name__)

DELETE_BATCH: Final = 1_000
"""Objects per delete call."""
TOPICS: Final = "history-topic"
OBJECTS: Final = "history-object"


@dataclass(frozen=True, slots=True)
class PrunedHistory:
    """How many topics and objects were deleted, and how many retired objects."""

    topics: int
    objects: int
    retired: int


async def prune_history(
    files: HistoryFiles,
    topics: TopicSource,
    objects: ObjectStore,
    marks: GarbageMarks,
    grace: timedelta,
    limit: DeletionLimit,
) -> PrunedHistory:
    """Delete what has been absent from the bank or the index for longer than `grace`.

    Rows of files are deleted before objects: an object without a row is found by listing, but a row
    without its object would be a gap in what history claims to hold. Raises SystemUnavailable, and
    DeletionRefused before anything unknown is deleted.
    """
    deleted = 0
    while due := await files.due(DELETE_BATCH):
        # The rows go last: without them, what is left would be unknown objects.
        await objects.delete(due)
        await files.forget(due)
        deleted += len(due)
    # Listed before topics and rows are read: an object that got its row in between is referenced.
    stored: dict[TopicName, list[str]] = {}
    for each in await objects.list_objects(f"{PREFIX}/"):
        stored.setdefault(topic_of_key(each.key), []).append(each.key)
    retired = await files.retired()
    # A topic of which only retired objects are left is not unknown: they are deleted when due.
    left = {topic for topic, keys in stored.items() if not retired.issuperset(keys)}
    known = left | set(await files.totals())
    alive = set(await topics.alive())
    unreferenced: list[str] = []
    for topic in sorted(stored.keys() & alive):
        referenced = await files.keys(topic)
        unreferenced += [key for key in stored[topic] if key not in referenced]
    gone = due_for_deletion(
        TOPICS,
        await marks.mark(TOPICS, known - alive),
        len(known),
        grace,
        limit,
        await marks.deleted(TOPICS),
    )
    orphaned = due_for_deletion(
        OBJECTS,
        await marks.mark(OBJECTS, unreferenced),
        sum(map(len, stored.values())),
        grace,
        limit,
    )
    if gone:
        await files.remove([TopicName(topic) for topic in gone])
        log.info("history of deleted topics was deleted", topics=gone)
    condemned = orphaned + [key for topic in gone for key in stored.get(TopicName(topic), ())]
    await _delete(objects, condemned)
    return PrunedHistory(len(gone), len(condemned), deleted)


async def _delete(objects: ObjectStore, keys: Sequence[str]) -> None:
    for start in range(0, len(keys), DELETE_BATCH):
        await objects.delete(keys[start : start + DELETE_BATCH])
