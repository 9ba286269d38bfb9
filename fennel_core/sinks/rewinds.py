"""Order that a sink is written again, from the beginning or from a place in its dataset's topic.

What that means is the choice of where it is written. A Delta table loses the rows of the messages
from there on, in the commit that moves the position, so each change is there once again. What was
sent to a topic or an endpoint is not the platform's any more: it is sent again, the changes are
there twice, and only a reader that keeps versions, or idempotency keys, has each once. So such an
order is refused, with the numbers, unless it says that this is wanted.

A sink only goes back: changes that it left out would be lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from fennel_core.connections import offsets
from fennel_core.connections.errors import SystemUnavailable
from fennel_core.connections.kafka import client_config
from fennel_core.history.topic_slices import TopicSlice
from fennel_core.settings.model import Settings
from fennel_core.sinks.controls import RewindOrder, SinkControls
from fennel_core.sinks.orders import SinkOrders, SinkView
from fennel_core.sources.api_errors import RewindNeedsConsent, RewindPlaceInvalid
from fennel_core.sources.rewind import EARLIEST, LATEST, time_of
from fennel_core.vocab.ids import PartitionIndex, TopicName, WorkspaceId

REQUEST_S: Final = 15.0
AGAIN: Final = {
    "kafka": "the topic would have their changes twice",
    "http": (
        "the endpoint would be sent their changes again, under the same idempotency keys unless "
        "rows were refused or erased since"
    ),
}
"""What a rewind does to what was written; a kind that is not there has each change once."""
PlanSlices = Callable[[Collection[TopicName]], Awaitable[Mapping[TopicName, Sequence[TopicSlice]]]]
"""See `plan_slices`."""
ReadTimes = Callable[[TopicName, int, int], Awaitable["LogTimes"]]
"""Returns where the log of a topic, of so many partitions, begins, and where it has a time (ms)."""


@dataclass(frozen=True, slots=True)
class LogTimes:
    """For each partition of a log: its first offset, and the first one at a time or later."""

    first: Mapping[int, int]
    at_time: Mapping[int, int]


def offsets_of(
    to: str, name: str, slices: Sequence[TopicSlice], times: LogTimes | None
) -> dict[int, int]:
    """Return the offset of each partition that a place names. Raises RewindPlaceInvalid.

    A place is `earliest`, a time (for which `times` are needed), or offsets by partition.
    """
    bounds = {int(each.partition[1]): (int(each.begins), int(each.end)) for each in slices}
    if to == EARLIEST:
        return {part: first for part, (first, _) in bounds.items()}
    if to == LATEST:
        raise RewindPlaceInvalid(
            f"sink `{name}` only goes back, because the changes before `{LATEST}` would be lost; "
            f"use {EARLIEST}, a time like 2026-01-31T12:00:00Z, or offsets by partition"
        )
    if times is not None:
        for part, at in times.at_time.items():
            if 0 < times.first[part] == at and bounds[part][0] < at:
                raise RewindPlaceInvalid(
                    f"the time `{to}` may be before offset {at} of partition {part}, where Kafka "
                    f"begins for sink `{name}`, and history does not say when a message was "
                    f"written; use a later time, {EARLIEST}, or offsets by partition"
                )
        return dict(times.at_time)
    found: dict[int, int] = {}
    for each in to.split(","):
        number, _, offset = each.strip().partition(":")
        if not (number.isdecimal() and offset.isdecimal()):
            raise RewindPlaceInvalid(
                f"`{to}` is no place that a sink goes back to; use {EARLIEST}, a time like "
                "2026-01-31T12:00:00Z, or offsets by partition like 0:12,3:40"
            )
        first, end = bounds.get(int(number), (1, 0))
        if not first <= int(offset) <= end:
            raise RewindPlaceInvalid(
                f"partition {number} has no offset {offset}; the dataset of sink `{name}` has "
                + ", ".join(f"{n}: {low} to {high}" for n, (low, high) in bounds.items())
            )
        found[int(number)] = int(offset)
    return found


class SinkRewinds:
    """Serves the call. Use from one event loop."""

    def __init__(
        self, orders: SinkOrders, controls: SinkControls, plan: PlanSlices, times: ReadTimes
    ) -> None:
        self._orders, self._controls, self._plan, self._times = orders, controls, plan, times

    async def run(
        self, workspace: WorkspaceId, name: str, to: str, *, duplicates_rows: bool, dry_run: bool
    ) -> dict[str, Any]:
        """Order the rewind of the sinks of a name; return from where, with numbers of messages.

        The process that writes them carries it out. Raises SinkUnknown, RewindPlaceInvalid,
        RewindNeedsConsent and SystemUnavailable.
        """
        views = await self._orders.named(workspace, name)
        planned = await self._plan({view.target.topic for view in views.values()})
        orders: list[RewindOrder] = []
        rewound: list[dict[str, Any]] = []
        for sink, view in views.items():
            slices = planned.get(view.target.topic, ())
            following = offsets_of(to, name, slices, await self._at_time(to, view))
            ends = {int(each.partition[1]): int(each.end) for each in slices}
            orders.append(RewindOrder(sink, following, to == EARLIEST))
            rewound.append(
                {
                    "dataset": view.target.dataset,
                    "branches": sorted(view.branches),
                    "from": {str(part): offset for part, offset in following.items()},
                    "messages": sum(ends[part] - offset for part, offset in following.items()),
                }
            )
        self._require(name, views, sum(each["messages"] for each in rewound), to, duplicates_rows)
        if not dry_run:
            await self._controls.rewind(orders)
        return {"sink": name, "rewound": rewound, "dry_run": dry_run}

    async def _at_time(self, to: str, view: SinkView) -> LogTimes | None:
        time_ms = time_of(to)
        if time_ms is None:
            return None
        return await self._times(view.target.topic, view.target.partitions, time_ms)

    def _require(
        self,
        name: str,
        views: Mapping[TopicName, SinkView],
        messages: int,
        to: str,
        duplicates_rows: bool,
    ) -> None:
        """Raise where an order would do nothing, or more than it says."""
        if not messages and to != EARLIEST:
            raise RewindPlaceInvalid(
                f"the dataset of sink `{name}` has no message from `{to}` on, so nothing would be "
                "written again"
            )
        kinds = sorted({view.target.place.kind for view in views.values()} & AGAIN.keys())
        if kinds and not duplicates_rows:
            raise RewindNeedsConsent(
                f"up to {messages} messages of the dataset would be written again to `{name}`, and "
                f"{AGAIN[kinds[0]]}; say `duplicates_rows` (--duplicates-rows) if that is wanted"
            )


def read_times(settings: Settings) -> ReadTimes:
    """Return what asks the platform's Kafka."""

    def read(topic: TopicName, partitions: int, time_ms: int) -> LogTimes:
        admin = AdminClient(client_config(settings))
        parts = [(topic, PartitionIndex(number)) for number in range(partitions)]
        try:
            first = offsets.starts(admin, parts, REQUEST_S)
            at_time = offsets.offsets_at_time(admin, parts, time_ms, REQUEST_S)
        except KafkaException as failed:
            raise SystemUnavailable(f"Kafka: {failed.args[0].str()}") from failed
        return LogTimes(
            {int(part): int(offset) for (_, part), offset in first.items()},
            {int(part): int(offset) for (_, part), offset in at_time.items()},
        )

    async def asked(topic: TopicName, partitions: int, time_ms: int) -> LogTimes:
        return await asyncio.to_thread(read, topic, partitions, time_ms)

    return asked
