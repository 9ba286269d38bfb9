"""The law: over a table of expressions and a seeded crowd of random ones, we and the client's own
evaluator agree row by row.

The oracles run in the client's environment, one over our table (`client_oracle.py`), one over the
client's shipped tests (`client_suite.py`); all is skipped where that environment is not installed.
To hunt further: FENNEL_EXPRESSIONS="<seed> <count>" pytest tests/laws/expressions
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
    answers,
    compiled,
    difference,
    equal,
    read_oracle,
)
from tests.laws.expressions.deviations import DEVIATIONS

ROOT = Path(__file__).parents[3]
CLIENT_PYTHON = ROOT / ".venv-executor" / "bin" / "python"
SEED, RANDOM_EXPRESSIONS = os.environ.get("FENNEL_EXPRESSIONS", "20240229 400").split()
ORACLE_TIMEOUT_S = 120
MAX_SINGLE_ROWS = 9
"""Frames of at most this many rows are cut into single rows, longer ones into halves."""

pytestmark = pytest.mark.skipif(
    not CLIENT_PYTHON.exists(), reason="the client's environment is not installed"
)


def asked(script: str, *arguments: str) -> tuple[dict[str, Frame], list[Case]]:
    """What a script in the client's environment reports."""
    answer = subprocess.run(
        [CLIENT_PYTHON, Path(__file__).with_name(script), *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=ORACLE_TIMEOUT_S,
        env={**os.environ, "RUST_BACKTRACE": "0"},
    )
    return read_oracle(answer.stdout)


def all_differences(frames: dict[str, Frame], cases: list[Case]) -> list[tuple[Case, Difference]]:
    found = [(case, difference(case, frames[case.frame])) for case in cases]
    return [(case, d) for case, d in found if d is not None]


@pytest.fixture(scope="module")
def oracle() -> tuple[dict[str, Frame], list[Case]]:
    return asked("client_oracle.py", SEED, RANDOM_EXPRESSIONS)


@pytest.fixture(scope="module")
def shipped() -> tuple[dict[str, Frame], list[Case]]:
    return asked("client_suite.py")


@pytest.fixture(scope="module")
def differences(
    oracle: tuple[dict[str, Frame], list[Case]], shipped: tuple[dict[str, Frame], list[Case]]
) -> list[tuple[Case, Difference]]:
    return all_differences(*oracle) + all_differences(*shipped)


def test_the_oracle_answers_for_enough_expressions_of_every_verdict(
    oracle: tuple[dict[str, Frame], list[Case]], shipped: tuple[dict[str, Frame], list[Case]]
) -> None:
    _, cases = oracle
    assert len(shipped[1]) > 80
    assert sum(case.dtype is None for case in cases) > 500
    assert sum(case.dtype is not None for case in cases) > 1500


def test_we_agree_with_the_client_on_every_type_value_and_failing_row(
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


def test_rows_do_not_see_each_other(oracle: tuple[dict[str, Frame], list[Case]]) -> None:
    """Any split of a frame gives the same rows, and no rows give none: what lets a job cut its
    input into batches as it likes.
    """
    frames, cases = oracle
    for case in cases:
        term = compiled(case, frames[case.frame])
        if term is None:
            continue
        rows = frames[case.frame].rows
        cuts = range(rows.height) if rows.height <= MAX_SINGLE_ROWS else (0, rows.height // 2)
        pieces = [rows.slice(start, stop - start) for start, stop in pairwise([*cuts, rows.height])]
        assert answers(rows.head(0), term) == [], case.source
        assert equal([a for piece in pieces for a in answers(piece, term)], answers(rows, term)), (
            case.source
        )


@pytest.mark.parametrize("deviation", DEVIATIONS, ids=lambda d: d.name)
def test_every_deviation_is_still_needed(
    deviation, differences: list[tuple[Case, Difference]]
) -> None:
    assert any(deviation.covers(case, d) for case, d in differences), (
        f"nothing deviates by `{deviation.name}` any more: {deviation.why}"
    )
