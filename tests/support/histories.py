"""Histories of signed versions for the laws: any rows in any order, retracted and replaced, split
anywhere into batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Any

import polars as pl
from hypothesis import strategies as st

from fennel_core.hangar.memory import MemoryHangar
from fennel_core.hangar.store import WriteBatch
from fennel_core.operators.rows import frame_columns
from fennel_core.operators.step import OperatorStep
from fennel_core.vocab.schema import Schema

META_TYPES = {"__pos": pl.Binary(), "__sign": pl.Int8(), "__tombstone": pl.Boolean()}


@dataclass(frozen=True)
class Change:
    """One signed version on input `source`."""

    source: int
    sign: int
    row: dict[str, Any]


@dataclass(frozen=True)
class History:
    """`batches` of changes, and the rows that are left after all of them, per input."""

    batches: list[list[Change]]

    def left_over(self, source: int = 0) -> list[dict[str, Any]]:
        rows: dict[bytes, list[dict[str, Any]]] = {}
        for change in (c for batch in self.batches for c in batch if c.source == source):
            here = rows.setdefault(change.row["__pos"], [])
            here.append(change.row) if change.sign > 0 else here.remove(change.row)
        return [row for here in rows.values() for row in here]


@st.composite
def histories(
    draw: Any,
    *contents: st.SearchStrategy[dict[str, Any]],
    max_rows: int = 12,
    retract: bool = True,
) -> History:
    """One history over one input per strategy in `contents`; a content dict may hold `__tombstone`
    (False when absent).
    """
    slots: list[list[tuple[int, dict[str, Any]]]] = []
    for source, content in enumerate(contents):
        size = draw(st.integers(0, max_rows))
        lives = st.lists(content, min_size=1, max_size=3 if retract else 1)
        slots += [[(source, row) for row in draw(lives)] for _ in range(size)]
    ranks = draw(st.permutations(range(len(slots))))
    words: list[list[Change]] = []
    for slot, rank in zip(slots, ranks, strict=True):
        pos = b"\x01" + rank.to_bytes(13, "big")
        said = [
            Change(s, sign, {"__tombstone": False, **row, "__pos": pos})
            for s, row in slot
            for sign in (1, -1)
        ]
        words.append(said[:1] if not retract else said[: draw(st.integers(1, len(said)))])
    turns = draw(st.permutations([i for i, said in enumerate(words) for _ in said]))
    cursors = [iter(said) for said in words]
    batches: list[list[Change]] = [[]]
    for slot_index in turns:
        change = next(cursors[slot_index])
        if batches[-1] and (
            batches[-1][-1].source != change.source or draw(st.integers(0, 3)) == 0
        ):
            batches.append([])
        batches[-1].append(change)
    return History([batch for batch in batches if batch])


def as_frame(schema: Schema, changes: list[Change]) -> pl.DataFrame:
    """The batch of signed versions."""
    columns = {**frame_columns(schema), **META_TYPES}
    rows = [[c.sign if name == "__sign" else c.row.get(name) for name in columns] for c in changes]
    plain = {n: pl.Int64() if isinstance(t, pl.Datetime) else t for n, t in columns.items()}
    return pl.DataFrame(rows, schema=plain, orient="row").cast(columns)  # type: ignore[arg-type]  # a mapping of names is accepted


def run(
    step: OperatorStep, history: History, *schemas: Schema, canonical: bool = True
) -> tuple[MemoryHangar, list[pl.DataFrame]]:
    """Apply every batch; return the final state and the frames emitted on output 0. `canonical`:
    the state does not depend on the split.
    """
    state, emitted = _applied(step, history.batches, schemas)
    if not canonical:
        return state, emitted
    longer = [
        [c for batch in neighbours for c in batch]
        for _, neighbours in groupby(history.batches, key=lambda batch: batch[0].source)
    ]
    assert entries(state) == entries(_applied(step, longer, schemas)[0]), (
        "state is a function of the order of rows, however they are split"
    )
    return state, emitted


def entries(state: MemoryHangar) -> list[tuple[bytes, bytes]]:
    """Return every entry of a state."""
    return state.scan(b"", b"\xff" * 8)


def _applied(
    step: OperatorStep, batches: list[list[Change]], schemas: tuple[Schema, ...]
) -> tuple[MemoryHangar, list[pl.DataFrame]]:
    state, emitted = MemoryHangar(), []
    for batch in batches:
        source = batch[0].source
        outcome = step.apply(state, source, as_frame(schemas[source], batch))
        state.write(WriteBatch(outcome.puts, outcome.deletes))
        emitted += [emit.frame for emit in outcome.emits]
    return state, emitted


def integral(frames: list[pl.DataFrame]) -> list[dict[str, Any]]:
    """Return the bag that signed versions add up to (timestamps in microseconds); a negative count
    fails.
    """
    counts: dict[str, int] = {}
    rows: dict[str, dict[str, Any]] = {}
    for frame in frames:
        for row in frame.with_columns(pl.col(pl.Datetime).to_physical()).to_dicts():
            sign = row.pop("__sign")
            name = repr(sorted(row.items()))
            rows[name] = row
            counts[name] = counts.get(name, 0) + sign
            assert counts[name] >= 0, f"taken back before it was said: {row}"
    return [row for name, row in rows.items() for _ in range(counts[name])]


def bag(rows: list[dict[str, Any]]) -> list[str]:
    """Return rows in a canonical order, to compare bags."""
    return sorted(repr(sorted(row.items())) for row in rows)
