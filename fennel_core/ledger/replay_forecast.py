"""Find out how many rows of earlier requests a new source replay will dead-letter.

Theory. A plan must not take minutes, so a long log is not read as a whole: it is cut into ranges of
equal length, and ranges that are spread evenly over it are read and typed, until all are read or a
limit of rows, bytes or time is reached. Each prefix of the order in which they are read is spread,
too, because the senders of an endpoint change over time: the newest requests say nothing about the
oldest. The plan states what was read. Requests that only history holds are not read, and the plan
states how many messages they are.

Example: a log of 1,000 ranges of which 4 may be read: the ranges 0, 666, 333 and 999.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from fennel_core.admission.replay_forecast import ReplayTally
from fennel_core.admission.source_replay import ROWS_TOGETHER, runs_user_code
from fennel_core.blueprints.commit_plan import NewReplay
from fennel_core.blueprints.logical import AssetKey
from fennel_core.blueprints.plan_entries import DeadLetterForecast
from fennel_core.connections.errors import SystemUnavailable
from fennel_core.ledger.context import LedgerContext
from fennel_core.ledger.topics import OffsetRange, ReadRange
from fennel_core.operators.spec import SourceReplaySpec
from fennel_core.telemetry.logs import logger
from fennel_core.vocab.ids import AssetId, Offset, TopicName
from fennel_core.vocab.raw_batches import RawRequest, requests_of
from fennel_core.vocab.versions import decode

log = logger(__name__)
SECONDS: Final = 5.0
"""Longest time that the forecasts of one plan take; half of it is for reading."""
ROWS: Final = 50_000
"""Rows to type for one source replay: about a second."""
RANGE_MESSAGES: Final = 100
MESSAGES: Final = 5_000
"""Messages to read for one source replay; one holds the requests of one transaction."""
SIZE_BYTES: Final = 64 * 1024 * 1024
"""Largest size of these messages, in memory at once."""


async def forecast_dead_letters(
    context: LedgerContext,
    replays: Sequence[NewReplay],
    bounds: Sequence[OffsetRange],
    only_in_history: Mapping[AssetId, int],
) -> Mapping[AssetKey, DeadLetterForecast]:
    """Return what is known of the rows of each replay, by its job, within the limits.

    `bounds`: what Kafka has of the raw topics; `only_in_history`: how many messages of each topic
    it has no more. An endpoint without messages has no forecast.
    """
    found: dict[AssetKey, DeadLetterForecast] = {}
    ends_s = context.now() + SECONDS
    for done, replay in enumerate(replays):
        topic = TopicName(replay.raw)
        wanted = spread_ranges([b for b in bounds if b.partition[0] == topic], MESSAGES)
        unread = only_in_history.get(replay.raw, 0)
        if not wanted:
            if unread:
                found[replay.job] = _unchecked("only history holds the requests")
            continue
        forecast = context.forecasts.get(replay.raw, replay.job, context.now())
        if forecast is None:
            left_s = max(0.0, ends_s - context.now()) / (len(replays) - done)
            forecast = await _forecast(context, replay.step, wanted, left_s)
            context.forecasts.put(replay.raw, replay.job, forecast, context.now())
        found[replay.job] = replace(forecast, only_in_history=unread)
    return found


async def _forecast(
    context: LedgerContext, step: SourceReplaySpec, wanted: Sequence[OffsetRange], seconds: float
) -> DeadLetterForecast:
    if runs_user_code(step):
        return _unchecked("the source runs user code")
    try:
        read = await context.topics.read(wanted, seconds=seconds / 2, size_bytes=SIZE_BYTES)
    except SystemUnavailable as unavailable:
        log.warning("requests not read", dataset=step.dataset, error=str(unavailable))
        read = ()
    if not read:
        return _unchecked("the requests could not be read in time")
    if not any(each.messages for each in read):
        # Only markers of transactions.
        return DeadLetterForecast(_covered(read), 0, 0)
    deadline_s = time.monotonic() + seconds / 2
    return await asyncio.to_thread(lambda: asyncio.run(_tally(step, read, deadline_s)))


def _unchecked(why: str) -> DeadLetterForecast:
    return DeadLetterForecast(0, 0, 0, unchecked=why)


async def _tally(
    step: SourceReplaySpec, read: Sequence[ReadRange], deadline_s: float
) -> DeadLetterForecast:
    """Type the rows of the ranges until a limit is reached, but at least some of them."""
    tally, covered = ReplayTally(), 0
    for each in read:
        waiting: list[RawRequest] = []
        for number, (offset, value) in enumerate(each.messages, start=1):
            waiting += requests_of(decode(value))
            if number < len(each.messages) and sum(r.rows for r in waiting) < ROWS_TOGETHER:
                continue
            await tally.add(step, waiting)
            waiting = []
            if tally.rows >= ROWS or time.monotonic() >= deadline_s:
                return _forecast_of(tally, covered + offset + 1 - each.range.first)
        covered += _covered([each])
    return _forecast_of(tally, covered)


def _forecast_of(tally: ReplayTally, messages: int) -> DeadLetterForecast:
    reason = tally.dead.most_common(1)[0][0] if tally.dead else None
    return DeadLetterForecast(messages, tally.rows, tally.dead.total(), reason)


def _covered(read: Sequence[ReadRange]) -> int:
    return sum(each.range.end - each.range.first for each in read)


def spread_ranges(bounds: Sequence[OffsetRange], messages: int) -> list[OffsetRange]:
    """Return ranges of at most `messages` offsets in all, spread evenly over the logs.

    They are all of the offsets if there are no more. The order begins far apart.
    """
    lengths = [-(-(each.end - each.first) // RANGE_MESSAGES) for each in bounds]
    total = sum(lengths)
    count = min(total, max(1, messages // RANGE_MESSAGES))
    steps = max(1, count - 1)
    chosen = [number * (total - 1) // steps for number in _far_apart(count)]
    found: list[OffsetRange] = []
    for index in chosen:
        log_number, at = 0, index
        while at >= lengths[log_number]:
            at -= lengths[log_number]
            log_number += 1
        whole = bounds[log_number]
        first = whole.first + at * RANGE_MESSAGES
        end = min(first + RANGE_MESSAGES, whole.end)
        found.append(OffsetRange(whole.partition, Offset(first), Offset(end)))
    return found


def _far_apart(count: int) -> list[int]:
    """Return 0 to count-1 in the order of their reversed bits: every prefix is spread."""
    bits = max(1, (count - 1).bit_length())
    return sorted(range(count), key=lambda number: int(f"{number:0{bits}b}"[::-1], 2))
