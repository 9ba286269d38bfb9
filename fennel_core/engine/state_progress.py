"""The progress of a job partition: how far its state has applied its inputs, and the state's hash.

Theory. Input offsets, replaylog position and state hash change in the same write batch as the state
that they describe, so they never disagree with it. The hash is the sum, modulo 2^128, of a hash of
every entry. It does not depend on the order of writes, costs one subtraction and one addition per
entry written, and lets a drill compare two states by comparing two numbers.

The progress also holds the epoch of the latest owner that wrote the state. An owner starts only
from a state that no later owner has written. Without this, a paused owner could resume, open the
state that its successor left on the shared disk, find nothing after that state's replaylog
position, and write iterations under its own, lower epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Final

import msgspec

from fennel_core.engine.errors import EpochSuperseded, StateFormatError
from fennel_core.hangar.read_view import ReadView, keep_in_slices
from fennel_core.hangar.store import Hangar, HangarBusy, WriteBatch, in_order
from fennel_core.operators.step import Outcome, StateReader
from fennel_core.snapshots.manifest import StatePosition
from fennel_core.vocab.ids import Epoch, Offset, TopicName

STATE_FORMAT: Final = 2
PROGRESS_KEY: Final = b"\xffprogress"
_RUNNER_KEYS: Final = b"\xff"
"""Keys from here on belong to the runner; all lower keys belong to the step."""
_PAGE: Final = 4096
FIRST_PAUSE_S: Final = 0.01
LONGEST_PAUSE_S: Final = 1.0
"""Between attempts to write to a busy store."""
LARGE_BATCH_KEYS: Final = 50_000
"""A batch with more keys is staged on another thread first: RocksDB writes that many in a third of
a second, in which the slot renews no lease and serves no lookup.
"""
_HASH_BYTES: Final = 16
_MODULUS: Final = 1 << (8 * _HASH_BYTES)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


@dataclass(frozen=True, slots=True)
class StateProgress:
    """The position that a state has reached."""

    iteration: int
    """Number of the last iteration applied."""
    replayed: Offset
    """The next replaylog record to replay."""
    offsets: Mapping[TopicName, Offset]
    """The next record to apply per input topic."""
    state_hash: int
    epoch: Epoch
    """Of the latest owner that wrote the state; no marker below `replayed` has a higher one."""


NO_PROGRESS = StateProgress(0, Offset(0), {}, 0, Epoch(0))


def position_of(progress: StateProgress) -> StatePosition:
    """Return the position that a snapshot of this state has."""
    return StatePosition(progress.iteration, progress.replayed, progress.offsets)


def load(reads: StateReader) -> StateProgress:
    """Return the progress stored with the state, `NO_PROGRESS` if there is none.

    Raises StateFormatError.
    """
    stored = reads.get_many([PROGRESS_KEY])[0]
    if stored is None:
        return NO_PROGRESS
    state_format, *fields = _decode(stored)
    if state_format != STATE_FORMAT:
        raise StateFormatError(
            f"the state has format {state_format}, this version reads format {STATE_FORMAT}: "
            "run the version that wrote it"
        )
    iteration, replayed, offsets, state_hash, epoch = fields
    return StateProgress(
        iteration,
        Offset(replayed),
        {TopicName(t): Offset(o) for t, o in offsets.items()},
        int.from_bytes(state_hash, "big"),
        Epoch(epoch),
    )


def mutations_digest(outcome: Outcome) -> bytes:
    """Return a digest of the mutations of one iteration; equal mutations have equal digests."""
    hashed = blake2b(digest_size=_HASH_BYTES)
    for key in in_order(outcome.puts):
        hashed.update(b"+%d,%d:" % (len(key), len(outcome.puts[key])))
        hashed.update(key)
        hashed.update(outcome.puts[key])
    for key in in_order(outcome.deletes):
        hashed.update(b"-%d:" % len(key))
        hashed.update(key)
    return hashed.digest()


class CachedReads:
    """Reads that remember point lookups: the state hash needs most of what the step has read."""

    def __init__(self, reads: StateReader) -> None:
        self._reads = reads
        self._known: dict[bytes, bytes | None] = {}

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        known = self._known
        missing = [key for key in keys if key not in known]
        if missing:
            known.update(zip(missing, self._reads.get_many(missing), strict=True))
        return [known[key] for key in keys]

    def scan(
        self, start: bytes, stop: bytes, *, reverse: bool = False, limit: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        return self._reads.scan(start, stop, reverse=reverse, limit=limit)


def updated_state_hash(reads: StateReader, state_hash: int, outcome: Outcome) -> int:
    """Return the state hash after `outcome`, from the hash and the state before it."""
    touched = [*outcome.puts, *outcome.deletes]
    for key, old in zip(touched, reads.get_many(touched), strict=True):
        if old is not None:
            state_hash -= _entry(key, old)
        new = outcome.puts.get(key)
        if new is not None:
            state_hash += _entry(key, new)
    return state_hash % _MODULUS


def entries(reads: StateReader) -> Iterator[tuple[bytes, bytes]]:
    """Yield every entry of the step in the order of keys, without the runner's own entries."""
    start = b""
    while page := reads.scan(start, _RUNNER_KEYS, limit=_PAGE):
        yield from page
        start = page[-1][0] + b"\0"


def computed_state_hash(reads: StateReader) -> int:
    """Compute the state hash from all entries, to compare it with the stored one."""
    return sum(_entry(key, value) for key, value in entries(reads)) % _MODULUS


def write_batch(after: StateProgress, outcome: Outcome) -> WriteBatch:
    """Return the write batch of one iteration: its mutations and the progress after them."""
    return WriteBatch({**outcome.puts, PROGRESS_KEY: _stored(after)}, outcome.deletes)


def _stored(progress: StateProgress) -> bytes:
    hashed = progress.state_hash.to_bytes(_HASH_BYTES, "big")
    fields = [progress.iteration, progress.replayed, dict(progress.offsets), hashed, progress.epoch]
    return _encode([STATE_FORMAT, *fields])


def _entry(key: bytes, value: bytes) -> int:
    return int.from_bytes(
        blake2b(len(key).to_bytes(4, "big") + key + value, digest_size=_HASH_BYTES).digest(), "big"
    )


class PartitionState:
    """The state of one job partition together with its progress, as its owner `epoch` uses it."""

    def __init__(self, hangar: Hangar, epoch: Epoch) -> None:
        self.hangar, self._epoch = hangar, epoch
        self._views: list[ReadView] = []
        self.progress = NO_PROGRESS
        """As of the last iteration applied."""
        self._applying = False

    def load(self) -> None:
        """Read the progress that is stored with the state.

        Raises StateFormatError, and EpochSuperseded if a later owner has written the state.
        """
        self.progress = load(self.hangar)
        if self.progress.epoch > self._epoch:
            raise EpochSuperseded(
                f"the state was written under epoch {self.progress.epoch}, which is later than "
                f"ours, {self._epoch}"
            )

    async def apply(
        self,
        iteration: int,
        outcome: Outcome,
        state_hash: int,
        offsets: Mapping[TopicName, Offset],
        replayed: Offset,
    ) -> None:
        """Write an iteration's mutations and the progress after them in one batch.

        Call it on the thread that serves lookups: they then never read half an iteration. While the
        store is busy or a large batch is staged, lookups see the state before, and the slot renews
        its lease.
        """
        assert not self._applying, "iterations are applied one after the other"
        after = StateProgress(
            iteration, replayed, {**self.progress.offsets, **offsets}, state_hash, self._epoch
        )
        batch, pause_s = write_batch(after, outcome), FIRST_PAUSE_S
        self._applying = True
        try:
            if len(batch.puts) + len(batch.deletes) > LARGE_BATCH_KEYS:
                await asyncio.to_thread(self.hangar.stage, batch)
                await keep_in_slices(self._views, [*batch.puts, *batch.deletes])
            while not self._write(batch):
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        finally:
            self._applying = False
        self.progress = after

    def _write(self, batch: WriteBatch) -> bool:
        """Return False if the store is busy and has written nothing."""
        for view in self._views:
            view.keep(batch)
        try:
            self.hangar.write(batch)
        except HangarBusy:
            return False
        return True

    @contextmanager
    def view(self) -> Iterator[StateReader]:
        """Return the state as it is now, for a read that gives way to iterations."""
        view = ReadView(self.hangar)
        self._views.append(view)
        try:
            yield view
        finally:
            self._views.remove(view)

    async def advance(self, offsets: Mapping[TopicName, Offset], replayed: Offset) -> None:
        """Store later positions that need no iteration."""
        known = self.progress
        await self.apply(known.iteration, Outcome(), known.state_hash, offsets, replayed)

    def advance_offsets(self, offsets: Mapping[TopicName, Offset]) -> None:
        """Store later input offsets that need no iteration, unless the store is busy."""
        after = replace(
            self.progress, offsets={**self.progress.offsets, **offsets}, epoch=self._epoch
        )
        if not self._applying and self._write(write_batch(after, Outcome())):
            self.progress = after
