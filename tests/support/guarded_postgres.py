"""A Postgres of its own that asks for the password of its user."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from tests.support.postgres import make_cluster, running

USER = "shopper"


@dataclass(frozen=True)
class GuardedPostgres:
    """`owner`: the connection string of who needs no password."""

    owner: str

    @property
    def properties(self) -> dict[str, str]:
        """Where it is, and its user, as the properties of a connector."""
        at = conninfo_to_dict(self.owner)
        host, port = str(at["host"]), str(at["port"])
        return {"host": host, "port": port, "db_name": "postgres", "username": USER}

    def set_password(self, word: str) -> None:
        """Change the password, and end the connections of the user."""
        with psycopg.connect(self.owner, autocommit=True) as connection:
            role = sql.Identifier(USER)
            connection.execute(sql.SQL("ALTER ROLE {} PASSWORD {}").format(role, sql.Literal(word)))
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", (USER,)
            )


@pytest.fixture(scope="module")
def guarded_postgres() -> Iterator[GuardedPostgres]:
    folder = Path(tempfile.mkdtemp(prefix="fennel-pg-"))
    try:
        make_cluster(folder / "data")
        rules = folder / "data" / "pg_hba.conf"
        guarded = f"host all {USER} 127.0.0.1/32 scram-sha-256\n"
        rules.write_text(guarded + rules.read_text(encoding="utf-8"), encoding="utf-8")
        with running(folder / "data") as owner:
            with psycopg.connect(owner, autocommit=True) as connection:
                connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(USER)))
                connection.execute(
                    "CREATE TABLE orders (id bigint PRIMARY KEY, city text, at timestamptz)"
                )
                connection.execute("GRANT SELECT ON orders TO shopper")
            yield GuardedPostgres(owner)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
