"""One workspace of the running platform, seen from outside: its responses and its physical assets.

Theory. A fault is survived when, at rest, four lists agree (Kafka's topics, the bank's rows, the
assets held by branches, the engine's registry), no finished commit holds a reservation, no ledger
entry is open, and a client that queried all the time received only correct responses. The two
versions of the shop differ in one default, so every response identifies its version.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
import psycopg
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from fennel_core.connections.kafka import client_config
from fennel_core.definition.commit_steps import reconcile_all
from fennel_core.settings.model import Settings
from tests.support.polling import eventually

NOW: Final = "2026-01-01T00:00:00"
ANSWERS: Final = {"one": [10.0, 1.0], "two": [10.0, 2.0]}
"""The responses of each version for a known customer and for an unknown one."""
OTHER: Final = {"one": "two", "two": "one"}
AGAIN_SECONDS: Final = 10.0
REST_SECONDS: Final = 60.0
INLINE: Final = {"X-Fennel-Orchestrator": "inline"}
Row = tuple[Any, ...]


@dataclass
class ObservedResponses:
    """Responses to the repeated query. `refused`: status and text of each response but 200."""

    given: list[list[float]] = field(default_factory=list)
    refused: list[tuple[int, str]] = field(default_factory=list)

    def versions(self) -> list[list[float]]:
        """Return the responses without repetitions."""
        return [
            answer for i, answer in enumerate(self.given) if i == 0 or self.given[i - 1] != answer
        ]


class World:
    """`bodies`: the SyncRequest of each version."""

    def __init__(
        self,
        settings: Settings,
        session: aiohttp.ClientSession,
        workspace: str,
        bodies: dict[str, bytes],
    ) -> None:
        self.settings, self.workspace, self._session, self._bodies = (
            settings,
            workspace,
            session,
            bodies,
        )
        self._admin = AdminClient(client_config(settings))

    # --- as a client

    async def call(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, str]:
        sent = {"Authorization": f"Bearer dev-{self.workspace}", **headers}
        data = (
            body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        )
        url = f"{self.settings.query_url}/api/v1{path}"
        async with self._session.request(method, url, data=data, headers=sent) as answer:
            return answer.status, await answer.text()

    async def commit(self, version: str, options: str = "", **headers: str) -> tuple[int, str]:
        return await self.call("POST", f"/commit{options}", self._bodies[version], **headers)

    async def begin(self) -> None:
        """Commit the first version, log one row, and wait until it is served."""
        assert (await self.commit("one", **INLINE))[0] == 200
        body = {
            "webhook": "door",
            "endpoint": "orders",
            "data": {"uid": [7], "amount": [10.0], "at": [NOW]},
        }
        assert (await self.call("POST", "/log", body))[0] == 200
        assert (await self.call("POST", "/barrier", {"timeout_s": 30}))[0] == 200

    async def version(self) -> str:
        """Return the version that serves queries."""
        given = await self.answer()
        return next(version for version, answer in ANSWERS.items() if answer == given)

    async def answer(self) -> list[float]:
        status, text = await self._ask()
        assert status == 200, text
        given: list[float] = json.loads(text)["Shop.amount"]
        return given

    async def _ask(self) -> tuple[int, str]:
        body = {
            "inputs": ["Shop.uid"],
            "outputs": ["Shop.amount"],
            "data": {"Shop.uid": [7, 8]},
            "log": False,
        }
        return await self.call("POST", "/query", body)

    @asynccontextmanager
    async def asked(self) -> AsyncIterator[ObservedResponses]:
        """Query ten times a second until the block ends.

        A 503 asks for a retry and is repeated: on a busy machine a slot may be late once.
        """
        responses, over = ObservedResponses(), asyncio.Event()

        async def ask() -> None:
            while not over.is_set():
                status, text = await self._ask()
                patience = time.monotonic() + AGAIN_SECONDS
                while status == 503 and time.monotonic() < patience:
                    await asyncio.sleep(0.1)  # a client retries as slowly
                    status, text = await self._ask()
                if status == 200:
                    responses.given.append(json.loads(text)["Shop.amount"])
                else:
                    responses.refused.append((status, text))
                await asyncio.sleep(0.1)  # the rate of the queries

        task = asyncio.create_task(ask())
        try:
            yield responses
        finally:
            over.set()
            await task

    # --- as an operator

    def rows(self, query: str) -> list[Row]:
        """Return rows of the platform's database; `%(w)s` is the workspace."""
        with psycopg.connect(
            self.settings.postgres_dsn.get_secret_value(), autocommit=True
        ) as connection:
            return connection.execute(query.encode(), {"w": self.workspace}).fetchall()

    def newest(self) -> tuple[str, str, str | None]:
        """Return id, state and error code of the newest commit."""
        query = (
            "SELECT id, state, error_code FROM commit WHERE workspace = %(w)s ORDER BY "
            "created_at DESC LIMIT 1"
        )
        [(id_, state, code)] = self.rows(query)
        return id_, state, code

    def target(self) -> str:
        [(target,)] = self.rows("SELECT target FROM branch WHERE workspace = %(w)s")
        return str(target)

    def topics(self) -> set[str]:
        return {
            name
            for name in self._admin.list_topics(timeout=20).topics
            if name.startswith(f"{self.workspace}.")
        }

    def pending(self) -> list[str]:
        """Return the topics that the newest commit is about to create."""
        query = (
            "SELECT asset_id FROM ledger_entry WHERE workspace = %(w)s AND ledger = "
            "'creation' AND state = 'pending'"
        )
        return [asset for (asset,) in self.rows(query) if f"{self.workspace}.job." not in asset]

    def make_topics(self, names: list[str]) -> None:
        for made in self._admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
            made.result(20)

    def remove_topics(self, names: list[str]) -> None:
        for gone in self._admin.delete_topics(names).values():
            gone.result(20)

    def defects(self) -> list[str]:
        """Return one sentence per inconsistency of the physical assets; empty at rest."""
        found = [f"commit {id_} is {state}" for id_, state in self.rows(OPEN_COMMITS)]
        found += [
            f"{ledger} ledger has {asset} {state}"
            for ledger, asset, state in self.rows(OPEN_ENTRIES)
        ]
        found += [f"{asset} is reserved for {commit}" for commit, asset in self.rows(RESERVED)]
        held = {asset for (asset,) in self.rows(HELD)}
        there = dict(
            self.rows("SELECT id, state FROM asset WHERE workspace = %(w)s AND state <> 'deleted'")
        )
        found += [
            f"{asset} is {state}, held: {asset in held}"
            for asset, state in there.items()
            if state != "live" or asset not in held
        ]
        found += [f"{asset} is held and not in the bank" for asset in held - set(there)]
        jobs = {
            id_
            for (id_,) in self.rows(
                "SELECT id FROM job WHERE workspace = %(w)s AND desired = 'run'"
            )
        }
        registered = {id_ for (id_,) in self.rows("SELECT id FROM job WHERE workspace = %(w)s")}
        wanted = {asset for asset in held if f"{self.workspace}.job." in asset}
        found += [
            f"job {id_} is wrong in the registry" for id_ in (jobs ^ wanted) | (registered - jobs)
        ]
        found += [f"topic {name} is wrong in Kafka" for name in self.topics() ^ (held - wanted)]
        found += [
            f"branch {name}: reads are at {serving}, writes at {target}"
            for name, target, serving in self.rows(BRANCHES_APART)
        ]
        found += [
            f"orphan {topic}"
            for (topic,) in self.rows(
                "SELECT topic FROM orphan_topic WHERE starts_with(topic, %(w)s || '.')"
            )
        ]
        # Local state is not checked: a slot that was dead while its job was removed keeps it for
        # FENNEL_STATE_GRACE_MS; the simulation checks that it is then deleted.
        return found

    def expire_leases(self) -> None:
        """Let the leases of all open commits expire."""
        self.rows(
            "UPDATE commit SET lease_until = now() WHERE workspace = %(w)s "
            "AND finished_at IS NULL RETURNING id"
        )

    async def at_rest(self) -> None:
        """Reconcile until nothing is left to do."""
        found: list[str] = []

        async def reconciled() -> bool:
            await asyncio.to_thread(reconcile_all)
            found[:] = await asyncio.to_thread(self.defects)
            return not found

        await eventually(reconciled, within_s=REST_SECONDS, interval_s=0.2, what=lambda: found)


OPEN_COMMITS = "SELECT id, state FROM commit WHERE workspace = %(w)s AND finished_at IS NULL"
OPEN_ENTRIES = """
SELECT ledger, asset_id, state FROM ledger_entry WHERE workspace = %(w)s AND state IN ('pending',
    'failed')
"""
RESERVED = (
    "SELECT r.commit_id, r.asset_id FROM reservation r JOIN commit c ON c.id = "
    "r.commit_id WHERE c.workspace = %(w)s"
)
HELD = (
    "SELECT DISTINCT r.asset_id FROM asset_ref r JOIN commit c ON c.id = r.commit_id "
    "WHERE c.workspace = %(w)s"
)
BRANCHES_APART = (
    "SELECT name, target, serving FROM branch WHERE workspace = %(w)s AND target IS "
    "DISTINCT FROM serving"
)
