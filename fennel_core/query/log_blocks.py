"""What is logged of a query, and how logged queries become blocks of the query log.

Values are taken as they were served: the columns of the request's inputs and of its outputs, before
they were encoded as JSON. Queries of one program that follow each other share a block
(`vocab.query_log_blocks`), because most of the cost of a small one is that of its columns.
Everything here runs on the log's thread, after the response.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import polars as pl

from fennel_core.query.columns import QueryColumn
from fennel_core.query.execution import KeyTrace, key_bytes, key_values
from fennel_core.query.program import ErasableLookup, QueryProgram
from fennel_core.query.view import BranchKey
from fennel_core.vocab import query_log_blocks
from fennel_core.vocab.ids import CommitId
from fennel_core.vocab.query_log_blocks import LogBlock, subject

BLOCK_BYTES: Final = 1024 * 1024
"""Values of one block, as JSON. A message has at most as much, so it fits Kafka's limit."""
BLOCK_ROWS: Final = 2_000
"""Rows of one block: building a column of so many values holds the interpreter lock for some tenths
of a millisecond, for which the event loop waits.
"""
QUERY_BYTES: Final = 2_048
"""What a queued query occupies besides its values."""
ENCODING_ERRORS: Final = (
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,
    ValueError,
    TypeError,
)
"""What building a column raises when a value does not have the column's type."""
_encode_key = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class LogOptions:
    """How the caller wants a query to be logged."""

    workflow: str
    sampling_rate: float


@dataclass(frozen=True, slots=True)
class LoggedQuery:
    """A query that has been served.

    `kept`: the numbers of the rows to log. `columns`: its inputs and outputs by name; they and the
    registers of `trace` have the kept rows only, because the query may wait long in the queue.
    `size_bytes`: the part of request and response that these are.
    """

    key: BranchKey
    commit: CommitId
    options: LogOptions
    request_id: str
    now_us: int
    program: QueryProgram
    columns: Mapping[str, QueryColumn]
    kept: Sequence[int]
    trace: KeyTrace
    size_bytes: int

    @property
    def held_bytes(self) -> int:
        """What the query occupies while it is queued, by which the queue is bounded."""
        return self.size_bytes + self.trace.looked_up_bytes + QUERY_BYTES


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some of the kept rows of a query, few enough for one block.

    `rows`: their places in the columns.
    """

    query: LoggedQuery
    rows: range
    size_bytes: int


def sampled_rows(request_id: str, rows: int, rate: float) -> Sequence[int]:
    """Return the numbers of the rows to log, each with probability `rate`.

    The choice depends on nothing but its arguments, so a request that is repeated with the same id
    logs the same rows.
    """
    if rate >= 1:
        return range(rows)
    numbers = random.Random(request_id)  # noqa: S311  # a sample, not a secret
    return [row for row in range(rows) if numbers.random() < rate]


def kept_rows(column: QueryColumn, kept: Sequence[int]) -> QueryColumn:
    """Return the values of the rows `kept`, in a column that does not hold the others."""
    if len(kept) == len(column):
        return column
    values = column.values
    return QueryColumn(column.dtype, [values[row] for row in kept])


def unencodable_column(query: LoggedQuery) -> str | None:
    """Return the name of the first column with a value that is not of the column's type."""
    for name, column in query.columns.items():
        try:
            QueryColumn(column.dtype, column.values).series  # noqa: B018  # builds the column
        except ENCODING_ERRORS:
            return name
    return None


def blocks_of_queries(queries: Iterable[LoggedQuery]) -> Iterator[tuple[LogBlock, int]]:
    """Yield the blocks of queries of one workspace, each with the size of its values.

    Raises polars' errors when a value does not have the type of its column.
    """
    groups: dict[Hashable, list[LoggedQuery]] = {}
    for query in queries:
        groups.setdefault(_shape(query), []).append(query)
    for group in groups.values():
        for pieces in _packed(piece for query in group for piece in _pieces(query)):
            first = pieces[0].query
            block = query_log_blocks.block_of(
                _frame(pieces),
                workflow=first.options.workflow,
                branch=first.key[1],
                commit=first.commit,
                sampling_rate=first.options.sampling_rate,
            )
            yield block, sum(piece.size_bytes for piece in pieces)


def _shape(query: LoggedQuery) -> Hashable:
    """Return what the queries of one block have in common."""
    types = tuple((name, column.dtype) for name, column in query.columns.items())
    return query.key[1], query.commit, query.options, id(query.program), types


def _pieces(query: LoggedQuery) -> Iterator[_Piece]:
    count = len(query.kept)
    if not count:
        return
    row_bytes = max(1, query.size_bytes // count)
    step = max(1, min(BLOCK_ROWS, BLOCK_BYTES // row_bytes))
    for start in range(0, count, step):
        rows = range(start, min(start + step, count))
        yield _Piece(query, rows, row_bytes * len(rows))


def _packed(pieces: Iterable[_Piece]) -> Iterator[list[_Piece]]:
    """Yield pieces that make one block together, in their order."""
    held: list[_Piece] = []
    rows, size, first_us = 0, 0, 0
    for piece in pieces:
        rows, size = rows + len(piece.rows), size + piece.size_bytes
        apart = abs(piece.query.now_us - first_us) > query_log_blocks.SPAN_US // 2
        if held and (rows > BLOCK_ROWS or size > BLOCK_BYTES or apart):
            yield held
            held, rows, size = [], len(piece.rows), piece.size_bytes
        if not held:
            first_us = piece.query.now_us
        held.append(piece)
    if held:
        yield held


def _frame(pieces: Sequence[_Piece]) -> pl.DataFrame:
    """Return the rows of a block (`query_log_blocks.ROW_COLUMNS` and features)."""
    empty: list[bytes] = []
    own = {
        query_log_blocks.REQUEST_ID: [p.query.request_id for p in pieces for _ in p.rows],
        query_log_blocks.ROW: [p.query.kept[row] for p in pieces for row in p.rows],
        query_log_blocks.TIMESTAMP: pl.Series(
            [p.query.now_us for p in pieces for _ in p.rows], dtype=pl.Int64
        ).cast(query_log_blocks.TIME),
        query_log_blocks.ROW_SUBJECTS: [s for p in pieces for s in row_subjects(p.query, p.rows)],
        query_log_blocks.REQUEST_SUBJECTS: [
            subjects if number == 0 else empty
            for p in pieces
            for subjects in [request_subjects(p.query.trace)]
            for number, _ in enumerate(p.rows)
        ],
    }
    frame = pl.DataFrame(own, schema=query_log_blocks.ROW_COLUMNS)
    features = []
    for name, column in pieces[0].query.columns.items():
        values = [value for p in pieces for value in _taken(p.query.columns[name].values, p.rows)]
        features.append(QueryColumn(column.dtype, values).series.alias(name))
    return frame.with_columns(features)


def _taken(values: Sequence[object], rows: range) -> Sequence[object]:
    """Return the values of `rows`."""
    return values if len(rows) == len(values) else values[rows.start : rows.stop]


def row_subjects(query: LoggedQuery, rows: range) -> list[list[bytes]]:
    """Return for each of `rows` the subjects of its own lookups."""
    found: list[list[bytes]] = [[] for _ in rows]
    for each in query.program.erasable:
        for out, keys in zip(found, _keys_by_row(each, query.trace, rows), strict=True):
            out += [subject(each.dataset, each.columns, key) for key in keys]
    return found


def _keys_by_row(lookup: ErasableLookup, trace: KeyTrace, rows: range) -> Iterator[list[bytes]]:
    registers = [trace.registers[place] for place in lookup.keys]
    if lookup.listed:
        lists = [column.values for column in registers]
        for row in rows:
            elements = [values[row] for values in lists]
            yield list(map(_encode_key, zip(*elements, strict=True)))
        return
    columns = [
        _taken(key_values(column, dtype), rows)
        for column, dtype in zip(registers, lookup.key_types, strict=True)
    ]
    for key in key_bytes(columns):
        yield [key]


def request_subjects(trace: KeyTrace) -> list[bytes]:
    """Return the subjects of the keys that user code looked up."""
    found: dict[bytes, None] = {}
    for view, keys in trace.looked_up:
        names = view.schema.key_names
        columns = [
            key_values(keys[place], view.schema.keys[place].dtype)
            for place in map(names.index, view.erase_keys)
        ]
        if len(columns[0]):
            found |= dict.fromkeys(
                subject(view.name, view.erase_keys, key) for key in key_bytes(columns)
            )
    return list(found)
