"""Airflow with its own database for these tests.

It must be configured before its first import, so this module does it at import.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from fennel_core.apps.local import airflow

__all__ = ["airflow_home"]

Login = Callable[[str | None], dict[str, str]]
ROOT = Path(__file__).parents[2]
_folder = tempfile.TemporaryDirectory(prefix="fennel-airflow-")
HOME = Path(_folder.name)
(HOME / "passwords.json").write_text(
    json.dumps({"admin": "admin-password", "guest": "guest-password"})
)
OPTIONS = {
    "AIRFLOW_HOME": str(HOME),
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{HOME}/airflow.db",
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
    "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
    "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin,guest:viewer",
    "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(HOME / "passwords.json"),
    "AIRFLOW__API_AUTH__JWT_SECRET": "for-tests-only-" * 5,
    "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    "PYTHONPATH": f"{ROOT}:{ROOT / 'plugins'}",
}
if "airflow" not in sys.modules:
    os.environ.update(OPTIONS)


@pytest.fixture(scope="session")
def airflow_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an Airflow whose database is initialised and has the pools.

    One of the workers of a test run makes the database; the others copy it.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    made = folder / "airflow.db"
    with (folder / "airflow.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            make_database()
            (HOME / "airflow.db").rename(made)
    shutil.copy(made, HOME / "airflow.db")
    return HOME


def make_database() -> None:
    pools = HOME / "pools.json"
    pools.write_text(json.dumps(airflow.POOLS))
    for words in (("db", "migrate"), ("pools", "import", str(pools))):
        subprocess.run(  # noqa: S603  # a program of this test, and no shell
            [sys.executable, "-m", "airflow", *words],
            check=True,
            capture_output=True,
            env={**os.environ, **OPTIONS},
        )


@pytest.fixture
def login(airflow_home: Path) -> Login:
    """Return what makes the headers of user `ann` with a role."""
    from airflow.api_fastapi.app import get_auth_manager, init_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    init_auth_manager()

    def header(role: str | None) -> dict[str, str]:
        token = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username="ann", role=role))
        return {"Authorization": f"Bearer {token}"}

    return header


@pytest.fixture
def only_bank(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user `ann` may read the workspace `bank` only; for pages that are opened later."""
    monkeypatch.setenv("FENNEL_AIRFLOW_WORKSPACES", "ann:bank")


def assert_only(
    client: TestClient, headers: dict[str, str], path: str, shown: str, hidden: str
) -> None:
    """Check that a list and its pages show one id, and not the other, which exists."""
    page = client.get(path, headers=headers).text
    assert shown in page
    assert hidden not in page
    found = [client.get(f"{path}/{id_}", headers=headers).status_code for id_ in (shown, hidden)]
    assert found == [200, 404]
