"""Law: our evaluator and the client's agree row by row.

Both run over a table of expressions and over random ones of a fixed seed. The oracles run in the
client's environment, one over our table (`client_oracle.py`), one over the client's shipped tests
(`client_suite.py`); all tests are skipped if that environment is not installed. To search further:
FENNEL_EXPRESSIONS="<seed> <count>" pytest tests/laws/expressions
"""

import os
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from tests.laws.expressions.comparison import (
    Case,
    Difference,
    Frame,
    compiled,
    difference,
    equal,
    evaluate_rows,
    read_oracle,
)
from tests.laws.expressions.deviations import DEVIATIONS

ROOT = Path(__file__).parents[3]
CLIENT_PYTHON = ROOT / ".venv-executor" / "bin" / "python"
SEED, RANDOM_EXPRESSIONS = os.environ.get("FENNEL_EXPRESSIONS", "20240229 400").split()
ORACLE_TIMEOUT_S = 120
MAX_SINGLE_ROWS = 9
"""Frames of at most this many rows are split into single rows, longer ones into halves."""

pytestmark = pytest.mark.skipif(
    not CLIENT_PYTHON.exists(), reason="the client's environment is not installed"
)


def run_in_client(script: str, *arguments: str) -> tuple[dict[str, Frame], list[Case]]:
    """Return the frames and cases that a script in the client's environment reports."""
    done = subprocess.run(  # noqa: S603  # a program of this test, and no shell
        [CLIENT_PYTHON, Path(__file__).with_name(script), *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=ORACLE_TIMEOUT_S,
        env={**os.environ, "RUST_BACKTRACE": "0"},
    )
    return read_oracle(done.stdout)


def all_differences(frames: dict[str, Frame], cases: list[Case]) -> list[tuple[Case, Difference]]:
    found = [(case, difference(case, frames[case.frame])) for case in cases]
    return [(case, d) for case, d in found if d is not None]


@pytest.fixture(scope="module")
def oracle() -> tuple[dict[str, Frame], list[Case]]:
    return run_in_client("client_oracle.py", SEED, RANDOM_EXPRESSIONS)


@pytest.fixture(scope="module")
def shipped() -> tuple[dict[str, Frame], list[Case]]:
    return run_in_client("client_suite.py")


@pytest.fixture(scope="module")
def differences(
    oracle: tuple[dict[str, Frame], list[Case]], shipped: tuple[dict[str, Frame], list[Case]]
) -> list[tuple[Case, Difference]]:
    return all_differences(*oracle) + all_differences(*shipped)


def test_the_oracle_accepts_and_rejects_enough_expressions(
    oracle: tuple[dict[str, Frame], list[Case]], shipped: tuple[dict[str, Frame], list[Case]]
) -> None:
    _, cases = oracle
    assert len(shipped[1]) > 80
    assert sum(case.dtype is None for case in cases) > 500
    assert sum(case.dtype is not None for case in cases) > 1500


def test_types_values_and_failing_rows_agree_with_the_client(
    differences: list[tuple[Case, Difference]],
) -> None:
    unexplained = [
        f"{case.source}\n    {d}"
        for case, d in differences
        if not any(dev.covers(case, d) for dev in DEVIATIONS)
    ]
    assert not unexplained, "\n".join(
        [f"{len(unexplained)} differences (seed {SEED}):", *unexplained]
    )


def test_rows_are_evaluated_independently(oracle: tuple[dict[str, Frame], list[Case]]) -> None:
    """Any split of a frame gives the same rows, and an empty frame gives none.

    Therefore a job may cut its input into any batches.
    """
    frames, cases = oracle
    for case in cases:
        term = compiled(case, frames[case.frame])
        if term is None:
            continue
        rows = frames[case.frame].rows
        cuts = range(rows.height) if rows.height <= MAX_SINGLE_ROWS else (0, rows.height // 2)
        pieces = [rows.slice(start, stop - start) for start, stop in pairwise([*cuts, rows.height])]
        assert evaluate_rows(rows.head(0), term) == [], case.source
        assert equal(
            [a for piece in pieces for a in evaluate_rows(piece, term)], evaluate_rows(rows, term)
        ), case.source


@pytest.mark.parametrize("deviation", DEVIATIONS, ids=lambda d: d.name)
def test_every_deviation_is_still_needed(
    deviation, differences: list[tuple[Case, Difference]]
) -> None:
    assert any(deviation.covers(case, d) for case, d in differences), (
        f"no case needs the deviation `{deviation.name}`: {deviation.why}"
    )
