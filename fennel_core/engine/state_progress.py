"""What a job partition's state knows about itself: how far it has come, and a hash of what it
holds.

Theory. Offsets, replaylog position and state hash change in the same write batch as the state they
describe: there is no moment at which they disagree. The hash is the sum, modulo 2^128, of a hash of
every entry: it does not depend on order, changes by one subtraction and one addition per entry
written, and lets a drill compare two states by comparing two numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import msgspec

from fennel_core.engine.errors import StateFormatError
from fennel_core.hangar.store import HangarReader, WriteBatch
from fennel_core.operators.step import Outcome
from fennel_core.vocab.ids import Offset, TopicName

STATE_FORMAT: Final = 1
KEY: Final = b"\xffprogress"
_OURS: Final = b"\xff"
"""Keys from here on are the runner's."""
_PAGE: Final = 4096
_HASH_BYTES: Final = 16
_MODULUS: Final = 1 << (8 * _HASH_BYTES)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


@dataclass(frozen=True, slots=True)
class StateProgress:
    """`offsets`: next record to apply per input topic. `replayed`: next replaylog record to look
    at.
    """

    iteration: int
    replayed: Offset
    offsets: Mapping[TopicName, Offset]
    state_hash: int


NO_PROGRESS = StateProgress(0, Offset(0), {}, 0)


def load(reads: HangarReader) -> StateProgress:
    """The progress stored with the state; `NO_PROGRESS` where there is none."""
    stored = reads.get_many([KEY])[0]
    if stored is None:
        return NO_PROGRESS
    state_format, iteration, replayed, offsets, state_hash = _decode(stored)
    if state_format != STATE_FORMAT:
        raise StateFormatError(
            f"state format {state_format} is not {STATE_FORMAT}: run the version that wrote it"
        )
    return StateProgress(
        iteration,
        Offset(replayed),
        {TopicName(t): Offset(o) for t, o in offsets.items()},
        int.from_bytes(state_hash, "big"),
    )


def digest(outcome: Outcome) -> bytes:
    """A digest of the mutations of one iteration: equal exactly when the mutations are (but for
    collisions).
    """
    hashed = blake2b(digest_size=_HASH_BYTES)
    for key in sorted(outcome.puts):
        hashed.update(b"+%d,%d:" % (len(key), len(outcome.puts[key])))
        hashed.update(key)
        hashed.update(outcome.puts[key])
    for key in sorted(outcome.deletes):
        hashed.update(b"-%d:" % len(key))
        hashed.update(key)
    return hashed.digest()


class CachedReads:
    """Reads that keep what they were answered: the state hash asks for most of what the step has
    just read.
    """

    def __init__(self, reads: HangarReader) -> None:
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


def updated_state_hash(reads: HangarReader, state_hash: int, outcome: Outcome) -> int:
    """The state hash after `outcome`, from the one before it and the state before it."""
    touched = [*outcome.puts, *outcome.deletes]
    for key, old in zip(touched, reads.get_many(touched), strict=True):
        if old is not None:
            state_hash -= _entry(key, old)
        new = outcome.puts.get(key)
        if new is not None:
            state_hash += _entry(key, new)
    return state_hash % _MODULUS


def entries(reads: HangarReader) -> Iterator[tuple[bytes, bytes]]:
    """Every entry of a state in order of keys, but for what the runner keeps beside it."""
    start = b""
    while page := reads.scan(start, _OURS, limit=_PAGE):
        yield from page
        start = page[-1][0] + b"\0"


def computed_state_hash(reads: HangarReader) -> int:
    """The state hash by what is there, for comparison with the one that was kept. Reads
    everything.
    """
    return sum(_entry(key, value) for key, value in entries(reads)) % _MODULUS


def batch(after: StateProgress, outcome: Outcome) -> WriteBatch:
    """The write batch of one iteration: its mutations and the progress they lead to."""
    return WriteBatch({**outcome.puts, KEY: _stored(after)}, outcome.deletes)


def _stored(progress: StateProgress) -> bytes:
    hashed = progress.state_hash.to_bytes(_HASH_BYTES, "big")
    return _encode(
        [STATE_FORMAT, progress.iteration, progress.replayed, dict(progress.offsets), hashed]
    )


def _entry(key: bytes, value: bytes) -> int:
    return int.from_bytes(
        blake2b(len(key).to_bytes(4, "big") + key + value, digest_size=_HASH_BYTES).digest(), "big"
    )
