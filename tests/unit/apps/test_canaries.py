"""No secret of a process reaches its log: canaries in every secret setting, and failing stores."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fennel_core.settings.model import Settings
from tests.tidy.tree import product

ROOT = Path(__file__).resolve().parents[3]
KEY = base64.urlsafe_b64encode(b"canary-key-of-users-secrets-0000").decode()
CANARIES = {
    "FENNEL_POSTGRES_DSN": "postgresql://fennel:canary-dsn-password@127.0.0.1:1/fennel",
    "FENNEL_S3_SECRET_KEY": "canary-s3-secret-key",
    "FENNEL_AIRFLOW_PASSWORD": "canary-airflow-password",
    "FENNEL_ADMIN_TOKEN": "canary-admin-token",
    "FENNEL_KAFKA_PASSWORD": "canary-kafka-password",
    "FENNEL_AWS_SECRET_KEY": "canary-aws-secret-key",
}
PROGRAM = """
import asyncio, importlib, logging, sys
app = importlib.import_module("fennel_core.apps." + sys.argv[1])
settings = app.Settings()
app.logs.configure(app.PROCESS, "DEBUG", hidden=app.logs.secrets_of(settings))
log = logging.getLogger("a library")
for name in type(settings).model_fields:
    value = getattr(settings, name)
    if hasattr(value, "get_secret_value"):
        plain = value.get_secret_value()
        log.warning("a library prints %s", plain)
        app.logs.logger("ours").warning("an event", detail={"nested": [plain]}, password=plain)
        try:
            raise RuntimeError("failed with " + plain)
        except RuntimeError:
            log.exception("with a traceback")
log.warning("password=canary-dsn-password")
uncaught = asyncio.run(asyncio.wait_for(app.serve(settings), 20))
"""


def test_every_secret_setting_has_a_canary() -> None:
    secret = {
        f"FENNEL_{name.upper()}"
        for name, field in Settings.model_fields.items()
        if "SecretStr" in str(field.annotation)
    }
    assert secret == set(CANARIES)


@pytest.mark.parametrize("process", ["definition", "ingest", "query"])
def test_a_process_whose_stores_fail_prints_no_secret(process: str, tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text(KEY)
    key_file.chmod(0o600)
    own = CANARIES | {
        "FENNEL_SECRETS_KEY_FILE": str(key_file),
        "FENNEL_KAFKA_BOOTSTRAP": "127.0.0.1:1",
        "FENNEL_KAFKA_SECURITY": "SASL_PLAINTEXT",
        "FENNEL_S3_ENDPOINT": "http://127.0.0.1:1",
    }
    done = subprocess.run(  # noqa: S603  # a program of this test, and no shell
        [sys.executable, "-c", PROGRAM, process],
        env={**os.environ, **own, "FENNEL_DATA_DIR": str(tmp_path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    output = done.stdout + done.stderr
    assert output.count("a library prints") == len(CANARIES), "the process wrote its log"
    assert "with a traceback" in output
    for text in ("canary", KEY):
        lines = [line for line in output.splitlines() if text in line]
        assert lines == []


def test_every_process_hides_its_secrets_when_it_configures_its_log() -> None:
    calls = [
        (source.name, line.strip())
        for source in product()
        for line in source.text.splitlines()
        if "logs.configure(" in line
    ]
    assert len(calls) >= 6
    assert [call for call in calls if "hidden=logs.secrets_of(" not in call[1]] == []
