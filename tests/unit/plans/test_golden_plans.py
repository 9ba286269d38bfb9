"""Plans of a commit made by the real client, against reviewed text.

`REFRESH_GOLDEN=1 pytest tests/unit/plans/test_golden_plans.py` rewrites it; read the diff.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fennel_core.plans.explain import explain
from fennel_core.plans.feature_index import FeatureIndex
from fennel_core.plans.planner import make_plan
from fennel_core.wire.decode import decode_sync_request

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
INDEX = FeatureIndex.of(decode_sync_request((GOLDEN / "wire" / "featuresets.binpb").read_bytes()))
QUESTIONS = {
    "everything": (
        ("Request.user", "Request.items", "UserFeatures.unset"),
        tuple(ref.fqn for ref in sorted(INDEX.providers)),
    ),
    "one-lookup": (("UserFeatures.user",), ("UserFeatures.name", "UserFeatures.age")),
    "input-not-computed": (
        ("UserFeatures.user", "UserFeatures.age"),
        ("UserFeatures.double_age", "UserFeatures.age"),
    ),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_plan_matches_its_golden_text(question: str) -> None:
    text = explain(make_plan(INDEX, *QUESTIONS[question]))
    golden = GOLDEN / "plans" / f"{question}.txt"
    if os.environ.get("REFRESH_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()
