"""The `.proto` files match the client's wheel, and the committed modules the `.proto` files."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fennel_core.wire.generate import GEN, generate

ROOT = Path(__file__).resolve().parents[3]
DESCRIBE = ROOT / "tests" / "support" / "describe_client_protocol.py"
EXECUTOR_PYTHON = ROOT / ".venv-executor" / "bin" / "python"
UNUSED_BY_COMMITS = (
    "fennel.proto.auth.",
    "fennel.proto.expr.",
    "fennel.proto.format.",
    "fennel.proto.status.",
    "google.rpc.",
)


def describe(python: str, package: str) -> dict:
    done = subprocess.run(  # noqa: S603  # a program of this test, and no shell
        [python, str(DESCRIBE), package],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
    )
    return json.loads(done.stdout)


@pytest.mark.skipif(
    not EXECUTOR_PYTHON.exists(), reason="the client's environment is not installed"
)
def test_messages_field_numbers_and_enum_values_match_the_client():
    generated = describe(sys.executable, "fennel_core.wire.gen")
    ours = {name: body for name, body in generated.items() if not name.startswith("fennel_core.")}
    theirs = {
        name: body
        for name, body in describe(str(EXECUTOR_PYTHON), "fennel.gen").items()
        if not name.startswith(UNUSED_BY_COMMITS)
    }
    assert len(theirs) > 200, "the description of the client's protocol came out empty"
    assert sorted(ours) == sorted(theirs)
    for name, body in theirs.items():
        assert ours[name] == body, name


def test_committed_modules_match_the_proto_files(tmp_path):
    fresh = {path.name: path.read_text() for path in generate(tmp_path)}
    committed = {path.name: path.read_text() for path in GEN.glob("*.py*")}
    assert fresh == committed
