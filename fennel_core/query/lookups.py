"""Look up keys: one request per owner slot, for all keys that one level of a plan needs.

The bytes of a key determine its partition, and the owner of the partition serves it from its state.
All keys of all datasets that a level needs are grouped by owner and sent at once, one frame per
slot (many keys in several frames, one after the other, so that neither side's event loop works on a
long one). When a slot refuses because it does not own the partition, or its connection breaks, the
lookup is repeated at the owner that the registry names by then, until the deadline: a change of
owners takes seconds at most. A slot that works on a lookup is waited for as long as the request
lasts, and a cancelled request cancels its work in the slots. While the registry cannot be read, the
last known owners are used. No value is cached here, so a result is never older than its request,
unless the slot marks it as stale: it serves reads after its lease has ended until it learns of
another owner. Rows are msgpack arrays and become columns by C code (`join`, one decode, `zip`),
never row by row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import msgspec

from fennel_core.connections.api_errors import DatabaseUnavailable
from fennel_core.connections.erasures import ErasableKeys
from fennel_core.connections.frames import RemoteError
from fennel_core.query.batch_thread import ROWS_IN_LOOP, SLICE_ROWS, off_loop, slices
from fennel_core.query.concurrently import gather_or_cancel
from fennel_core.query.errors import (
    JobParked,
    PartitionUnavailable,
    SlotUnresponsive,
    ViewOutdated,
)
from fennel_core.query.owners import Owners
from fennel_core.query.slot_connections import SlotConnections, retry_reason
from fennel_core.vocab.ids import JobId, JobPartition, PartitionIndex
from fennel_core.vocab.keys import partition_of

RETRY_PAUSE_S = 0.02
"""Pause between two attempts for a partition without a live owner; a takeover needs tens of
milliseconds.
"""

REFRESH_WAIT_S = 0.25
"""Longest wait for newer owners per attempt: the registry may be out of reach."""

KEYS_PER_FRAME = 2_000
"""Keys of one request to a slot, unless one partition of one job has more: its keys are read from
one view. Frames are encoded and decoded on the event loop: a tenth of a millisecond per thousand
keys.
"""

EncodedRows = list[bytes | None]
_decode_rows = msgspec.msgpack.Decoder().decode


@dataclass(frozen=True, slots=True)
class JobLookup:
    """A lookup of `keys` in one job, as of one time or one time per key (µs).

    `erasable` determines which erasures apply to the keys.
    """

    job: JobId
    partitions: int
    keys: Sequence[bytes]
    as_of: int | Sequence[int]
    erasable: ErasableKeys


@dataclass(slots=True)
class ReadOutcome:
    """What the reads of one request have in common. `stale`: one of them may be behind."""

    stale: bool = False


@dataclass(slots=True)
class _PartitionLookup:
    """The part of a lookup that one partition serves.

    `lookup` and `places` are the indexes of the lookup and of the keys within it.
    """

    lookup: int
    partition: JobPartition
    places: Sequence[int]
    keys: Sequence[bytes]
    as_of: int | Sequence[int]
    failure: str = field(default="it has no owner yet")
    unresponsive: bool = False
    """Its owner is frozen."""

    def item(self) -> list[object]:
        return [*self.partition, self.keys, self.as_of]


class Lookups:
    """Looks keys up at the owners of their partitions.

    `timeout_s` bounds the search for the owner of a partition. `hidden` returns the indexes of
    erased keys.
    """

    def __init__(
        self,
        slots: SlotConnections,
        owners: Owners,
        timeout_s: float,
        hidden: Callable[[ErasableKeys, Sequence[bytes]], Sequence[int]],
    ) -> None:
        self._hidden = hidden
        self._slots = slots
        self._owners = owners
        self._timeout_s = timeout_s

    async def fetch(
        self, job_lookups: Sequence[JobLookup], outcome: ReadOutcome
    ) -> list[EncodedRows]:
        """Return per lookup one row (msgpack `[ts, value, …]`) or None per key.

        Raises `JobParked`, `ViewOutdated` for a job that no longer exists, `ErasuresUnknown`, and
        `PartitionUnavailable` when no owner is found before the deadline.
        """
        answers: list[EncodedRows] = [[None] * len(job_lookup.keys) for job_lookup in job_lookups]
        hidden = [self._hidden(each.erasable, each.keys) for each in job_lookups]
        large = sum(len(each.keys) for each in job_lookups) > ROWS_IN_LOOP
        pending = await off_loop(large, lambda: _pieces(job_lookups))
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        while True:
            epoch = self._owners.epoch
            asked = [self._owners.address(piece.partition) for piece in pending]
            failed = await self._ask(pending, asked, answers, outcome)
            if not failed:
                for rows, places in zip(answers, hidden, strict=True):
                    for place in places:
                        rows[place] = None
                return answers
            if asyncio.get_running_loop().time() >= deadline:
                raise PartitionUnavailable(failed[0].partition, failed[0].failure)
            known = {
                piece.partition: address for piece, address in zip(pending, asked, strict=True)
            }
            pending = failed
            await refresh_owners(self._owners, epoch, {p.partition[0] for p in pending})
            self._refuse_hopeless(pending, known)
            if all(
                self._owners.address(piece.partition) == known[piece.partition] for piece in pending
            ):
                # The partition has no new owner yet, or its owner is still replaying.
                await asyncio.sleep(RETRY_PAUSE_S)

    def _refuse_hopeless(
        self,
        pieces: Sequence[_PartitionLookup],
        asked: Mapping[JobPartition, str | None],
    ) -> None:
        for piece in pieces:
            address = self._owners.address(piece.partition)
            parked = self._owners.parked(piece.partition)
            if parked is not None and address is None:
                raise JobParked.of(piece.partition, parked.error)
            if not self._owners.knows(piece.partition[0]):
                raise ViewOutdated(f"job `{piece.partition[0]}` no longer exists")
            if piece.unresponsive and address == asked[piece.partition]:
                raise PartitionUnavailable(piece.partition, piece.failure)

    async def _ask(
        self,
        pieces: list[_PartitionLookup],
        addresses: list[str | None],
        answers: list[EncodedRows],
        outcome: ReadOutcome,
    ) -> list[_PartitionLookup]:
        """Ask every owner; return the parts that must be repeated."""
        by_owner: dict[str, list[_PartitionLookup]] = {}
        again: list[_PartitionLookup] = []
        for piece, address in zip(pieces, addresses, strict=True):
            if address is None:
                again.append(piece)
            else:
                by_owner.setdefault(address, []).append(piece)
        if len(by_owner) == 1:
            address, group = by_owner.popitem()
            again += await self._ask_one(address, group, answers, outcome)
        elif by_owner:
            for failed in await gather_or_cancel(
                self._ask_one(address, group, answers, outcome)
                for address, group in by_owner.items()
            ):
                again += failed
        return again

    async def _ask_one(
        self,
        address: str,
        pieces: list[_PartitionLookup],
        answers: list[EncodedRows],
        outcome: ReadOutcome,
    ) -> list[_PartitionLookup]:
        """Send one request, or several one after the other for many keys."""
        if len(pieces) == 1:
            return await self._send(address, pieces, answers, outcome)
        again: list[_PartitionLookup] = []
        for some in _frames(pieces):
            again += await self._send(address, some, answers, outcome)
        return again

    async def _send(
        self,
        address: str,
        pieces: list[_PartitionLookup],
        answers: list[EncodedRows],
        outcome: ReadOutcome,
    ) -> list[_PartitionLookup]:
        try:
            reply = await self._slots.call(
                address, "lookup", {"items": [piece.item() for piece in pieces]}
            )
        except RemoteError as refused:
            return _failed(pieces, retry_reason(refused))
        except SlotUnresponsive as frozen:
            for piece in pieces:
                piece.unresponsive = True
            return _failed(pieces, f"its owner at {address} does not respond: {frozen}")
        except OSError as lost:
            return _failed(pieces, f"its owner at {address} does not respond: {lost}")
        results = reply["rows"]
        assert len(results) == len(pieces), "a slot returns a result per item"
        for piece, rows in zip(pieces, results, strict=True):
            _place(answers[piece.lookup], piece.places, rows)
        outcome.stale |= reply["stale"]
        return []


async def refresh_owners(owners: Owners, seen: int, jobs: Collection[JobId]) -> None:
    """Wait a moment for owners of `jobs` that are newer than epoch `seen`.

    If the registry cannot be read, the last known owners stay in use.
    """
    try:
        async with asyncio.timeout(REFRESH_WAIT_S):
            await owners.refresh(seen, jobs)
    except (DatabaseUnavailable, TimeoutError):
        return


def _frames(pieces: list[_PartitionLookup]) -> Iterator[list[_PartitionLookup]]:
    """Divide pieces into requests of at most `KEYS_PER_FRAME` keys; no piece is divided."""
    some: list[_PartitionLookup] = []
    keys = 0
    for piece in pieces:
        if some and keys + len(piece.keys) > KEYS_PER_FRAME:
            yield some
            some, keys = [], 0
        some.append(piece)
        keys += len(piece.keys)
    if some:
        yield some


def _failed(pieces: list[_PartitionLookup], why: str) -> list[_PartitionLookup]:
    for piece in pieces:
        piece.failure = why
    return pieces


def _place(answer: EncodedRows, places: Sequence[int], rows: Sequence[bytes | None]) -> None:
    assert len(rows) == len(places), "a slot returns a row per key"
    if isinstance(places, range):
        answer[:] = rows
        return
    for place, row in zip(places, rows, strict=True):
        answer[place] = row


def _pieces(job_lookups: Sequence[JobLookup]) -> list[_PartitionLookup]:
    """Divide lookups by partition.

    The lookups of one level mostly share their keys (one list), which are divided once.
    """
    pieces: list[_PartitionLookup] = []
    shares_of: dict[tuple[int, int], list[_Share]] = {}
    for number, job_lookup in enumerate(job_lookups):
        shared = (id(job_lookup.keys), job_lookup.partitions)
        shares = shares_of.get(shared)
        if shares is None:
            shares = shares_of[shared] = _divide(job_lookup.keys, job_lookup.partitions)
        for part, places, keys in shares:
            as_of = (
                job_lookup.as_of
                if isinstance(job_lookup.as_of, int)
                else [job_lookup.as_of[place] for place in places]
            )
            pieces.append(
                _PartitionLookup(
                    number, (job_lookup.job, PartitionIndex(part)), places, keys, as_of
                )
            )
    return pieces


_Share = tuple[int, Sequence[int], Sequence[bytes]]
"""A partition, the indexes of its keys, its keys."""


def _divide(keys: Sequence[bytes], partitions: int) -> list[_Share]:
    if len(keys) == 1:
        return [(partition_of(keys[0], partitions), range(1), keys)]
    places: dict[int, list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(partition_of(key, partitions), []).append(place)
    return [(part, here, list(map(keys.__getitem__, here))) for part, here in places.items()]


def row_bytes(values: Sequence[object]) -> bytes:
    """Encode the row of an absent key: no timestamp, then `values`."""
    return msgspec.msgpack.encode([None, *values])


def transpose(rows: EncodedRows, absent: bytes) -> list[tuple[object, ...]]:
    """Return the columns of `rows`, timestamp first, with `absent` in place of missing rows.

    There must be at least one row.
    """
    present = rows if None not in rows else [absent if row is None else row for row in rows]
    if len(present) <= SLICE_ROWS:
        return _columns(present)  # type: ignore[arg-type]  # no None is left
    parts = [_columns(present[some]) for some in slices(len(present))]  # type: ignore[arg-type]  # as above
    return [tuple(chain.from_iterable(column)) for column in zip(*parts, strict=True)]


def _columns(rows: Sequence[bytes]) -> list[tuple[object, ...]]:
    header = b"\xdd" + len(rows).to_bytes(4, "big")
    return list(zip(*_decode_rows(header + b"".join(rows)), strict=True))
