"""Reads a table of a real Postgres as the job does, page by page, into a list."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import conninfo_to_dict

from fennel_core.connections.external_postgres import ExternalPostgres
from fennel_core.sources.read_rows import StreamPlace
from fennel_core.sources.table_databases import PostgresDatabase, TableDatabase
from fennel_core.sources.table_pages import PageChunk, chunks, row_batch
from fennel_core.sources.table_reads import (
    BLOCK,
    FILE,
    NEAR_ROWS,
    OFFSET,
    PLACE,
    VALUE,
    WRITER,
    TableCursor,
    TableRead,
)

Connection = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture
def shop(database: str) -> ExternalPostgres:
    """The database as a connector reaches it."""
    return external(database)


def external(dsn: str) -> ExternalPostgres:
    """Return a database as a connector reaches it."""
    at = conninfo_to_dict(dsn)
    return ExternalPostgres(
        "shop", str(at["host"]), int(str(at["port"])), str(at["dbname"]), "fennel", "", {}
    )


@pytest.fixture
def owner(database: str) -> Iterator[Connection]:
    """A connection of the owner of the tables."""
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


class Reader:
    """Reads as the job does, into a list: every chunk with its cursor, or not at all."""

    def __init__(
        self,
        shop: ExternalPostgres | TableDatabase,
        look_back: int = 0,
        near: int = NEAR_ROWS,
        *,
        versioned: bool = False,
    ) -> None:
        self.shop, self.look_back, self.near = shop, look_back, near
        self.versioned = versioned
        self.clock_ahead_us = 0
        self.rows: list[int] = []
        self.never_late: list[bool] = []
        self.cursor: TableCursor | None = None
        self.between: Callable[[], object] = lambda: None
        """What happens between two pages."""

    def run(self, page: int = 10, chunk: int = 10, kill_after: int | None = None) -> None:
        """Read all that there is, in pages and chunks; end after `kill_after` chunks."""
        written = 0
        database, versioned = self._database(), self.versioned
        with database.connect() as connection:
            read = self.begin(connection)
            read, before = database.continued(
                connection, read, self.cursor, "t", versioned=versioned
            )
            while True:
                done = True
                paged = database.at_page(connection, read)
                batches = self._batches(connection, paged, before, page, chunk)
                for each in chunks(batches, page, read.table.file, "t"):
                    if written == kill_after:
                        return
                    written += 1
                    done = each.complete
                    before = self.cursor = self._write(each, paged, before)
                if done:
                    break
                self.between()
            if before is not None and written != kill_after:
                self.cursor = database.settlement(connection, read, before, "t") or before

    def _database(self) -> TableDatabase:
        return PostgresDatabase(self.shop) if isinstance(self.shop, ExternalPostgres) else self.shop

    def begin(self, connection: Any) -> TableRead:
        read = self._database().begun(connection, "orders", "at", 0)
        clock = replace(read.clock, now_us=read.clock.now_us + self.clock_ahead_us)
        return replace(read, look_back=self.look_back, near=self.near, clock=clock)

    def _batches(
        self,
        connection: Any,
        read: TableRead,
        before: TableCursor | None,
        page: int,
        chunk: int,
    ) -> Iterator[pa.RecordBatch]:
        with connection.cursor() as found:
            found.execute(self._database().page_query(read, before, page + 1))
            names = [column[0] for column in found.description]
            rows = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
        kept = ("id", VALUE, BLOCK, OFFSET, PLACE, FILE, WRITER)
        for start in range(0, len(rows), chunk):
            part = rows[start : start + chunk]
            yield pa.RecordBatch.from_pylist([{n: row[n] for n in kept} for row in part])

    def _write(self, chunk: PageChunk, read: TableRead, before: TableCursor | None) -> TableCursor:
        self.rows += chunk.rows.column("id").to_pylist()
        batch, cursor = row_batch(chunk, read, "t", StreamPlace(len(self.rows)), before)
        self.never_late.append(batch.never_late)
        return cursor
