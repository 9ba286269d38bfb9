"""What people order about stored connectors: add, replace, rotate, test, list and remove.

A change is tried before it is stored, with everything that uses the connector: by the checks of a
commit that adds these sources and sinks. So credentials that are wrong do not replace those that
work, unless the caller wants no check. What is running takes the new ones by itself; the processes
that read and write follow the store as they follow the branches' versions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from fennel_core.blueprints import stored_names
from fennel_core.blueprints.spec import Catalog
from fennel_core.connections import external_kafka, external_mysql, external_postgres
from fennel_core.connections.errors import ConnectionsError
from fennel_core.connections.external_http import HttpEndpoint, opened_http
from fennel_core.connections.external_kafka import OpenSecret
from fennel_core.connections.http_addresses import AllowedHosts
from fennel_core.connections.secrets import Sealer
from fennel_core.connectors.errors import PropertiesInvalid
from fennel_core.connectors.properties import message_of, shown
from fennel_core.connectors.references import (
    TITLES,
    Access,
    ConnectorUsers,
    address_of,
    kind_of,
    resolved_catalog,
)
from fennel_core.connectors.store import ConnectorStore, StoredConnector
from fennel_core.definition.connector_errors import (
    ConnectorChanged,
    ConnectorExists,
    ConnectorInUse,
    ConnectorInvalid,
    ConnectorMoves,
    ConnectorRedefined,
    ConnectorUnknown,
    ConnectorUnreachable,
)
from fennel_core.definition.external_checks import REACHED_S, answers
from fennel_core.definition.external_uses import use_problems, uses_of
from fennel_core.definition.sealed_request import seal_connector
from fennel_core.definition.source_check import secret_opener
from fennel_core.ledger.store import Ledger, LedgerTransaction
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import WorkspaceId
from fennel_core.vocab.problems import Problem
from fennel_core.wire import connectors as c
from fennel_core.wire.decode import decode_sync_request
from fennel_core.wire.decode_connectors import decode_database
from fennel_core.wire.gen import connector_pb2

MOST: Final = 1000
"""Connectors of a workspace: each process that reads or writes remembers all of them."""
UNREACHABLE: Final = "connector-unreachable"


@dataclass(frozen=True, slots=True)
class Allowances:
    """What a caller takes upon himself. `replace`: a connector of the name may be there;
    `moved`: it may lead elsewhere; `unchecked`: it is stored although it may not work.
    """

    replace: bool = False
    moved: bool = False
    unchecked: bool = False


class ConnectorOrders:
    """Serves the calls. Use from one event loop."""

    def __init__(
        self, store: ConnectorStore, ledger: Ledger, sealer: Sealer | None, settings: Settings
    ) -> None:
        self._store, self._ledger = store, ledger
        self._sealer, self._settings = sealer, settings

    async def rows(self, workspace: WorkspaceId) -> list[dict[str, Any]]:
        """Return the connectors of a workspace without secrets, and what uses each."""
        users, stored = await self._users(workspace), await self._store.of(workspace)
        return [_row(each, users) for each in stored.values()]

    async def row(self, workspace: WorkspaceId, name: str) -> dict[str, Any]:
        """Return one connector as `rows`. Raises ConnectorUnknown."""
        return _row(await _named(self._store, workspace, name), await self._users(workspace))

    async def add(
        self,
        workspace: WorkspaceId,
        name: str,
        kind: str,
        given: Mapping[str, object],
        by: str,
        allowed: Allowances,
    ) -> dict[str, Any]:
        """Store a connector. Raises ConnectorError."""
        stored = await self._store.of(workspace)
        before = stored.get(name)
        if before is not None and not allowed.replace:
            raise ConnectorExists(name)
        if before is None and len(stored) >= MOST:
            raise ConnectorInvalid(f"a workspace stores {MOST} connectors at most; remove some")
        message = self._sealed(workspace, name, kind, given)
        return await self._put(workspace, name, message, by, before, allowed)

    async def rotate(
        self,
        workspace: WorkspaceId,
        name: str,
        given: Mapping[str, object],
        by: str,
        allowed: Allowances,
    ) -> dict[str, Any]:
        """Replace the credentials of a connector that are `given`. Raises ConnectorError."""
        before = await _named(self._store, workspace, name)
        kind = kind_of(before.database)
        assert kind is not None, "stored connectors have a kind"
        message = self._sealed(workspace, name, kind, given, before.message)
        return await self._put(workspace, name, message, by, before, allowed)

    async def remove(self, workspace: WorkspaceId, name: str) -> None:
        """Remove a connector that nothing uses. Raises ConnectorError."""

        async def work(tx: LedgerTransaction) -> None:
            # Commits are stored under the same lock: one that was is seen here, and one that waits
            # for it finds the connector removed.
            await tx.bank.lock(workspace)
            found = await _named(tx.connectors, workspace, name)
            kind = kind_of(found.database) or ""
            users = await asyncio.to_thread(_decoded, await _encoded_users(tx, workspace))
            if titles := users.titles(name, kind):
                raise ConnectorInUse(name, titles)
            if not await tx.connectors.remove(workspace, name, found.number):
                raise ConnectorChanged(name)

        await self._ledger.run(work)

    async def test(self, workspace: WorkspaceId, name: str) -> dict[str, Any]:
        """Reach what a connector is used for. Raises ConnectorError."""
        found = (await _named(self._store, workspace, name)).database
        users = await self._users(workspace)
        checked, problems = await self._checked(workspace, found, users)
        if problems:
            raise ConnectorUnreachable(name, problems, changes=False)
        return {"connector": name, "checked": checked}

    def _sealed(
        self,
        workspace: WorkspaceId,
        name: str,
        kind: str,
        given: Mapping[str, object],
        before: bytes | None = None,
    ) -> bytes:
        try:
            message = message_of(name, kind, given, before)
        except PropertiesInvalid as invalid:
            raise ConnectorInvalid(f"connector `{name}`: {invalid}") from invalid
        return seal_connector(message, workspace, self._sealer)

    async def _put(
        self,
        workspace: WorkspaceId,
        name: str,
        message: bytes,
        by: str,
        before: StoredConnector | None,
        allowed: Allowances,
    ) -> dict[str, Any]:
        new = _database(message)
        users = await self._users(workspace)
        if others := users.others(new):
            raise ConnectorRedefined(name, others)
        if before is not None:
            _require_same_place(before.database, new, users, allowed)
        checked: list[str] = []
        if not allowed.unchecked:
            checked, problems = await self._checked(workspace, new, users)
            if problems:
                raise ConnectorUnreachable(name, problems, changes=True)
        number = 0 if before is None else before.number
        if not await self._store.put(workspace, name, message, by, number):
            raise ConnectorChanged(name)
        used_by = users.titles(name, kind_of(new) or "")
        return {"connector": name, "checked": checked, "used_by": used_by}

    async def _checked(
        self, workspace: WorkspaceId, database: Access, users: ConnectorUsers
    ) -> tuple[list[str], list[Problem]]:
        """Return what was reached with a connector, for people, and what is wrong."""
        kind = kind_of(database) or ""
        catalog = users.of(database.name, kind)
        if catalog is not None:
            uses = uses_of(resolved_catalog(catalog, {database.name: database}))
            problems = await use_problems(uses, {}, workspace, self._sealer, self._settings)
            return users.titles(database.name, kind), problems
        open_secret = secret_opener(workspace, self._sealer)
        allowed = AllowedHosts.of(self._settings)
        [found] = await answers([partial(probe, database, open_secret, allowed)])
        if found is None:
            late = f"connector `{database.name}` was not reached in {REACHED_S:.0f} s"
            return [], [Problem(UNREACHABLE, database.name, late)]
        return found

    async def _users(self, workspace: WorkspaceId) -> ConnectorUsers:
        """Return what a workspace reads and writes. Raises as `Ledger.run`."""
        encoded = await self._ledger.run(lambda tx: _encoded_users(tx, workspace))
        return await asyncio.to_thread(_decoded, encoded)


async def _named(store: ConnectorStore, workspace: WorkspaceId, name: str) -> StoredConnector:
    stored = await store.of(workspace)
    if name not in stored:
        raise ConnectorUnknown(name, stored)
    return stored[name]


def _row(stored: StoredConnector, users: ConnectorUsers) -> dict[str, Any]:
    database = stored.database
    kind = kind_of(database) or ""
    return {
        "connector": stored.name,
        "kind": kind,
        "address": address_of(database),
        "properties": shown(stored.message),
        "changes": stored.number,
        "changed_at": stored.changed_at.isoformat(timespec="seconds"),
        "changed_by": stored.changed_by,
        "used_by": users.titles(stored.name, kind),
    }


def _database(message: bytes) -> Access:
    found = decode_database(connector_pb2.ExtDatabase.FromString(message))
    assert isinstance(found, Access), "properties make one of these kinds"
    return found


def _require_same_place(
    before: Access, new: Access, users: ConnectorUsers, allowed: Allowances
) -> None:
    """Return unless a connector in use would lead elsewhere. Raises ConnectorMoves."""
    kinds = kind_of(before) or "", kind_of(new) or ""
    used = users.titles(new.name, kinds[0])
    same_kind = kinds[0] == kinds[1]
    same = same_kind and address_of(before) == address_of(new)
    if used and not same and not (same_kind and allowed.moved):
        was, becomes = (
            f"{TITLES[kind]} `{address_of(each)}`"
            for kind, each in zip(kinds, (before, new), strict=True)
        )
        raise ConnectorMoves(new.name, (was, becomes), used, may_move=same_kind)


def probe(
    database: Access, open_secret: OpenSecret, allowed: AllowedHosts
) -> tuple[list[str], list[Problem]]:
    """Reach a system that nothing uses yet; return what was reached and what is wrong. Blocks."""
    try:
        match database:
            case c.Kafka():
                external_kafka.check_cluster(external_kafka.opened(database, open_secret))
            case c.Postgres():
                with external_postgres.opened(database, open_secret).connect() as connection:
                    connection.execute("SELECT 1")
            case c.MySQL():
                with external_mysql.opened(database, open_secret).connect() as mysql:
                    external_mysql.rows_of(mysql, "SELECT 1")
            case c.Http():
                table = c.HttpPath(database, "/", None, ())
                title = f"connector `{database.name}`"
                endpoint = HttpEndpoint(opened_http(table, title, open_secret), allowed)
                try:
                    endpoint.check()
                finally:
                    endpoint.close()
            case c.S3():
                return [], []  # keys open a bucket, and none is named yet
    except ConnectionsError as unusable:
        return [], [Problem(UNREACHABLE, database.name, str(unusable))]
    return [f"{TITLES[kind_of(database) or '']} at {address_of(database)}"], []


@dataclass(frozen=True, slots=True)
class EncodedUsers:
    """As `ConnectorUsers`, encoded. `requests`: of the commits under way."""

    catalogs: Mapping[str, bytes]
    requests: Sequence[bytes]


async def _encoded_users(tx: LedgerTransaction, workspace: WorkspaceId) -> EncodedUsers:
    """Return what a workspace reads and writes."""
    catalogs: dict[str, bytes] = {}
    targets = {branch.name: branch.target for branch in await tx.branches(workspace)}
    for name, target in targets.items():
        encoded = None if target is None else await tx.catalog(target)
        if encoded is not None:
            catalogs[name] = encoded
    under_way = set(await tx.open_commits(workspace)) - set(targets.values())
    return EncodedUsers(catalogs, [await tx.request(each) for each in sorted(under_way)])


def _decoded(users: EncodedUsers) -> ConnectorUsers:
    catalogs = {name: stored_names.loads(data, Catalog) for name, data in users.catalogs.items()}
    under_way = [decode_sync_request(body) for body in users.requests]
    sources = [source for each in under_way for source in each.sources]
    sinks = [sink for each in under_way for sink in each.sinks]
    return ConnectorUsers(catalogs, (*sources, *sinks))
