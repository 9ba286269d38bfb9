"""The installed client sends no expectations of featuresets, so there are none to evaluate.

If this fails after an upgrade of the client, there are some: what a featureset was served with is
in the query log (decision 0078).
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CLIENT_PYTHON = ROOT / ".venv-executor" / "bin" / "python"
DECLARED = """
import json
from fennel.featuresets import feature, featureset
from fennel.internal_lib.to_proto.to_proto import to_sync_request_proto
from fennel.lib import expect_column_values_to_be_between, expectations, meta
from fennel.lib.expectations.great_expectations import Expectations

@meta(owner="me@xyz.ai")
@featureset
class Plain:
    age: int

said = ""
try:
    @meta(owner="me@xyz.ai")
    @featureset
    class Expecting:
        age: int

        @expectations
        def ages(cls):
            return [expect_column_values_to_be_between(column="age", min_value=0)]
except NotImplementedError as refused:
    said = str(refused)

# Past that refusal, the message of a commit has no place that is filled from a featureset.
declared = Expectations(0, lambda: None)
declared.suite = "ages"
declared.expectations = [expect_column_values_to_be_between(column="age", min_value=0)]
Plain._expectation = declared
sent = to_sync_request_proto([Plain], "a commit", None)
print(json.dumps({
    "said": said,
    "featuresets": [each.name for each in sent.feature_sets],
    "expectations": len(sent.expectations),
}))
"""


@pytest.mark.skipif(not CLIENT_PYTHON.exists(), reason="the client's environment is not installed")
def test_the_client_refuses_expectations_of_a_featureset_and_sends_none(tmp_path: Path) -> None:
    program = tmp_path / "definitions.py"  # the client reads the source of what it sends
    program.write_text(DECLARED)
    done = subprocess.run(  # noqa: S603  # a program of this test, and no shell
        [CLIENT_PYTHON, program], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "said": "Expectations are not yet supported for featuresets.",
        "featuresets": ["Plain"],
        "expectations": 0,
    }
