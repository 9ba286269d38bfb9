"""Rows of a real Postgres whose server was promoted without its last transactions."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from fennel_core.connections.external_postgres import ExternalPostgres, timeline
from fennel_core.sources.table_reads import TimelineChanged, taken
from tests.support.postgres import make_cluster, running, server_tool
from tests.support.table_reader import Reader


def reached(dsn: str) -> ExternalPostgres:
    """The database as a connector reaches it."""
    at = conninfo_to_dict(dsn)
    port = int(str(at["port"]))
    return ExternalPostgres("shop", str(at["host"]), port, "postgres", "fennel", "", {})


def sell(dsn: str, first: int, last: int, values: int = 0) -> None:
    """Add a row per transaction; `values`: how far below the ids the values of the cursor are."""
    with psycopg.connect(dsn, autocommit=True) as owner:
        for id_ in range(first, last + 1):
            owner.execute("INSERT INTO orders VALUES (%s, %s)", (id_, id_ - values))


@pytest.fixture
def failed_over(tmp_path: Path) -> Iterator[tuple[Reader, str]]:
    """A reader of ten rows, and a promoted standby that lacked five: their ids are used again."""
    primary, standby = tmp_path / "primary", tmp_path / "standby"
    make_cluster(primary)
    with running(primary, "fast") as dsn, psycopg.connect(dsn) as owner:
        owner.execute("CREATE TABLE orders (id bigint, at bigint)")
        owner.commit()
        sell(dsn, 1, 5)
    shutil.copytree(primary, standby)
    with running(primary) as dsn:
        sell(dsn, 6, 10)
        reader = Reader(reached(dsn))
        reader.run()
        reader.run()
    assert reader.rows == list(range(1, 11))
    (standby / "standby.signal").touch()
    with running(standby) as dsn:
        with psycopg.connect(dsn, autocommit=True) as connection:
            assert timeline(connection) == 1, "of a standby"
        server_tool("pg_ctl", standby, "-w", "promote")
        sell(dsn, 106, 116, values=100)
        reader.shop = reached(dsn)
        yield reader, dsn


def test_ids_that_are_used_again_after_a_failover_hide_no_row(
    failed_over: tuple[Reader, str],
) -> None:
    reader, dsn = failed_over
    with pytest.raises(TimelineChanged, match=r"\(timeline 1, now 2\).*`current`.*`earliest`"):
        reader.run()
    assert len(reader.rows) == 10
    reader.versioned = True
    reader.run()
    assert set(reader.rows) >= set(range(106, 117)), "all are read again"
    read = len(reader.rows)
    reader.versioned = False
    sell(dsn, 117, 117)
    reader.run()
    assert reader.rows[read:] == [117], "it is read on from then"


def test_a_user_may_say_that_no_transaction_was_lost(failed_over: tuple[Reader, str]) -> None:
    reader, dsn = failed_over
    assert reader.cursor is not None
    reader.cursor = taken(reader.cursor)
    reader.run()
    assert reader.rows[10:] == list(range(111, 117)), "on behind the highest value"
    assert not reader.cursor.taken
    sell(dsn, 117, 117, values=112)
    reader.run()
    assert reader.rows[-1] == 117, "a late row is read"
