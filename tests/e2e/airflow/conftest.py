"""Airflow on the running platform, and a workspace and definitions for its DAGs."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from fennel_core.settings.model import Settings
from tests.support.airflow import Airflow, call, log_in

SHOP = """
from datetime import datetime
from fennel.connectors import Webhook, source
from fennel.datasets import dataset, field
__owner__ = "shop@example.com"
@source(Webhook(name="shop").endpoint("Order"), disorder="14d", cdc="upsert")
@dataset(index=True)
class Order:
    uid: int = field(key=True)
    amount: float
    ts: datetime
"""


@pytest.fixture(scope="module")
def airflow(platform: None) -> Airflow:
    return log_in(Settings())


@pytest.fixture
def workspace(platform: None) -> Iterator[str]:
    """Yield the name of a workspace that does not exist yet; delete it afterwards."""
    settings, name = Settings(), f"dags-{uuid.uuid4().hex[:10]}"
    yield name
    url = f"{settings.query_url}/api/v1/workspaces/{name}"
    assert call("DELETE", url, None, settings.admin_token.get_secret_value())[0] in (200, 404)


@pytest.fixture
def shop(tmp_path: Path) -> str:
    (tmp_path / "shop.py").write_text(SHOP)
    return str(tmp_path / "shop.py")
