"""Lookups: keys to rows, in one request per owner slot.

Theory. A key's bytes say its partition, the partition's owner serves it from its state. All keys of
all datasets that one level of a plan needs are grouped by owner and sent at once; each slot gets
one frame. What a slot refuses because the partition moved, or cannot answer because the connection
broke, is asked again at the owner the registry names by then, until the deadline: moves are seconds
at most, and nothing here caches a value, so an answer is never older than the question. Rows come
back as msgpack arrays and are turned into columns by C code (`join`, one decode, `zip`), never row
by row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from fennel_core.connections.frames import RemoteError
from fennel_core.query.errors import JobParked, PartitionUnavailable
from fennel_core.query.owners import Owners
from fennel_core.query.slot_connections import SlotConnections, retry_reason
from fennel_core.vocab.ids import JobId, JobPartition, PartitionIndex
from fennel_core.vocab.keys import partition_of

RETRY_PAUSE_S = 0.02
"""Between two askings for a partition that has no live owner: a take-over needs some tens of
milliseconds.
"""

EncodedRows = list[bytes | None]
_decode_rows = msgspec.msgpack.Decoder().decode


@dataclass(frozen=True, slots=True)
class JobLookup:
    """Rows of one job under `keys`, all as of one time or each as of its own (microseconds)."""

    job: JobId
    partitions: int
    keys: Sequence[bytes]
    as_of: int | Sequence[int]


@dataclass(slots=True)
class _Piece:
    """The part of a want that one partition answers; `places` are the keys' places in the want."""

    want: int
    partition: JobPartition
    places: Sequence[int]
    keys: Sequence[bytes]
    as_of: int | Sequence[int]
    failure: str = field(default="it has no owner yet")

    def item(self) -> list[object]:
        return [*self.partition, self.keys, self.as_of]


class Lookups:
    """`timeout_s` bounds the search for the owner of a moved partition; `hidden` gives the places
    of erased keys among a job's keys.
    """

    def __init__(
        self,
        slots: SlotConnections,
        owners: Owners,
        timeout_s: float,
        hidden: Callable[[JobId, Sequence[bytes]], Sequence[int]] = lambda _job, _keys: (),
    ) -> None:
        self._hidden = hidden
        self._slots = slots
        self._owners = owners
        self._timeout_s = timeout_s

    async def fetch(self, wants: Sequence[JobLookup]) -> list[EncodedRows]:
        """For each want one row (msgpack `[ts, value, …]`) or None per key.

        Raises `JobParked` with the job's error, `PartitionUnavailable` when the deadline passes.
        """
        answers: list[EncodedRows] = [[None] * len(want.keys) for want in wants]
        open_pieces = _pieces(wants)
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        while True:
            epoch = self._owners.epoch
            asked = [self._owners.address(piece.partition) for piece in open_pieces]
            failed = await self._ask(open_pieces, asked, answers, deadline)
            if not failed:
                for want, rows in zip(wants, answers, strict=True):
                    for place in self._hidden(want.job, want.keys):
                        rows[place] = None
                return answers
            if asyncio.get_running_loop().time() >= deadline:
                raise PartitionUnavailable(failed[0].partition, failed[0].failure)
            known = {
                piece.partition: address for piece, address in zip(open_pieces, asked, strict=True)
            }
            open_pieces = failed
            await self._owners.refresh(epoch)
            self._refuse_parked(open_pieces)
            if all(
                self._owners.address(piece.partition) == known[piece.partition]
                for piece in open_pieces
            ):
                await asyncio.sleep(
                    RETRY_PAUSE_S
                )  # nobody has taken over yet, or the owner is still recovering

    def _refuse_parked(self, pieces: Sequence[_Piece]) -> None:
        for piece in pieces:
            parked = self._owners.parked(piece.partition)
            if parked is not None and self._owners.address(piece.partition) is None:
                raise JobParked.of(piece.partition, parked.error)

    async def _ask(
        self,
        pieces: list[_Piece],
        addresses: list[str | None],
        answers: list[EncodedRows],
        deadline: float,
    ) -> list[_Piece]:
        """Ask every owner at once; the pieces that must be asked again."""
        by_owner: dict[str, list[_Piece]] = {}
        again: list[_Piece] = []
        for piece, address in zip(pieces, addresses, strict=True):
            if address is None:
                again.append(piece)
            else:
                by_owner.setdefault(address, []).append(piece)
        if len(by_owner) == 1:
            address, group = by_owner.popitem()
            again += await self._ask_one(address, group, answers, deadline)
        elif by_owner:
            asked = (
                self._ask_one(address, group, answers, deadline)
                for address, group in by_owner.items()
            )
            for failed in await asyncio.gather(*asked):
                again += failed
        return again

    async def _ask_one(
        self, address: str, pieces: list[_Piece], answers: list[EncodedRows], deadline: float
    ) -> list[_Piece]:
        try:
            async with asyncio.timeout_at(deadline):
                results = await self._slots.call(
                    address, "lookup", {"items": [piece.item() for piece in pieces]}
                )
        except RemoteError as refused:
            return _failed(pieces, retry_reason(refused))
        except (OSError, TimeoutError) as lost:
            return _failed(
                pieces, f"its owner at {address} does not answer: {str(lost) or 'time is up'}"
            )
        assert len(results) == len(pieces), "a slot answers every item"
        for piece, rows in zip(pieces, results, strict=True):
            _place(answers[piece.want], piece.places, rows)
        return []


def _failed(pieces: list[_Piece], why: str) -> list[_Piece]:
    for piece in pieces:
        piece.failure = why
    return pieces


def _place(answer: EncodedRows, places: Sequence[int], rows: Sequence[bytes | None]) -> None:
    assert len(rows) == len(places), "a slot answers every key"
    if isinstance(places, range):
        answer[:] = rows
        return
    for place, row in zip(places, rows, strict=True):
        answer[place] = row


def _pieces(wants: Sequence[JobLookup]) -> list[_Piece]:
    """The wants by partition. Wants of one level mostly share their keys (one list): those are
    divided once.
    """
    pieces: list[_Piece] = []
    shares_of: dict[tuple[int, int], list[_Share]] = {}
    for number, want in enumerate(wants):
        shared = (id(want.keys), want.partitions)
        shares = shares_of.get(shared)
        if shares is None:
            shares = shares_of[shared] = _divide(want.keys, want.partitions)
        for part, places, keys in shares:
            as_of = (
                want.as_of
                if isinstance(want.as_of, int)
                else [want.as_of[place] for place in places]
            )
            pieces.append(_Piece(number, (want.job, PartitionIndex(part)), places, keys, as_of))
    return pieces


_Share = tuple[int, Sequence[int], Sequence[bytes]]
"""A partition, the places of its keys, its keys."""


def _divide(keys: Sequence[bytes], partitions: int) -> list[_Share]:
    if len(keys) == 1:
        return [(partition_of(keys[0], partitions), range(1), keys)]
    places: dict[int, list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(partition_of(key, partitions), []).append(place)
    return [(part, here, list(map(keys.__getitem__, here))) for part, here in places.items()]


def row_bytes(values: Sequence[object]) -> bytes:
    """The encoded row of an absent key: no timestamp, then `values`."""
    return msgspec.msgpack.encode([None, *values])


def transpose(rows: EncodedRows, absent: bytes) -> list[tuple[object, ...]]:
    """Columns of `rows` (timestamp first), `absent` standing in for missing ones. There must be a
    row.
    """
    present = rows if None not in rows else [absent if row is None else row for row in rows]
    header = b"\xdd" + len(rows).to_bytes(4, "big")
    return list(zip(*_decode_rows(header + b"".join(present)), strict=True))  # type: ignore[arg-type]  # no None is left
