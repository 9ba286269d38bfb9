"""Changes of a real Postgres table enter once and in order, wherever their readers are cut.

Debezium's engine is real, too. Transactions overlap, are rolled back, touch other tables and write
messages; readers are killed after any row, of the first read as well, lose responses, and confirm
or do not. The oracle are the statements that were committed, in the order of their commits.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import uuid
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from fennel_core.connections import change_engine, external_changes, external_postgres
from fennel_core.connections.change_engine import ChangeEngine, ChangeEngineFailed, ChangeTask
from fennel_core.connections.external_changes import (
    ChangesLost,
    KeyColumn,
    LogBegin,
    PostgresLog,
    logged_table,
    require_log,
)
from fennel_core.connections.external_postgres import ExternalPostgres, ExternalPostgresUnusable
from fennel_core.settings.model import Settings
from fennel_core.sources import change_reader, change_trial
from fennel_core.sources.change_cursor import ChangePlace
from fennel_core.sources.change_reader import ChangeRoundEnd
from fennel_core.sources.change_trial import newest_changes
from fennel_core.wire.connectors import Cdc, Login, PlainSecret, Postgres, PostgresChanges
from tests.support.change_history import Change, History, Row, faulty_sources
from tests.support.change_log import (
    ROOT,
    Connection,
    PostgresWorld,
    engine,
    logging_server,
    owner,
    shop,
)
from tests.support.change_readers import read_rows
from tests.support.ingest_world import catalog
from tests.support.source_world import (
    SourceWorld,
    stream_source,
)

__all__ = ["engine", "logging_server", "owner", "shop"]

SEEDS = int(os.environ.get("CHANGE_SEEDS", "6"))
USERS = PostgresChanges(Postgres("shop", "db", 5432, "shop", None, Login(None, None)), "users")
BINDING = stream_source(cdc=Cdc.DEBEZIUM, disorder_us=0, table=USERS)
TABLE = """
    CREATE TABLE users ("user" text PRIMARY KEY, age int DEFAULT 7, at timestamptz NOT NULL,
        note text DEFAULT 'none');
    CREATE TABLE others (id serial PRIMARY KEY);
"""
UPDATE = """
    UPDATE users SET age = %(age)s, at = now() + interval '10 years' + %(n)s * interval '1 second'
    WHERE "user" = %(user)s
"""
"""Times of rows are later than commits, so that a row may come back after a delete."""
INSERT = """
    INSERT INTO users
    VALUES (%(user)s, %(age)s, now() + interval '10 years' + %(n)s * interval '1 second', NULL)
"""


@dataclass
class Users:
    """The table, and what was committed: each change with its key and age, in order."""

    owner: Connection
    random: random.Random
    content: dict[str, Row] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    n: int = 0

    def __post_init__(self) -> None:
        self.owner.execute(TABLE)

    def commit(self, statements: int, *, roll_back: bool = False) -> None:
        """Commit a transaction of statements."""
        before, done = dict(self.content), list[Change]()
        with suppress(psycopg.Rollback), self.owner.transaction() as transaction:
            for _ in range(statements):
                done += self._statement()
            if roll_back:
                self.content = before
                raise psycopg.Rollback(transaction)
            self.changes += done
            return

    def _statement(self) -> list[Change]:
        self.n += 1
        user, row = self.random.choice("abcdefgh"), {"age": self.n}
        given: dict[str, Any] = {"user": user, "n": self.n, **row}
        match self.random.choice(["put", "put", "put", "delete", "other", "message"]):
            case "put":
                op, query = ("u", UPDATE) if user in self.content else ("c", INSERT)
                self.owner.execute(query, given)
                self.content[user] = row
                return [(op, user, row)]
            case "delete" if user in self.content:
                self.owner.execute('DELETE FROM users WHERE "user" = %(user)s', given)
                del self.content[user]
                return [("d", user, None)]
            case "message":
                inside = self.random.random() < 0.5
                query = "SELECT pg_logical_emit_message(%s, 'another', 'x')"
                self.owner.execute(query, (inside,))
            case _:
                self.owner.execute("INSERT INTO others DEFAULT VALUES")
        return []


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_each_change_enters_once_and_in_order(
    shop: ExternalPostgres,
    owner: Connection,
    engine: ChangeEngine,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await check_history(shop, owner, engine, random.Random(seed), monkeypatch)  # noqa: S311  # a test


async def check_history(
    shop: ExternalPostgres,
    owner: Connection,
    engine: ChangeEngine,
    random_: random.Random,
    patch: pytest.MonkeyPatch,
    steps: int = 40,
) -> None:
    patch.setattr(change_reader, "TRANSACTION_ROWS", random_.choice([1, 3, 10_000]))
    users, whole = Users(owner, random_), random_.random() < 0.5
    if whole:
        owner.execute("ALTER TABLE users REPLICA IDENTITY FULL")
    for _ in range(random_.randrange(4)):
        users.commit(3)
    world = PostgresWorld(shop, engine, "users", faulty_sources(random_, BINDING))
    history = History(
        users, world, random_, lambda reader: str(reader.end.at.cursor.slot), wait_s=0.8
    )
    await history.run(steps)
    end = await read_to_end(world)
    await world.sources.world.close()
    # Else a delete has no time of its row, which is of later.
    history.check(end.at.cursor.slot, ("age",), is_final=whole)


async def read_to_end(world: PostgresWorld) -> ChangeRoundEnd[ChangePlace]:
    """Read on with a new reader until its mark comes, which follows all changes.

    An engine that was let go may take the slot once more when it begins late: then another begins.
    """
    async with asyncio.timeout(120):
        while True:
            reader, token = await world.reader(), None
            with suppress(ChangeEngineFailed):
                while True:
                    end = await reader.round(0.3, 1e9)
                    if end.at.cursor.first:
                        continue
                    if token is None:
                        at, token = end.at.cursor, "the-end"
                        begun = LogBegin(at.slot, at.lsn, at.publication, at.published)
                        reader.source.log.look(reader.source.table, begun, token)
                    elif end.token == token:
                        reader.task.stop()
                        return end


# --- what a server must have ----------------------------------------------------------------------


async def test_a_round_that_is_run_again_loses_nothing(
    shop: ExternalPostgres, owner: Connection, engine: ChangeEngine
) -> None:
    """As Spark does with one whose worker was killed."""
    sources = SourceWorld()
    sources.world.commit(main=catalog(BINDING))
    owner.execute('CREATE TABLE users ("user" text PRIMARY KEY, at timestamptz)')
    world = PostgresWorld(shop, engine, "users", sources)
    reader = await world.reader()
    while reader.end.at.is_first:
        await reader.round(0.3, 1e9)
    owner.execute("INSERT INTO users VALUES ('a', now())")
    await reader.lose_worker()
    with pytest.raises(ChangeEngineFailed, match="a worker has ended while it read"):
        await reader.round(0.3, 1e9)
    engine.stop(reader.task)
    owner.execute("INSERT INTO users VALUES ('b', now())")
    await read_to_end(world)
    await sources.world.close()
    assert [row["after"]["user"] for row in read_rows(sources)] == ["a", "b"]


def described(shop: ExternalPostgres, name: str = "users") -> None:
    with shop.connect() as connection:
        require_log(shop, connection, logged_table(shop, connection, name))


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("CREATE TABLE users (id int)", "has no primary key"),
        ("CREATE TABLE users (id bytea PRIMARY KEY)", "of type bytea in its primary key"),
        ("CREATE TABLE users (id int PRIMARY KEY) PARTITION BY RANGE (id)", "partitioned table"),
        (
            "CREATE TABLE users (id int PRIMARY KEY); ALTER TABLE users REPLICA IDENTITY NOTHING",
            "REPLICA IDENTITY DEFAULT",
        ),
        ('CREATE SCHEMA "a b"; CREATE TABLE "a b".users (id int PRIMARY KEY)', "other characters"),
        ("CREATE UNLOGGED TABLE users (id int PRIMARY KEY)", "SET LOGGED"),
        ("CREATE TABLE users (id int PRIMARY KEY DEFERRABLE)", "REPLICA IDENTITY FULL"),
        (
            "CREATE TABLE users (id int PRIMARY KEY); CREATE TYPE mood AS ENUM ('sad'); "
            "CREATE DOMAIN own AS mood",
            "has the type `own`",
        ),
        (
            "CREATE TABLE users (id int PRIMARY KEY); CREATE TYPE mood AS ENUM ()",
            "has the type `mood`",
        ),
    ],
)
def test_a_table_without_usable_changes_is_refused(
    shop: ExternalPostgres, owner: Connection, statement: str, words: str
) -> None:
    owner.execute(statement.encode())
    name = "a b.users" if "SCHEMA" in statement else "users"
    with pytest.raises(ExternalPostgresUnusable, match=words):
        described(shop, name)


def test_a_deferrable_key_with_the_whole_row_is_read(
    shop: ExternalPostgres, owner: Connection
) -> None:
    owner.execute("CREATE TABLE users (id int PRIMARY KEY DEFERRABLE, age int)")
    owner.execute("ALTER TABLE users REPLICA IDENTITY FULL; INSERT INTO users VALUES (1, 2)")
    log = PostgresLog(shop, "users", f"fennel_{uuid.uuid4().hex}")
    log.begin(log.describe())
    owner.execute("UPDATE users SET age = 3")


def test_columns_that_an_index_includes_are_no_part_of_the_key(
    shop: ExternalPostgres, owner: Connection
) -> None:
    owner.execute("CREATE TABLE users (id int, age int, PRIMARY KEY (id) INCLUDE (age))")
    with shop.connect() as connection:
        assert logged_table(shop, connection, "users").key == (KeyColumn("id", "integer"),)


@pytest.mark.parametrize("name", ["a?ssl=false", "a+b", "a%20b", "a/b"])
def test_a_database_whose_name_is_no_part_of_an_address_is_refused(
    shop: ExternalPostgres, owner: Connection, name: str
) -> None:
    owner.execute("CREATE TABLE users (id int PRIMARY KEY)")
    with shop.connect() as connection, pytest.raises(ExternalPostgresUnusable, match="characters"):
        logged_table(replace(shop, database=name), connection, "users")


def test_a_server_without_a_logical_log_is_refused(database: str) -> None:
    at = conninfo_to_dict(database)
    plain = ExternalPostgres(
        "shop", str(at["host"]), int(str(at["port"])), str(at["dbname"]), "fennel", "", {}
    )
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE users (id int PRIMARY KEY)")
    with pytest.raises(ExternalPostgresUnusable, match="need `wal_level=logical`"):
        described(plain)


def begun(shop: ExternalPostgres, owner: Connection) -> tuple[PostgresLog, LogBegin]:
    owner.execute("CREATE TABLE users (id int PRIMARY KEY)")
    log = PostgresLog(shop, "users", f"fennel_{uuid.uuid4().hex}")
    return log, log.begin(log.describe())


def test_a_slot_that_is_gone_or_was_moved_is_a_loss(
    shop: ExternalPostgres, owner: Connection
) -> None:
    log, at = begun(shop, owner)
    log.resume(at.slot, at.lsn, at.published, streams=True)
    owner.execute("INSERT INTO users VALUES (1)")
    owner.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (at.slot,))
    with pytest.raises(ChangesLost, match=r"was moved to .* by another program"):
        log.resume(at.slot, at.lsn, at.published, streams=True)
    owner.execute("SELECT pg_drop_replication_slot(%s)", (at.slot,))
    with pytest.raises(ChangesLost, match="is gone"):
        log.resume(at.slot, at.lsn, at.published, streams=True)
    with pytest.raises(ChangesLost, match="is gone"):
        log.look(log.describe(), at, "token")


def test_a_server_that_lacks_what_was_read_is_a_loss(
    shop: ExternalPostgres, owner: Connection
) -> None:
    log, at = begun(shop, owner)
    with pytest.raises(ChangesLost, match="as after a restore"):
        log.resume(at.slot, at.lsn + (1 << 32), at.published, streams=True)


def test_readers_that_fail_before_they_write_leave_few_slots(
    shop: ExternalPostgres, owner: Connection
) -> None:
    log, first = begun(shop, owner)
    made = [first.slot, *(log.begin(log.describe()).slot for _ in range(4))]
    assert sorted(slots(owner)) == sorted(made[-3:])


def test_a_slot_waits_for_transactions_longer_than_for_locks(
    shop: ExternalPostgres, owner: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(external_postgres, "LOCK_S", 1)
    monkeypatch.setattr(external_changes, "LOG_MS", 2_000)
    owner.execute("CREATE TABLE users (id int PRIMARY KEY)")
    log = PostgresLog(shop, "users", f"fennel_{uuid.uuid4().hex}")
    with psycopg.connect(
        host=shop.host, port=shop.port, dbname=shop.database, user=shop.user
    ) as other:
        other.execute("SELECT txid_current()")
        with pytest.raises(ExternalPostgresUnusable, match="could not begin in 2 s"):
            log.begin(log.describe())


def test_a_mark_waits_for_no_standby(shop: ExternalPostgres, owner: Connection) -> None:
    log, at = begun(shop, owner)
    owner.execute("ALTER SYSTEM SET synchronous_standby_names = 'none'")
    try:
        owner.execute("SELECT pg_reload_conf()")
        while owner.execute("SHOW synchronous_standby_names").fetchone() == ("",):
            pass
        log.look(log.describe(), at, "token")
    finally:
        owner.execute("ALTER SYSTEM RESET synchronous_standby_names")
        owner.execute("SELECT pg_reload_conf()")


def test_a_server_that_is_frozen_is_left_after_a_time(
    shop: ExternalPostgres, owner: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, _ = begun(shop, owner)
    monkeypatch.setattr(external_changes, "TAKE_OVER_S", 0.2)
    backend = 0
    try:
        with (  # noqa: PT012  # the server is frozen within the block
            pytest.raises(ExternalPostgresUnusable, match="cannot be read"),
            log._connected(100) as connection,
        ):
            backend = connection.info.backend_pid
            os.kill(backend, signal.SIGSTOP)
            connection.execute("SELECT 1")
    finally:
        os.kill(backend, signal.SIGCONT)


def test_a_table_that_is_not_published_any_more_is_noticed(
    shop: ExternalPostgres, owner: Connection
) -> None:
    log, at = begun(shop, owner)
    table = log.describe()
    assert log.look(table, at, "token").retained_bytes >= 0
    owner.execute(f"DROP PUBLICATION {at.publication}".encode())
    with pytest.raises(ExternalPostgresUnusable, match="has not all changes"):
        log.look(table, at, "token")
    owner.execute("DROP TABLE users; CREATE TABLE users (id int PRIMARY KEY)")
    with pytest.raises(ExternalPostgresUnusable, match="was created again"):
        log.look(table, at, "token")


@pytest.mark.parametrize(
    "statements",
    [
        ("DROP PUBLICATION given", "CREATE PUBLICATION given FOR TABLE users"),
        ("ALTER PUBLICATION given DROP TABLE users", "ALTER PUBLICATION given ADD TABLE users"),
    ],
)
def test_a_publication_that_was_made_again_is_a_loss(
    shop: ExternalPostgres, owner: Connection, statements: tuple[str, str]
) -> None:
    """Changes in between are not sent, and nothing else shows that there were some."""
    owner.execute("CREATE TABLE users (id int PRIMARY KEY); CREATE TABLE others (id int)")
    owner.execute("CREATE PUBLICATION given FOR TABLE users")
    log, at = begun_again(shop)
    owner.execute("ALTER PUBLICATION given ADD TABLE others")
    log.look(log.describe(), at, "token")
    log.resume(at.slot, at.lsn, at.published, streams=True)
    for each in statements:
        owner.execute(each.encode())
    with pytest.raises(ChangesLost, match="publication was made again"):
        log.look(log.describe(), at, "token")
    with pytest.raises(ChangesLost, match="publication was made again"):
        log.resume(at.slot, at.lsn, at.published, streams=True)


def test_a_publication_that_leaves_out_rows_or_columns_is_not_used(
    shop: ExternalPostgres, owner: Connection
) -> None:
    owner.execute(
        "CREATE TABLE users (id int PRIMARY KEY, age int, "
        "next int GENERATED ALWAYS AS (age + 1) STORED)"
    )
    owner.execute("CREATE PUBLICATION made FOR TABLE users (id, next)")
    owner.execute("CREATE PUBLICATION some_rows FOR TABLE users WHERE (id > 1)")
    owner.execute("CREATE PUBLICATION some_columns FOR TABLE users (id)")
    owner.execute("CREATE PUBLICATION inserts FOR TABLE users WITH (publish = 'insert')")
    log = PostgresLog(shop, "users", f"fennel_{uuid.uuid4().hex}")
    own = log.begin(log.describe()).publication
    assert own.startswith("fennel_")
    log.drop()
    owner.execute("CREATE PUBLICATION whole FOR TABLE users")
    assert log.begin(log.describe()).publication == "whole"


def test_nothing_is_left_of_a_source_that_is_dropped(
    shop: ExternalPostgres, owner: Connection
) -> None:
    log, _ = begun(shop, owner)
    log.begin(log.describe())
    other, kept = begun_again(shop)
    log.drop()
    log.drop()
    slots = owner.execute(
        "SELECT slot_name FROM pg_replication_slots WHERE database = %s", (shop.database,)
    )
    assert [row[0] for row in slots] == [kept.slot]
    other.drop()
    assert owner.execute("SELECT pubname FROM pg_publication").fetchall() == []


def slots(owner: Connection) -> list[str]:
    query = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    return [row[0] for row in owner.execute(query)]


def begun_again(shop: ExternalPostgres) -> tuple[PostgresLog, LogBegin]:
    log = PostgresLog(shop, "users", f"fennel_{uuid.uuid4().hex}")
    return log, log.begin(log.describe())


def test_the_rows_with_the_highest_keys_are_shown_without_a_slot(
    shop: ExternalPostgres, owner: Connection
) -> None:
    owner.execute("CREATE TABLE users (id int PRIMARY KEY)")
    owner.execute("INSERT INTO users SELECT generate_series(1, 9)")
    own = Postgres(
        *("shop", shop.host, shop.port, shop.database, None),
        Login(PlainSecret("fennel"), PlainSecret("")),
    )
    rows = newest_changes(
        Settings(jars_dir=ROOT / ".fennel" / "jars"), PostgresChanges(own, "users"), lambda _: "", 3
    )
    assert [json.loads(row)["after"]["id"] for row in rows] == [9, 8, 7]
    assert not sys.stderr.closed, "the end of the engine takes nothing of this process with it"
    slots = owner.execute(
        "SELECT count(*) FROM pg_replication_slots WHERE database = %s", (shop.database,)
    )
    assert slots.fetchone() == (0,)


def test_a_try_waits_for_those_before_it(
    shop: ExternalPostgres, owner: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_trial, "WAIT_S", 0.01)
    owner.execute("CREATE TABLE users (id int PRIMARY KEY)")
    own = Postgres(
        *("shop", shop.host, shop.port, shop.database, None),
        Login(PlainSecret("fennel"), PlainSecret("")),
    )
    with change_trial._free, pytest.raises(ChangeEngineFailed, match="another table are tried"):
        newest_changes(Settings(), PostgresChanges(own, "users"), lambda _: "", 3)


def test_an_engine_that_was_killed_is_noticed_and_another_one_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(change_engine, "_engines", {})
    settings = Settings(jars_dir=ROOT / ".fennel" / "jars")
    first = change_engine.engine_of(settings)
    task = ChangeTask(first.address, "table")
    assert change_engine.engine_of(settings) is first
    os.kill(first._process.pid, signal.SIGKILL)
    with pytest.raises(ChangeEngineFailed, match="has ended while it read `table`"):
        task.look()
    first._process.wait()
    second = change_engine.engine_of(settings)
    assert second is not first
    ChangeTask(second.address, "table").stop()
    second.close()
