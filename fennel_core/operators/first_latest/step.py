"""Pick: the first or the latest row of each key.

Theory. `latest` remembers nothing: every row is a version of its key, and a version lives until the
next one, so the latest row as of any time is what a keyed dataset means anyway. `first` has one
version per key, the least by `(timestamp, position)`; an earlier late row replaces it, and when it
is taken back the next one takes its place, so all rows are kept in order and the least is one seek.

State (first only): tag `f`: ordered key of the row under its group → all columns of the input.
"""

from __future__ import annotations

import polars as pl

from fennel_core.operators.rows import (
    MAX_TIME,
    apply_signs,
    columns_of,
    decode_rows,
    encode_rows,
    ordered_keys,
    output_names,
    prefixes,
    time_bytes,
)
from fennel_core.operators.spec import FirstLatestSpec
from fennel_core.operators.step import Outcome, OutputBatch, StateReader
from fennel_core.vocab.keys import key_bytes
from fennel_core.vocab.versions import IS_TOMBSTONE, POS, SIGN

ROWS = b"f"


class LatestStep:
    """The step of `spec.FirstLatestSpec` with `first` false."""

    def __init__(self, spec: FirstLatestSpec) -> None:
        assert not spec.first, "see FirstStep"
        self._names = output_names(spec.output)

    def apply(self, reads: StateReader, source: int, batch: pl.DataFrame) -> Outcome:  # noqa: ARG002  # the contract of Step
        return Outcome(emits=(OutputBatch(0, batch.select(self._names)),))


class FirstStep:
    """The step of `spec.FirstLatestSpec` with `first` true."""

    def __init__(self, spec: FirstLatestSpec) -> None:
        assert spec.first, "see LatestStep"
        self._spec = spec
        self._columns = columns_of(spec.input, spec.input.names)
        self._names = output_names(spec.output)

    def apply(self, reads: StateReader, source: int, batch: pl.DataFrame) -> Outcome:
        assert source == 0, "a pick has one input"
        keys = key_bytes(batch, self._spec.keys)
        places = ordered_keys(
            ROWS, keys, batch[self._spec.input.timestamp].to_physical(), batch[POS]
        )
        puts, deletes = apply_signs(
            reads, places, encode_rows(batch, self._spec.input.names), batch[SIGN]
        )
        added = (
            pl.DataFrame({"name": keys, "place": places})
            .group_by("name", maintain_order=True)
            .agg("place")
        )
        old: list[tuple[bytes, bytes]] = []
        new: list[tuple[bytes, bytes]] = []
        for prefix, here in zip(
            prefixes(ROWS, added["name"].to_list()), added["place"].to_list(), strict=True
        ):
            taken = sum(place in deletes for place in here)
            held = reads.scan(prefix, prefix + time_bytes(MAX_TIME), limit=taken + 1)
            left = [entry for entry in held if entry[0] not in deletes and entry[0] not in puts]
            left += [(place, puts[place]) for place in here if place in puts]
            first = min(left, default=None)
            if held[:1] != [first]:
                old += [(held[0][0][len(prefix) + 8 :], held[0][1])] if held else []
                new += [(first[0][len(prefix) + 8 :], first[1])] if first else []
        frames = [self._frame(entries, sign) for entries, sign in ((old, -1), (new, 1)) if entries]
        return Outcome(
            puts=puts, deletes=deletes, emits=(OutputBatch(0, pl.concat(frames)),) if frames else ()
        )

    def _frame(self, entries: list[tuple[bytes, bytes]], sign: int) -> pl.DataFrame:
        rows = decode_rows([row for _, row in entries], self._columns)
        positions = pl.Series(POS, [pos for pos, _ in entries], dtype=pl.Binary)
        return rows.with_columns(
            positions, pl.lit(sign, pl.Int8).alias(SIGN), pl.lit(value=False).alias(IS_TOMBSTONE)
        ).select(self._names)
