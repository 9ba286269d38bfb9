"""A sample of the keys of a topic, with all of their rows.

Theory. Each key has a rank, a hash of the seed and its bytes, and the sample is the keys with the
smallest ranks: every key is equally likely, whatever its number of rows, and the same seed and rows
give the same sample. A key that is not among the smallest at its first row never is later, because
the largest rank of the sample only falls. So one pass over the rows in any order finds the sample
and keeps nothing else. A key with too many rows leaves the sample, and is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

import msgspec
import polars as pl

from fennel_core.integrity.naive_values import InputRow
from fennel_core.operators.spec import VALID_TO
from fennel_core.vocab.keys import key_bytes, physical
from fennel_core.vocab.versions import IS_TOMBSTONE, POS, SIGN

MAX_ROWS: Final = 100_000
"""Versions that a sample keeps: some tens of megabytes, and seconds of naive work."""
_KEY: Final = "\0key"


def rank(seed: int, key: bytes) -> bytes:
    """Return the rank of a key: 8 bytes that look random and depend on seed and key alone."""
    return blake2b(key, digest_size=8, salt=seed.to_bytes(16, "big", signed=True)).digest()


@dataclass(slots=True)
class KeySample:
    """The sample of `limit` keys while rows are added, and the keys of `always`.

    `keys` are the columns of a key.
    """

    keys: tuple[str, ...]
    seed: int
    limit: int
    always: frozenset[bytes] = frozenset()
    max_rows: int = MAX_ROWS
    too_large: int = 0
    """Keys that have left the sample because they have too many rows."""
    _ranks: dict[bytes, bytes] = field(default_factory=dict)
    _ranked: int = 0
    """Keys of the sample that are not in `always`."""
    _rejected: bytes | None = None
    """The smallest rank that was too large: a key with a smaller one has not been seen before."""
    _counts: Counter[bytes] = field(default_factory=Counter)
    _frames: list[pl.DataFrame] = field(default_factory=list)
    _excluded: set[bytes] = field(default_factory=set)

    def add(self, rows: pl.DataFrame) -> None:
        """Add versions; keep those of keys that are in the sample after them."""
        found = key_bytes(rows, self.keys)
        for key in set(found) - self._ranks.keys() - self._excluded:
            self._consider(key)
        self._keep(rows, found)

    def add_of_sample(self, rows: pl.DataFrame) -> None:
        """Add versions of keys that are in the sample already; the sample stays the same."""
        self._keep(rows, key_bytes(rows, self.keys))

    def chosen(self) -> list[bytes]:
        """Return the keys of the sample, smallest rank first."""
        return sorted(self._ranks, key=self._ranks.__getitem__)

    def rank_of(self, key: bytes) -> bytes:
        """Return the rank of a key of the sample; those of `always` have the smallest."""
        return self._ranks[key]

    @property
    def excluded(self) -> frozenset[bytes]:
        """The keys that have left the sample because they have too many rows."""
        return frozenset(self._excluded)

    def rows_of(self, time: str) -> dict[bytes, list[InputRow]]:
        """Return per key its rows that were added and not retracted; `time` is the column by whose
        time they count.
        """
        net: dict[bytes, dict[bytes, tuple[InputRow, int]]] = {key: {} for key in self._ranks}
        for frame in self._frames:
            data = physical(frame.drop(_KEY)).rows(named=True)
            for key, row in zip(frame[_KEY].to_list(), data, strict=True):
                _add_up(net[key], row, time)
        return {
            key: [row for row, count in content.values() for _ in range(count)]
            for key, content in net.items()
        }

    def _consider(self, key: bytes) -> None:
        if key in self.always:
            self._ranks[key] = b""
            return
        new = rank(self.seed, key)
        if self.limit == 0 or (self._rejected is not None and new >= self._rejected):
            return
        if self._ranked == self.limit:
            last = max(self._ranks, key=self._ranks.__getitem__)
            self._rejected = max(new, self._ranks[last])
            if new > self._ranks[last]:
                return
            self._forget(last)
        self._ranks[key] = new
        self._ranked += 1

    def _keep(self, rows: pl.DataFrame, found: Sequence[bytes]) -> None:
        mine = pl.Series([key in self._ranks for key in found], dtype=pl.Boolean)
        kept = rows.with_columns(pl.Series(_KEY, found, dtype=pl.Binary)).filter(mine)
        if kept.is_empty():
            return
        self._frames.append(kept)
        self._counts.update(kept[_KEY].to_list())
        while self._counts.total() > self.max_rows:
            largest = max(self._counts, key=lambda key: (self._counts[key], key))
            self._excluded.add(largest)
            self._forget(largest)
            self.too_large += 1

    def _forget(self, key: bytes) -> None:
        self._ranked -= key not in self.always
        del self._ranks[key]
        self._counts.pop(key, None)
        left = (frame.filter(pl.col(_KEY) != pl.lit(key)) for frame in self._frames)
        self._frames = [frame for frame in left if not frame.is_empty()]


def _add_up(net: dict[bytes, tuple[InputRow, int]], row: dict[str, object], time: str) -> None:
    """Add a version to those of its key, or take back the one that it retracts."""
    sign, position, is_tombstone = row.pop(SIGN), row.pop(POS), row.pop(IS_TOMBSTONE)
    at, valid_to = row[time], row.get(VALID_TO)
    assert isinstance(sign, int), "every version is added or retracted"
    assert isinstance(position, bytes), "every version has a position"
    assert isinstance(at, int), "every row has a time"
    assert valid_to is None or isinstance(valid_to, int), "an interval ends at a time"
    content = msgspec.msgpack.encode([position, is_tombstone, row])
    known = net.get(content)
    count = sign if known is None else known[1] + sign
    net[content] = InputRow(at, position, row, bool(is_tombstone), valid_to), count
