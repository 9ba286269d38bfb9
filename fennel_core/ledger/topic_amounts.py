"""Measure the topics whose amounts a plan mentions.

It may take seconds, so it happens before T1 and outside of its transaction. What could not be
measured is left out, and the plan says that it is unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from fennel_core.blueprints.commit_plan import (
    BankFacts,
    TopicAmounts,
    measured_topics,
    new_replays,
)
from fennel_core.blueprints.logical import Compiled
from fennel_core.connections.errors import SystemUnavailable
from fennel_core.ledger.context import LedgerContext
from fennel_core.ledger.replay_forecast import forecast_dead_letters
from fennel_core.ledger.store import HistoryRange
from fennel_core.telemetry.logs import logger
from fennel_core.vocab.ids import AssetId, Offset, TopicName, TopicPartition

log = logger(__name__)


def unreadable_messages(
    starts: Mapping[TopicPartition, Offset], kept: Mapping[TopicPartition, HistoryRange]
) -> dict[AssetId, int]:
    """Return how many messages of each topic are before the start of its log and not in history.

    Example: the log starts at 90, history holds 10 to 59: 10 messages are before it and 30 between.
    """
    lost: dict[AssetId, int] = {}
    for (topic, part), start in starts.items():
        held = kept.get((topic, part))
        readable = 0 if held is None else max(0, min(held.next, start) - held.first - held.lost)
        lost[AssetId(topic)] = lost.get(AssetId(topic), 0) + start - readable
    return lost


async def measure_topics(
    context: LedgerContext, facts: BankFacts, compiled: Compiled
) -> TopicAmounts:
    """Return the amounts that the plan of these facts needs."""
    names = measured_topics(facts, compiled)
    replays = new_replays(facts, compiled)
    replayed = {TopicName(each.raw): each.partitions for each in replays}
    kept = await context.ledger.run(lambda tx: tx.history_ranges(sorted(map(TopicName, names))))
    removed, expired = Counter[AssetId](), Counter[AssetId]()
    for (topic, _), held in kept.items():
        removed[AssetId(topic)] += held.removed_rows
        expired[AssetId(topic)] += held.expired_rows
    try:
        counts = await context.topics.message_counts(
            {TopicName(id_): compiled.partitions for id_ in names}
        )
        bounds = await context.topics.log_bounds(replayed) if replayed else ()
    except SystemUnavailable as unavailable:
        log.warning("topics could not be measured", topics=len(names), error=str(unavailable))
        return TopicAmounts(removed_rows=removed, expired_rows=expired)
    messages = {AssetId(name): count for name, count in counts.items()}
    starts = {each.partition: each.first for each in bounds}
    unreadable: Mapping[AssetId, int] = {}
    if any(starts.values()):
        unreadable = unreadable_messages(starts, kept)
    only_in_history: Counter[AssetId] = Counter()
    for (topic, _), start in starts.items():
        only_in_history[AssetId(topic)] += start
    only_in_history.subtract(unreadable)
    forecasts = await forecast_dead_letters(context, replays, bounds, only_in_history)
    return TopicAmounts(messages, unreadable, removed, expired, forecasts)
