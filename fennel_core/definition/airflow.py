"""The `commit` DAG, triggered over Airflow's REST API.

Theory. The run's id is made of the commit's id and the attempt, and Airflow refuses a second run of
one id (409): so a trigger that is repeated because its answer was lost starts nothing twice, and
409 means that all is well. Airflow 3 wants a token, made from user and password and good for a
while; an answer 401 makes a new one, once.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import aiohttp

from fennel_core.settings.model import Settings
from fennel_core.telemetry.logs import logger
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import CommitId

DAG: Final = "commit"
REQUEST_SECONDS: Final = 10.0
TRIES: Final = 3
_LOST: Final = (aiohttp.ClientError, asyncio.TimeoutError)
log = logger(__name__)


def run_id(commit: CommitId, attempt: int) -> str:
    return f"commit-{commit}-{attempt}"


class AirflowOrchestrator:
    """See `orchestrate.Orchestrator`. Make it inside the event loop; `close` it at the end."""

    def __init__(self, settings: Settings) -> None:
        self._url = settings.airflow_url.rstrip("/")
        self._login = {
            "username": settings.airflow_user,
            "password": settings.airflow_password.get_secret_value(),
        }
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS))
        self._token: str | None = None

    async def close(self) -> None:
        await self._session.close()

    async def start(self, commit: CommitId, attempt: int) -> None:
        body = {
            "dag_run_id": run_id(commit, attempt),
            "logical_date": None,
            "conf": {"commit_id": commit},
        }
        reason = ""
        for attempted in range(TRIES):
            if attempted:
                await asyncio.sleep(0.3 * attempted)
            try:
                status, answer = await self._call("POST", f"/api/v2/dags/{DAG}/dagRuns", body)
            except _LOST as lost:
                reason = f"it cannot be reached ({type(lost).__name__})"
                continue
            if status in (200, 201, 409):
                return
            reason = f"it answered {status}: {_detail(answer)}"
            if status < 500:
                break
        log.error("airflow did not take the commit", commit=commit, reason=reason)
        raise ApiError(
            503,
            "orchestrator-unavailable",
            f"Airflow, which carries out commits, did not take this one: {reason}. "
            "Nothing was changed; try again, "
            "or set FENNEL_ORCHESTRATOR=inline to work without Airflow",
        )

    async def alive(self, commit: CommitId, attempt: int) -> bool:
        try:
            status, answer = await self._call(
                "GET", f"/api/v2/dags/{DAG}/dagRuns/{run_id(commit, attempt)}", None
            )
        except _LOST:
            return True
        return not (
            status == 404
            or (
                status == 200
                and isinstance(answer, dict)
                and answer.get("state") in ("success", "failed")
            )
        )

    async def _call(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, Any]:
        for fresh in (False, True):
            if self._token is None:
                self._token = await self._new_token()
            headers = {"Authorization": f"Bearer {self._token}"}
            async with self._session.request(
                method, self._url + path, json=body, headers=headers
            ) as response:
                if response.status == 401 and not fresh:
                    self._token = None
                    continue
                return response.status, await _json(response)
        raise AssertionError("the second round answers")

    async def _new_token(self) -> str:
        async with self._session.post(f"{self._url}/auth/token", json=self._login) as response:
            answer = await _json(response)
            if (
                response.status not in (200, 201)
                or not isinstance(answer, dict)
                or "access_token" not in answer
            ):
                raise aiohttp.ClientError(f"no token: {response.status}")
            return str(answer["access_token"])


async def _json(response: aiohttp.ClientResponse) -> Any:
    try:
        return await response.json(content_type=None)
    except ValueError:
        return None


def _detail(answer: Any) -> str:
    detail = answer.get("detail") if isinstance(answer, dict) else None
    return str(detail)[:300] if detail else "no detail"
