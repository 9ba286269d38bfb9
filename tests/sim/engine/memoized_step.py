"""A step that memoizes its outcomes: half of a simulated run is replay, which repeats computations.

Steps are pure: the outcome depends on the batch and on what the step reads. A call whose every read
returns the same as in an earlier call with the same batch has the same outcome and need not be
computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from fennel_core.operators.step import DeadRows, OperatorStep, Outcome, StateReader
from fennel_core.vocab.ids import Micros
from fennel_core.vocab.versions import POS

Asked = tuple[str, tuple[Any, ...], dict[str, Any], Any]
KEPT = 4_000


class _Noted:
    """State reads that are recorded."""

    def __init__(self, reads: StateReader) -> None:
        self._reads = reads
        self.notes: list[Asked] = []

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found = self._reads.get_many(keys)
        self.notes.append(("get_many", (list(keys),), {}, list(found)))
        return found

    def scan(
        self, start: bytes, stop: bytes, *, reverse: bool = False, limit: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        found = self._reads.scan(start, stop, reverse=reverse, limit=limit)
        self.notes.append(
            ("scan", (start, stop), {"reverse": reverse, "limit": limit}, list(found))
        )
        return found


class MemoizedStep:
    """The step `inner`, including its lookups and its watermark side.

    `is_dead`: rows that become dead letters, too, by their position.
    """

    def __init__(self, inner: OperatorStep, is_dead: Callable[[bytes], bool] | None = None) -> None:
        self._inner: Any = inner
        self._is_dead = is_dead
        self._known: dict[tuple[Any, ...], list[tuple[list[Asked], Outcome]]] = {}
        self._count = 0

    def apply(self, reads: StateReader, source: int, batch: pl.DataFrame) -> Outcome:
        return self._remembered(
            (source, tuple(batch.rows())),
            reads,
            lambda noted: self._applied(noted, source, batch),
        )

    def _applied(self, reads: StateReader, source: int, batch: pl.DataFrame) -> Outcome:
        outcome: Outcome = self._inner.apply(reads, source, batch)
        dead = [
            n for n, at in enumerate(batch[POS]) if self._is_dead is not None and self._is_dead(at)
        ]
        return replace(outcome, dead=(DeadRows("simulated", batch[dead]),)) if dead else outcome

    def advance(self, reads: StateReader, watermark: Micros) -> Outcome:
        return self._remembered(
            (watermark,), reads, lambda noted: self._inner.advance(noted, watermark)
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _remembered(
        self, key: tuple[Any, ...], reads: StateReader, compute: Callable[[StateReader], Outcome]
    ) -> Outcome:
        for notes, outcome in self._known.get(key, ()):
            if all(
                getattr(reads, name)(*arguments, **options) == found
                for name, arguments, options, found in notes
            ):
                return outcome
        noted = _Noted(reads)
        made = compute(noted)
        if self._count >= KEPT:
            self._known.clear()
            self._count = 0
        self._known.setdefault(key, []).append((noted.notes, made))
        self._count += 1
        return made
