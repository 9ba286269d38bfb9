"""The DAG `offline_query`: its form, who may use it, and how the end of a request ends its task."""

from __future__ import annotations

import asyncio
import copy
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from fennel_core.connections.api_errors import AirflowUserRefused
from fennel_core.offline import request_row, run_watch
from fennel_core.offline.request_body import parse_body
from fennel_core.offline.request_row import (
    NewRequest,
    OfflineRequest,
    RequestDefinition,
    RequestFailure,
)
from fennel_core.offline.request_service import FormRun
from fennel_core.offline.request_states import RequestState
from fennel_core.offline.request_store import MemoryRequests
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import MAIN_BRANCH, WorkspaceId
from tests.dags import conftest as _configured  # noqa: F401  # Airflow is configured before its first import

from airflow.sdk import Context  # isort: skip
from airflow.sdk.definitions.param import ParamsDict  # isort: skip
from airflow.sdk.exceptions import (  # isort: skip
    AirflowException,
    AirflowFailException,
    ParamValidationError,
)
from fennel_airflow import offline_bodies, spark_tasks  # isort: skip
from fennel_airflow.factory import OFFLINE_QUERY_PARAMS  # isort: skip

ROW = OfflineRequest(
    "q1",
    WorkspaceId("shop"),
    MAIN_BRANCH,
    "ann",
    RequestDefinition((), ("F.v",), "at", "w", 1, "in", 0, 0),
    datetime(2026, 1, 1, tzinfo=UTC),
)
RUN = FormRun("manual__1", datetime(2026, 1, 1, tzinfo=UTC))


def validated(**conf: Any) -> dict[str, Any]:
    params = ParamsDict(copy.deepcopy(OFFLINE_QUERY_PARAMS))
    params.update(conf)
    return dict(params.validate())


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offline_bodies, "_found", lambda _id: ROW)


def test_a_filled_form_is_the_body_of_the_client() -> None:
    form = validated(
        workspace="shop",
        inputs=["F.k"],
        outputs=["F.v"],
        timestamp_column="at",
        rows={"F.k": [1], "at": ["2026-01-01"]},
    )
    body = parse_body(offline_bodies._body(form))
    assert (body.input_features, body.output_features) == (("F.k",), ("F.v",))
    assert body.input == {"Pandas": {"F.k": [1], "at": ["2026-01-01"]}}
    assert (body.timestamp_column, body.workflow) == ("at", "default")


@pytest.mark.parametrize(
    "conf", [{"workspace": "Shop"}, {"rows": "[]"}, {"inputs": "F.k"}, {"timestamp_column": ""}]
)
def test_an_invalid_value_is_refused_before_a_run_starts(conf: dict[str, Any]) -> None:
    with pytest.raises(ParamValidationError):
        validated(**conf)


def test_an_incomplete_form_names_what_is_missing() -> None:
    with pytest.raises(AirflowFailException, match="no inputs and no outputs"):
        offline_bodies.accept(validated(workspace="shop"), "ann", RUN)


def test_every_form_field_has_a_title_and_a_description() -> None:
    for name, param in OFFLINE_QUERY_PARAMS.items():
        assert param.schema.get("title"), name
        assert param.description, name


def test_a_stored_request_runs_for_the_server_and_for_users_with_a_role(
    stored: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []

    def refuse(_settings: Settings, user: str, *_rest: object) -> None:
        refused.append(user)
        raise AirflowUserRefused(user, "shop", None, ["query"])

    monkeypatch.setenv("FENNEL_AIRFLOW_WORKSPACES", "bob:other=query")
    monkeypatch.setattr(offline_bodies, "permit", refuse)
    form = validated(request_id="q1")
    assert offline_bodies.accept(form, Settings().airflow_user, RUN) == "q1"
    with pytest.raises(AirflowFailException, match="has no role"):
        offline_bodies.accept(form, "bob", RUN)
    assert refused == ["bob"]


def test_a_request_that_failed_fails_its_task_without_a_retry(
    stored: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    offline_bodies.raise_failure("q1")  # a run that was killed is tried again
    failed = replace(ROW, failure=RequestFailure("history-incomplete", "rows are gone"))
    monkeypatch.setattr(offline_bodies, "_found", lambda _id: failed)
    with pytest.raises(AirflowFailException, match=r"rows are gone \[history-incomplete\]"):
        offline_bodies.raise_failure("q1")


def test_the_task_submits_the_program_with_the_settings_of_the_platform() -> None:
    task = spark_tasks.compute_features()
    assert task.application_args == [spark_tasks.PULLED_ID]
    assert task.application.endswith("fennel_core/apps/spark_jobs/offline_query.py")
    assert Settings().offline_memory == spark_tasks.OFFLINE_MEMORY


def computed(
    monkeypatch: pytest.MonkeyPatch, rows: Sequence[OfflineRequest | None], *, killed: bool = False
) -> list[str]:
    """Execute the task over the states that are read one after the other; return what it did."""
    done, states = [], iter(rows)

    def submit(_self: object, _context: object) -> None:
        done.append("submitted")
        if killed:
            raise AirflowException("spark-submit ended with 143")

    @contextmanager
    def watched(_id: str) -> Iterator[None]:
        done.append("watched")
        yield

    monkeypatch.setattr(offline_bodies, "_found", lambda _id: next(states))
    monkeypatch.setattr(offline_bodies, "watched", watched)
    monkeypatch.setattr(spark_tasks.SubmitProgram, "execute", submit)
    task = spark_tasks.compute_features()
    task.application_args = ["q1"]
    try:
        task.execute(Context())
    except AirflowException:
        done.append("failed")
    return done


def test_a_cancelled_request_starts_no_program_and_its_end_is_no_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = replace(ROW, state=RequestState.CANCELLED)
    assert computed(monkeypatch, [gone] * 3) == []
    assert computed(monkeypatch, [ROW] * 3) == ["watched", "submitted"]
    for ended in (gone, None):  # None: deleted with its workspace
        states = [ROW, ended, ended, ended, ended]
        assert computed(monkeypatch, states, killed=True) == ["watched", "submitted"]
    assert computed(monkeypatch, [ROW] * 5, killed=True) == ["watched", "submitted", "failed"]


def test_a_program_that_is_watched_ends_when_its_request_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryRequests(lambda: ROW.created_at)
    request = NewRequest(ROW.id, ROW.workspace, ROW.branch, "ann", ROW.definition)
    asyncio.run(store.add(request, 1))
    asyncio.run(store.change("q1", request_row.claimed))

    @asynccontextmanager
    async def no_pool(*_given: object, **_more: object) -> AsyncIterator[None]:
        yield None

    monkeypatch.setattr(offline_bodies.postgres, "pool", no_pool)
    monkeypatch.setattr(offline_bodies, "PostgresRequests", lambda _pool: store)
    for name in ("WATCH_S", "GRACE_S"):
        monkeypatch.setattr(run_watch, name, 0.05)
    with (
        offline_bodies.watched("q1"),
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as program,
    ):
        asyncio.run(store.change("q1", request_row.cancelled))
        assert program.wait(20) == -signal.SIGTERM
    row = asyncio.run(store.read("q1"))
    assert row is not None
    assert row.lease_until is None, "its objects may be deleted"
