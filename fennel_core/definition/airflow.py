"""Run the steps of commits in Airflow, by triggering the `commit` DAG over the REST API.

The id of a DAG run contains the commit's id and the attempt, and Airflow refuses a second run with
the same id (409). A trigger that is repeated because its response was lost therefore starts only
one run, and 409 means success. Airflow 3 requires a token, created from user and password and valid
for a while; after a response 401 a new one is requested once.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import aiohttp

from fennel_core.definition.errors import OrchestratorUnavailable
from fennel_core.settings.model import Settings
from fennel_core.telemetry.logs import logger
from fennel_core.vocab.ids import CommitId

DAG: Final = "commit"
REQUEST_SECONDS: Final = 10.0
CONCURRENT_REQUESTS: Final = 4
"""Airflow's api-server has 15 database connections, and checks a token with one of them on its
event loop: while more requests than that are open, none of them ends for 30 s, and tasks that
cannot report in that time are killed. Fifty waiting clients ask in the same moment.
"""
TRIGGER_ATTEMPTS: Final = 3
RETRY_SECONDS: Final = 0.3
_CONNECTION_ERRORS: Final = (aiohttp.ClientError, asyncio.TimeoutError)
log = logger(__name__)


def run_id(commit: CommitId, attempt: int) -> str:
    """Return the id of the DAG run for one attempt of a commit."""
    return f"commit-{commit}-{attempt}"


class AirflowOrchestrator:
    """Implement `orchestrator.CommitOrchestrator` with Airflow.

    Create it inside the event loop and `close` it at the end.
    """

    def __init__(self, settings: Settings) -> None:
        self._url = settings.airflow_url.rstrip("/")
        self._login = {
            "username": settings.airflow_user,
            "password": settings.airflow_password.get_secret_value(),
        }
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS))
        self._token: str | None = None
        self._turns = asyncio.Semaphore(CONCURRENT_REQUESTS)

    async def close(self) -> None:
        """Close the HTTP connections."""
        await self._session.close()

    async def start(self, commit: CommitId, attempt: int) -> None:
        """Trigger the DAG. Raises OrchestratorUnavailable."""
        reason = await self.trigger(DAG, run_id(commit, attempt), {"commit_id": commit})
        if reason is None:
            return
        log.error("airflow rejected the commit", commit=commit, reason=reason)
        raise OrchestratorUnavailable(
            f"commit `{commit}` could not be started and nothing changed: {reason}. "
            "Try again, or set FENNEL_ORCHESTRATOR=inline to run commits without Airflow"
        )

    async def alive(self, commit: CommitId, attempt: int) -> bool:
        """Return False if the run does not exist or has ended, True if that is unknown."""
        return await self.has_run(DAG, run_id(commit, attempt))

    async def trigger(self, dag: str, run: str, conf: dict[str, Any]) -> str | None:
        """Start a run of a DAG, unless there is one with this id.

        Returns why it certainly was not started, None otherwise.
        """
        body = {"dag_run_id": run, "logical_date": None, "conf": conf}
        reason = ""
        for trigger in range(TRIGGER_ATTEMPTS):
            if trigger:
                await asyncio.sleep(RETRY_SECONDS * trigger)
            try:
                status, response = await self._call("POST", f"/api/v2/dags/{dag}/dagRuns", body)
            except _CONNECTION_ERRORS as lost:
                reason = f"Airflow is unreachable ({type(lost).__name__})"
                continue
            if status in (200, 201, 409):
                return None
            reason = f"Airflow responded {status}: {_detail(response)}"
            if status < 500:
                break
        return reason

    async def has_run(self, dag: str, run: str) -> bool:
        """Return False if the run does not exist or has ended, True if that is unknown."""
        try:
            status, response = await self._call("GET", f"/api/v2/dags/{dag}/dagRuns/{run}", None)
        except _CONNECTION_ERRORS:
            return True
        if status == 404:
            return False
        state = response.get("state") if isinstance(response, dict) else None
        return not (status == 200 and state in ("success", "failed"))

    async def _call(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, Any]:
        """Send a request, in its turn, and return the response's status and JSON body."""
        async with self._turns:
            for renewed in (False, True):
                if self._token is None:
                    self._token = await self._new_token()
                headers = {"Authorization": f"Bearer {self._token}"}
                async with self._session.request(
                    method, self._url + path, json=body, headers=headers
                ) as response:
                    if response.status == 401 and not renewed:
                        self._token = None
                        continue
                    return response.status, await _json(response)
        raise AssertionError("the second request returns")

    async def _new_token(self) -> str:
        async with self._session.post(f"{self._url}/auth/token", json=self._login) as response:
            body = await _json(response)
            if (
                response.status not in (200, 201)
                or not isinstance(body, dict)
                or "access_token" not in body
            ):
                raise aiohttp.ClientError(f"Airflow created no token: status {response.status}")
            return str(body["access_token"])


async def _json(response: aiohttp.ClientResponse) -> Any:
    try:
        return await response.json(content_type=None)
    except ValueError:
        return None


def _detail(body: Any) -> str:
    detail = body.get("detail") if isinstance(body, dict) else None
    return str(detail)[:300] if detail else "no detail"
