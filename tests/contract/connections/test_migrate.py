"""Numbered SQL files are applied once each, by whichever process starts first."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import psycopg
import pytest

from fennel_core.connections import migrate
from fennel_core.connections.postgres import connect


def _apply(dsn: str, files: tuple[migrate.Migration, ...]) -> list[int]:
    with connect(dsn, name="test") as connection:
        return [each.number for each in migrate.apply(connection, files)]


def _tables(dsn: str) -> set[str]:
    with psycopg.connect(dsn) as connection:
        return {
            row[0]
            for row in connection.execute(
                "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
            )
        }


def test_the_shipped_files_make_the_schema_and_a_second_run_does_nothing(
    empty_database: str,
) -> None:
    files = migrate.read()
    assert _apply(empty_database, files) == [each.number for each in files]
    assert {
        "workspace",
        "commit",
        "branch",
        "asset",
        "job_partition",
        "secret",
        "migration",
    } <= _tables(empty_database)
    assert _apply(empty_database, files) == []


def test_processes_that_start_together_apply_each_file_once(empty_database: str) -> None:
    files = (
        migrate.Migration(
            1,
            "slow",
            "SELECT pg_sleep(0.2); CREATE TABLE once (n int); INSERT INTO once VALUES (1);",
        ),
    )
    done: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda: done.append(_apply(empty_database, files)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == [[], [], [], [1]]
    with psycopg.connect(empty_database) as connection:
        assert connection.execute("SELECT count(*) FROM once").fetchone() == (1,)


def test_a_file_that_fails_half_way_leaves_nothing_of_itself_and_keeps_the_earlier_ones(
    empty_database: str,
) -> None:
    good = migrate.Migration(1, "good", "CREATE TABLE good (n int);")
    bad = migrate.Migration(2, "bad", "CREATE TABLE half (n int); SELECT 1/0;")
    with pytest.raises(psycopg.errors.DivisionByZero):
        _apply(empty_database, (good, bad))
    assert _tables(empty_database) == {"good", "migration"}
    assert _apply(
        empty_database, (good, migrate.Migration(2, "bad", "CREATE TABLE whole (n int);"))
    ) == [2]


def test_a_database_of_another_development_version_is_refused(empty_database: str) -> None:
    _apply(empty_database, (migrate.Migration(1, "first", "CREATE TABLE a (n int);"),))
    with pytest.raises(
        migrate.MigrationMismatch,
        match=r"another, unreleased version \(migration 0001_first differs\): run `make clean`",
    ):
        _apply(empty_database, (migrate.Migration(1, "first", "CREATE TABLE a (n bigint);"),))


def test_the_program_reports_the_applied_migrations(empty_database: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "fennel_core.apps.migrate"],
        env={"FENNEL_POSTGRES_DSN": empty_database, "PATH": ""},
        cwd=Path(migrate.__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "applied 0001_initial" in ran.stdout
