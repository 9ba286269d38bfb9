"""The erased keys whose rows may be removed from topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fennel_core.connections import erasures
from fennel_core.connections.erasures import ErasedKeys
from fennel_core.connections.postgres import Pool
from fennel_core.history.erasable_topics import ErasableTopic
from fennel_core.history.erasing import TopicErasures
from fennel_core.history.topics import HistoryTopics
from fennel_core.vocab.ids import DatasetName, TopicName, WorkspaceId


async def erasures_of(
    pool: Pool, topics: Iterable[ErasableTopic]
) -> dict[TopicName, TopicErasures]:
    """Return the erasures of those of `topics` that lose rows. Raises SystemUnavailable."""
    # The numbers are read before the keys: a key of a later erasure more does no harm, and one less
    # would be taken for searched.
    counts = {(each.workspace, each.dataset): each for each in await erasures.counts(pool)}
    if not counts:
        return {}
    keys = await erasures.read_all(pool)
    found = {}
    for each in topics:
        count = counts.get((each.workspace, each.dataset))
        # A workspace that is deleted between the two reads has no erasures any more.
        erased = keys.get(each.workspace, {}).get(each.dataset)
        if count is None or erased is None:
            continue
        if each.with_erasures_by(of.columns for of in erased).kept_because is None:
            found[each.topic] = TopicErasures(each.dataset, erased, count.newest)
    return found


async def erased_by_topic(
    pool: Pool, erased: Mapping[WorkspaceId, Mapping[DatasetName, tuple[ErasedKeys, ...]]]
) -> dict[TopicName, tuple[ErasedKeys, ...]]:
    """Return which of the erased keys are of datasets that have or had rows on a topic, by topic,
    also where rows are not removed any more. Raises SystemUnavailable.
    """
    found: dict[TopicName, tuple[ErasedKeys, ...]] = {}
    for each in await HistoryTopics(pool).erasable() if erased else ():
        keys = erased.get(each.workspace, {}).get(each.dataset, ())
        if keys:
            found[each.topic] = (*found.get(each.topic, ()), *keys)
    return found


async def erased_keys_of(pool: Pool, topic: TopicName) -> tuple[ErasedKeys, ...]:
    """Return the erased keys of the datasets that have or had rows on a topic, also where rows are
    not removed any more. Raises SystemUnavailable.
    """
    return (await erased_by_topic(pool, await erasures.read_all(pool))).get(topic, ())
