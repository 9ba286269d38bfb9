"""Delete requests from history that are older than the `history` of every dataset of the endpoint.

Theory. Raw requests are kept so that a new version of a dataset can be recomputed from them, for as
long as the dataset promises to keep rows: the longest `history` of the datasets of the endpoint, in
all branches and running commits. A file goes when its youngest request is older. Age is that of the
receipt, so what is deleted is at least that old by event time, too. Only the oldest files of a
partition go, so what is left is contiguous and the plan of a later commit can say what is missing;
none that a source replay may have to read again (`needed`: the oldest position that each reader may
restart from); and never the last one, which says where the next file begins.

Query logs are pruned by the same rule: their age is that of the query, and no job reads them.

Rows of the index are deleted before objects: an object without a row is found by listing.

Example: files [0, 40), [40, 75), [75, 90), all but the last older than `history`, and a replay that
may restart at 50. The first is deleted; the second may be needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import structlog

from fennel_core.connections.object_store import ObjectStore
from fennel_core.history.pruning import DELETE_BATCH
from fennel_core.history.store import HistoryFile, HistoryFiles
from fennel_core.vocab.ids import Micros, Offset, TopicName, TopicPartition

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PrunedRequests:
    """How many files and requests were deleted."""

    files: int
    requests: int


def expired_files(
    files: Sequence[HistoryFile], oldest_us: Micros, needed: Offset | None
) -> list[HistoryFile]:
    """Return the files of a partition that may be deleted; they are its first ones.

    `files` are in order of offsets. Requests received at `oldest_us` or later are kept, and those
    at offset `needed` or later; None: no job reads the topic.
    """
    expired: list[HistoryFile] = []
    for file in files[:-1]:
        young = file.max_ts is not None and file.max_ts >= oldest_us
        if young or (needed is not None and file.next_offset > needed):
            break
        expired.append(file)
    return expired


async def prune_requests(
    files: HistoryFiles,
    objects: ObjectStore,
    kept_us: Mapping[TopicName, int],
    needed: Mapping[TopicPartition, Offset],
    now_us: Micros,
) -> PrunedRequests:
    """Delete expired files of the raw topics in `kept_us`. Raises SystemUnavailable."""
    deleted: list[HistoryFile] = []
    for topic, part in sorted(await files.ends(list(kept_us))):
        oldest_us = Micros(now_us - kept_us[topic])
        expired = expired_files(
            await files.files(topic, part), oldest_us, needed.get((topic, part))
        )
        if not expired:
            continue
        # Files may have been merged since they were listed.
        keys = await files.remove_before(topic, part, expired[-1].next_offset)
        gone = [file for file in expired if file.object_key in set(keys)]
        for start in range(0, len(keys), DELETE_BATCH):
            await objects.delete(keys[start : start + DELETE_BATCH])
        log.info(
            "requests older than their history were deleted",
            topic=topic,
            part=part,
            files=len(gone),
            requests=sum(file.row_count for file in gone),
            first=expired[0].first_offset,
            next=expired[-1].next_offset,
        )
        deleted += gone
    return PrunedRequests(len(deleted), sum(file.row_count for file in deleted))
