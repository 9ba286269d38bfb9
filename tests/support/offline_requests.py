"""A request for training data as the client sends it, and the features that it asks for."""

from __future__ import annotations

from typing import Any

from fennel_core.plans.feature_index import FeatureIndex
from fennel_core.query.view import View
from tests.laws.offline.worlds import BY_TIME, CURRENT, PAIRS, TOTALS, USERS, features, tables
from tests.laws.offline.worlds import TYPES as FEATURES
from tests.support.featuresets import request

GOOD: dict[str, Any] = {
    "input_features": ["F.k", "F.n"],
    "output_features": ["F.v"],
    "input": {"Pandas": {"F.k": [1, 2], "F.n": [None, 3], "at": ["1970-01-01 00:00:01", "NaT"]}},
    "timestamp_column": "at",
    "s3_output": None,
    "use_v2": True,
}


def view() -> View:
    index = FeatureIndex.of(
        request(dict(FEATURES), features(), [USERS, PAIRS, TOTALS, BY_TIME, CURRENT])
    )
    return View(None, None, index, tables())
