"""Reads during the faults: slots asked directly, and clients that look up the owner first.

The response of a slot is compared with a recompute of exactly the records below the offsets that it
reports as applied at the same moment. The response to a client may be older; it must be a row that
was written for its key.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from fennel_core.connections.frames import RemoteError
from fennel_core.connections.slot_protocol import RefusalCode
from fennel_core.engine.service import SLICE_KEYS, SLICE_STEPS, SlotService
from fennel_core.query.errors import JobParked, PartitionUnavailable, SlotUnresponsive
from fennel_core.query.lookups import JobLookup, Lookups, ReadOutcome
from fennel_core.query.owners import Owners, Ownership
from fennel_core.vocab.ids import JobId, PartitionIndex, TopicName
from fennel_core.vocab.keys import partition_of
from fennel_core.vocab.versions import decode
from tests.sim.engine import job_chain
from tests.sim.engine.faulty_components import ProcessDied
from tests.sim.engine.model_log import ModelLog
from tests.support.fake_slots import ERASABLE, nothing_hidden

if TYPE_CHECKING:
    from tests.sim.engine.slots import LiveSlot
    from tests.sim.engine.world import World

AS_OF_S = (6.0, 14.0, 1000.0)
PATIENCE_S = 4.0
LONG_READ = 3 * SLICE_KEYS * SLICE_STEPS
"""Keys of a read that gives way to iterations."""
SILENCE_S = 2.0
"""As `query.slot_connections` gives a frozen slot up."""


class Readers:
    """Compares the rows that slots return with the records that they have applied."""

    def __init__(self, log: ModelLog, chosen: random.Random, partitions: int) -> None:
        self._log, self._random, self._partitions = log, chosen, partitions
        self._decoded: dict[tuple[TopicName, int], list[tuple[int, list[dict[str, Any]]]]] = {}
        self.compared = 0

    def wrong(self, service: SlotService, job: JobId, part: PartitionIndex) -> list[str]:
        """Return what is wrong with the rows of a job partition that this slot serves."""
        keys = job_chain.keys_of(job)
        here = [(name, key) for name, key in keys if partition_of(key, self._partitions) == part]
        if not here or self._random.random() < 0.8:
            return []
        name, key = self._random.choice(here)
        second = self._random.choice(AS_OF_S)
        at = job_chain.micros(second)
        topic = job_chain.USERS if job == job_chain.TABLE.id else job_chain.JOINED
        try:
            (response,) = service.lookup_now(job, part, [key], at)
        except RemoteError:
            return []  # its local state is damaged
        applied = service._serving(job, part).applied[topic]
        expected = job_chain.row_of(job, name, at, self._rows(topic, part, applied))
        self.compared += 1
        if (found := job_chain.decoded(response)) == expected:
            return []
        return [
            (
                f"{job}[{part}] returns {found} for {name} as of {second} s; below "
                f"offset {applied} it is {expected}"
            )
        ]

    def _rows(self, topic: TopicName, part: int, stop: int) -> list[dict[str, Any]]:
        """Return the versions that remain below an offset after retractions."""
        known = self._decoded.setdefault((topic, part), [])
        first = known[-1][0] + 1 if known else 0
        for record in self._log.committed((topic, part), first):
            if record.control is None:
                frame = decode(record.value)
                physical = frame.with_columns(frame["at"].to_physical())
                known.append((record.offset, physical.to_dicts()))
        left: Counter[tuple[tuple[str, Any], ...]] = Counter()
        for offset, rows in known:
            if offset < stop:
                for row in rows:
                    left[tuple((n, v) for n, v in row.items() if n != "__sign")] += row["__sign"]
        return [dict(row) for row, count in left.items() for _ in range(count)]


class Client:
    """The query server's side of lookups, with calls that go through the slot's process."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._owners = Owners(self)
        self._lookups = Lookups(self, self._owners, PATIENCE_S, nothing_hidden)  # type: ignore[arg-type]  # the one method of Slots that is called
        self.answers = 0

    async def read_owners(self, jobs: Collection[JobId] | None = None) -> Ownership:
        rows = self._world.registry._rows
        read = {key: row for key, row in rows.items() if jobs is None or key[0] in jobs}
        return Ownership(
            {key: row.slot for key, row in read.items() if row.slot is not None},
            {},
            {job for job, _ in read},
        )

    async def call(self, address: str, op: str, argument: Any) -> Any:
        """As `query.slots.Slots.call`."""
        living: LiveSlot | None = next(
            (each for each in self._world.slots if each.slot.id == address), None
        )
        if living is None:
            raise ConnectionRefusedError(address)
        try:
            async with asyncio.timeout(SILENCE_S):
                await living.process.gate()
                await living.process.delay()
                await living.process.gate()
                return await living.service(op, argument)
        except TimeoutError as silent:
            raise SlotUnresponsive(address) from silent
        except ProcessDied as died:
            raise ConnectionResetError(address) from died

    async def query_forever(self) -> None:
        chosen = self._world.dice.random
        while True:
            await asyncio.sleep(chosen.choice([0.2, 1.0]))
            uid, key = chosen.choice(job_chain.keys_of(job_chain.TABLE.id))
            second = chosen.choice(AS_OF_S)
            copies = LONG_READ if self.answers % 5 == 0 else 1
            try:
                ((row, *same),) = await self._lookups.fetch(
                    [
                        JobLookup(
                            job_chain.TABLE.id,
                            self._world.partitions,
                            [key] * copies,
                            job_chain.micros(second),
                            ERASABLE,
                        )
                    ],
                    ReadOutcome(),
                )
            except (PartitionUnavailable, JobParked):
                continue
            self.answers += 1
            if set(same) - {row}:
                self._world.broken.append(f"a read saw {uid} in two states: {row}, {set(same)}")
            self._check(uid, second, job_chain.decoded(row))

    def _check(self, uid: str, second: float, row: Sequence[Any] | None) -> None:
        fed = [
            [u["at"], u["city"]]
            for u in self._world.feed.sent
            if u["uid"] == uid and not u["__tombstone"]
        ]
        if row is not None and (list(row) not in fed or row[0] > job_chain.micros(second)):
            self._world.broken.append(f"a client got {row} for {uid} as of {second} s")

    async def refusals(self, service: SlotService) -> None:
        """Check that a slot refuses unknown operations and jobs with their codes."""
        unknown = {"job": "unknown", "part": 0, "as_of": 0, "limit": 1}
        for op, argument, code in (
            ("explain", {}, RefusalCode.UNKNOWN_OPERATION),
            ("scan", unknown, RefusalCode.NOT_OWNER),
        ):
            try:
                await service(op, argument)
            except RemoteError as refused:
                if refused.remote_code == code:
                    continue
            raise AssertionError(f"{op} was not refused as {code}")
