"""A pytest plugin for the client's environment: runs the client's tests against a live platform.

Loaded with `-p live_client`. Every `@mock` test resolves the name `MockClient` when it runs; here
that name is a thin subclass of the client's HTTP client. It adds only what these tests need and a
user of the real client does not:

- each instance opens a workspace of its own (`dev-…` token), deleted after the test;
- responses have `response.status_code` and `response.json()`;
- `sleep()` is the barrier, and a read after a log waits for it, because with the mock a log is
  visible at once;
- `Dataset.lookup` outside of queries uses HTTP, `get_dataset_df` is `inspect` without a limit;
- a dataset that a test feeds with `fennel.testing.log` gets the mock's internal webhook as its
  source during the commit;
- `is_integration_client()` returns True, so that tests expect a server's texts and values; those
  in mock_values.txt expect the mock's, each with its reason there;
- `log` returns a refusal as a response, as the tests of a live server expect.

Writes one line per test to the file FENNEL_CONFORMANCE_REPORT: outcome, seconds, and the number of
commits, logs and reads over HTTP.
"""

from __future__ import annotations

import copy
import json
import os
import re
import time
import uuid
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

import fennel.datasets.datasets
import fennel.lib
import fennel.testing
import fennel.testing.mock_client
import pandas as pd
import pytest
import requests
from fennel.client import Client
from fennel.connectors import connectors
from fennel.testing.data_engine import internal_webhook_endpoint

URL = os.environ["FENNEL_URL"]
ADMIN = os.environ["FENNEL_ADMIN_TOKEN"]
REPORT = os.environ.get("FENNEL_CONFORMANCE_REPORT")
ORCHESTRATOR = os.environ.get("FENNEL_CONFORMANCE_ORCHESTRATOR", "")
TIMEOUT_S = 60
REFUSED = re.compile(r"Server returned: (\d+), (.*)", re.DOTALL)
MOCK_VALUES = frozenset(
    line.split("#")[0].strip()
    for line in (Path(__file__).parent / "mock_values.txt").read_text().splitlines()
    if line.split("#")[0].strip()
)
EVERYTHING = 100_000


class Answer(dict):
    """A response of the client (a dict) with the attributes that the tests read."""

    @property
    def status_code(self) -> int:
        return self["status_code"]

    def json(self) -> Any:
        return self["body"]


class LiveClient(Client):
    """The client's own client, pointed at a fresh workspace of the live platform."""

    opened: ClassVar[list[LiveClient]] = []

    def __init__(self, branch: str | None = None) -> None:
        self.workspace = f"conformance-{uuid.uuid4().hex[:10]}"
        super().__init__(URL, f"dev-{self.workspace}", branch=branch)
        self.calls = {"commits": 0, "logs": 0, "reads": 0}
        self._unseen = False
        self._known: dict[str, Any] = {}
        LiveClient.opened.append(self)
        fennel.lib.secrets.get = self.get_secret
        fennel.datasets.datasets.dataset_lookup = self._dataset_lookup

    # What the tests use and the HTTP client has not.

    def is_integration_client(self) -> bool:
        return _running not in MOCK_VALUES

    def sleep(self, seconds: float = 0) -> None:
        """Wait until everything logged so far is visible to reads."""
        self._request("POST", "/barrier", {"timeout_s": TIMEOUT_S}).raise_for_status()
        self._unseen = False

    def get_dataset_df(self, dataset_name: str) -> pd.DataFrame:
        return self.inspect(self._known.get(dataset_name, dataset_name), n=EVERYTHING)

    def _dataset_lookup(
        self, name: str, ts: pd.Series, fields: list[str], keys: pd.DataFrame
    ) -> tuple[pd.DataFrame, pd.Series]:
        found, known = self.lookup(
            name, keys.reset_index(drop=True), fields, ts.reset_index(drop=True)
        )
        return (found.to_frame() if isinstance(found, pd.Series) else found), known

    # The same calls, counted, with responses as the tests read them.

    def commit(
        self, message: str, datasets: Any = None, featuresets: Any = None, **options: Any
    ) -> Answer:
        self.calls["commits"] += 1
        fed = _with_internal_sources(datasets or [])
        try:
            answer = Answer(super().commit(message, datasets, featuresets, **options))
        finally:
            for dataset, sources in fed:
                setattr(dataset, connectors.SOURCE_FIELD, sources)
        for dataset in datasets or []:
            setattr(dataset, fennel.testing.mock_client.MOCK_CLIENT_ATTR, self)
            self._known[dataset._name] = dataset
        return answer

    def log(self, webhook: str, endpoint: str, df: pd.DataFrame, batch_size: int = 1000) -> Any:
        self.calls["logs"] += 1
        self._unseen = True
        try:
            answer = super().log(webhook, endpoint, df, batch_size)
        except Exception as refused:
            found = REFUSED.match(str(refused))
            if found is None:
                raise
            if not self.is_integration_client():
                raise Exception(found[2]) from refused  # the mock raises the bare text
            return Answer(status_code=int(found[1]), body={"error": found[2]})
        return Answer(answer) if answer is not None else Answer(status_code=200, body={})

    def query(self, *args: Any, **kwargs: Any) -> Any:
        self._before_read()
        return super().query(*args, **kwargs)

    def lookup(self, dataset: Any, keys: pd.DataFrame, *args: Any, **kwargs: Any) -> Any:
        self._before_read()
        sent = pd.DataFrame(
            {column: [_as_json(value) for value in keys[column]] for column in keys.columns},
            dtype=object,
        )
        return super().lookup(self._typed(dataset), sent, *args, **kwargs)

    def inspect(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        self._before_read()
        return super().inspect(self._typed(dataset), *args, **kwargs)

    def _typed(self, dataset: Any) -> Any:
        """Return a dataset given by name, with the types it was committed with: the mock has them,
        the HTTP client does not.
        """
        return self._known.get(dataset, dataset) if isinstance(dataset, str) else dataset

    def erase(self, *args: Any, **kwargs: Any) -> Answer:
        self._unseen = True
        return Answer(super().erase(*args, **kwargs))

    def init_branch(self, name: str) -> Answer:
        return Answer(super().init_branch(name))

    def clone_branch(self, name: str, from_branch: str) -> Answer:
        return Answer(super().clone_branch(name, from_branch))

    def delete_branch(self, name: str) -> Answer:
        return Answer(super().delete_branch(name))

    def add_secret(self, secret_name: str, secret_value: str) -> Answer:
        return Answer(super().add_secret(secret_name, secret_value))

    def update_secret(self, secret_name: str, secret_value: str) -> Answer:
        """The client's own method subscripts a response and always fails."""
        return _as_answer(self._request("PATCH", f"/secret/{secret_name}", {"value": secret_value}))

    def delete_secret(self, secret_name: str) -> Answer:
        """As `update_secret`."""
        return _as_answer(self._request("DELETE", f"/secret/{secret_name}", {}))

    def _before_read(self) -> None:
        self.calls["reads"] += 1
        if self._unseen:
            self.sleep()

    def _add_branch_name_header(self, headers: dict[str, str]) -> dict[str, str]:
        headers = super()._add_branch_name_header(headers)
        if ORCHESTRATOR:
            headers["X-Fennel-Orchestrator"] = ORCHESTRATOR
        return headers

    def _request(self, method: str, path: str, body: Any) -> requests.Response:
        headers = {"Authorization": f"Bearer {self.token}", "X-FENNEL-BRANCH": self._branch}
        return requests.request(
            method, f"{URL}/api/v1{path}", json=body, headers=headers, timeout=TIMEOUT_S + 10
        )


def _as_json(value: Any) -> Any:
    """Return a key as the protocol encodes it; the client's own `lookup` sends only JSON types."""
    if hasattr(value, "as_json"):
        return {name: _as_json(inner) for name, inner in value.as_json().items()}
    if isinstance(value, dict):
        return {name: _as_json(inner) for name, inner in value.items()}
    if isinstance(value, datetime):
        return value.isoformat()
    return value.item() if hasattr(value, "item") else value


def _as_answer(response: requests.Response) -> Answer:
    if response.status_code != 200:
        raise Exception(f"Server returned: {response.status_code}, {response.text}")
    return Answer(
        status_code=response.status_code, headers=dict(response.headers), body=response.json()
    )


def _with_internal_sources(datasets: list[Any]) -> list[tuple[Any, list[Any]]]:
    """Give every dataset without a source and pipelines the mock's internal webhook; what each had
    before.
    """
    before = []
    for dataset in datasets:
        sources = getattr(dataset, connectors.SOURCE_FIELD, [])
        if dataset.num_pipelines() == 0 and (not sources or _is_fed_directly()):
            before.append((dataset, copy.copy(sources)))
            setattr(
                dataset, connectors.SOURCE_FIELD, [*sources, internal_webhook_endpoint(dataset)]
            )
    return before


_module_of_test: Any = None
_running: str = ""


def _is_fed_directly() -> bool:
    """Does the running test's module use `fennel.testing.log`?"""
    return getattr(_module_of_test, "log", None) is fennel.testing.log


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: Any) -> Any:
    global _module_of_test, _running  # pytest gives hooks no other place for what is running now
    _running = item.nodeid
    _module_of_test = getattr(item, "module", None)
    LiveClient.opened.clear()
    item.started = time.perf_counter()
    yield
    for client in LiveClient.opened:
        gone = requests.delete(
            f"{URL}/api/v1/workspaces/{client.workspace}",
            headers={"Authorization": f"Bearer {ADMIN}"},
            timeout=TIMEOUT_S,
        )
        if gone.status_code not in (200, 404):
            raise RuntimeError(
                f"workspace {client.workspace} was not deleted: {gone.status_code} {gone.text}"
            )


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Any:
    report = (yield).get_result()
    if REPORT and (call.when == "call" or (call.when == "setup" and report.outcome != "passed")):
        calls = {
            name: sum(client.calls[name] for client in LiveClient.opened)
            for name in ("commits", "logs", "reads")
        }
        why = str(call.excinfo.value)[:500] if call.excinfo else None
        line = {
            "test": item.nodeid,
            "outcome": report.outcome,
            "seconds": round(time.perf_counter() - item.started, 2),
            **calls,
            "why": why,
        }
        with open(REPORT, "a") as file:
            file.write(json.dumps(line) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    for mark in ("integration", "slow", "data_integration"):
        config.addinivalue_line("markers", f"{mark}: of the client's own suite")


fennel.testing.mock_client.MockClient = LiveClient
