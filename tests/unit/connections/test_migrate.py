"""Which migrations a database lacks is a pure decision."""

from __future__ import annotations

from pathlib import Path

import pytest

from fennel_core.connections.migrate import Applied, Migration, MigrationMismatch, pending, read

ONE, TWO, THREE = (Migration(n, f"m{n}", f"SELECT {n};") for n in (1, 2, 3))


def _applied(*done: Migration) -> list[Applied]:
    return [Applied(each.number, each.name, each.sha256) for each in done]


def test_what_is_missing_is_applied_in_order() -> None:
    assert pending((ONE, TWO, THREE), _applied(ONE)) == (TWO, THREE)
    assert pending((ONE,), _applied(ONE)) == ()


def test_a_database_from_the_future_is_refused() -> None:
    with pytest.raises(MigrationMismatch, match="does not know"):
        pending((ONE,), _applied(ONE, TWO))


def test_a_gap_in_the_bookkeeping_is_refused() -> None:
    with pytest.raises(MigrationMismatch, match="gap"):
        pending((ONE, TWO, THREE), _applied(ONE, THREE))


@pytest.mark.parametrize(
    ("names", "text"),
    [(["0002_b.sql"], "0001"), (["0001_a.sql", "0001_b.sql"], "0002"), (["1_a.sql"], "NNNN")],
)
def test_numbers_that_start_late_repeat_or_are_misspelt_are_refused(
    tmp_path: Path, names: list[str], text: str
) -> None:
    for name in names:
        (tmp_path / name).write_text("SELECT 1;")
    with pytest.raises(MigrationMismatch, match=text):
        read(tmp_path)
