"""Encrypt everything that is stored encrypted again, after a change of the key.

These are the secrets that users have stored by name, and the connectors' secrets inside commits
(`sealed_request.py`), inside their catalogs, from which sources are read, and stored connectors.
The servers must use the new key before: what they store while this runs is then encrypted with it.
A commit is one transaction, so an interruption loses nothing, and running again continues.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any, Final, LiteralString, TypeVar, cast

from fennel_core.blueprints import stored_names
from fennel_core.blueprints.spec import Catalog
from fennel_core.connections import postgres, secrets
from fennel_core.connections.audit_events import Action, audited, user_of_this_machine
from fennel_core.connections.postgres import AsyncConnection, Pool, connection_of, in_transaction
from fennel_core.connections.secrets import CREDENTIAL, Sealer
from fennel_core.definition.errors import SecretsNotConfigured
from fennel_core.definition.sealed_request import reseal_body, reseal_connector
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import WorkspaceId
from fennel_core.wire.connectors import PostgresChanges, SealedSecret, Table

Part = TypeVar("Part")
WITH_SECRETS: Final[LiteralString] = """
    SELECT id FROM commit
    WHERE position('sealed:'::bytea IN coalesce(request, '')) > 0
       OR position('sealed:'::bytea IN coalesce(merged, '')) > 0
       OR position('"secret.sealed"'::bytea IN coalesce(catalog, '')) > 0
    ORDER BY id"""
"""The prefix is `wire.connectors.SealedSecret.PREFIX`."""


@dataclass(frozen=True, slots=True)
class Resealed:
    """How many stored secrets, commits and connectors were encrypted again."""

    secrets: int
    commits: int
    connectors: int


async def reseal(pool: Pool, sealer: Sealer) -> Resealed:
    """Encrypt every stored secret with the first key of `sealer`; older keys may go afterwards.

    Raises SecretUnreadable if no key of `sealer` opens a secret.
    """
    stored = await secrets.reseal(pool, sealer)
    async with connection_of(pool) as connection:
        rows = await (await connection.execute(WITH_SECRETS)).fetchall()
    for (id_,) in rows:
        await in_transaction(pool, partial(_reseal_commit, commit=str(id_), sealer=sealer))
    connectors = await in_transaction(pool, partial(_reseal_connectors, sealer=sealer))
    await in_transaction(pool, partial(_reseal_slots, sealer=sealer))
    return Resealed(stored, len(rows), connectors)


async def _reseal_connectors(connection: AsyncConnection, sealer: Sealer) -> int:
    cursor = await connection.execute("SELECT workspace, name, message FROM connector FOR UPDATE")
    rows = cast(list[tuple[str, str, bytes]], await cursor.fetchall())
    for workspace, name, message in rows:
        again = await asyncio.to_thread(reseal_connector, message, WorkspaceId(workspace), sealer)
        await connection.execute(
            # A rotation that read the row before must not put back what the old key encrypted.
            "UPDATE connector SET message = %s, number = number + 1 "
            "WHERE workspace = %s AND name = %s",
            (again, workspace, name),
        )
    return len(rows)


async def _reseal_slots(connection: AsyncConnection, sealer: Sealer) -> None:
    """Encrypt what reaches the databases with slots of sources again; it is of no version."""
    cursor = await connection.execute(
        "SELECT raw_topic, workspace, definition FROM change_slot FOR UPDATE"
    )
    for topic, workspace, definition in cast(list[tuple[str, str, bytes]], await cursor.fetchall()):
        table = stored_names.loads(definition, PostgresChanges)
        again = stored_names.dumps(sealed_again(table, WorkspaceId(workspace), sealer))
        await connection.execute(
            "UPDATE change_slot SET definition = %s WHERE raw_topic = %s", (again, topic)
        )


async def _reseal_commit(connection: AsyncConnection, commit: str, sealer: Sealer) -> None:
    cursor = await connection.execute(
        "SELECT workspace, request, merged, catalog FROM commit WHERE id = %s FOR UPDATE",
        (commit,),
    )
    row = cast(tuple[str, bytes | None, bytes | None, bytes | None] | None, await cursor.fetchone())
    if row is None:
        return  # its workspace was deleted
    workspace = WorkspaceId(row[0])
    bodies = [None if b is None else reseal_body(b, workspace, sealer) for b in row[1:3]]
    catalog = None if row[3] is None else resealed_catalog(row[3], workspace, sealer)
    await connection.execute(
        "UPDATE commit SET request = %s, merged = %s, catalog = %s WHERE id = %s",
        (*bodies, catalog, commit),
    )


def resealed_catalog(stored: bytes, workspace: WorkspaceId, sealer: Sealer) -> bytes:
    """Return a stored catalog with the credentials of its streams encrypted again."""
    catalog = stored_names.loads(stored, Catalog)

    def again(table: Table) -> Table:
        return sealed_again(table, workspace, sealer)

    sources = tuple(
        replace(each, source=replace(each.source, table=again(each.source.table)))
        for each in catalog.sources
    )
    sinks = tuple(
        replace(each, sink=replace(each.sink, table=again(each.sink.table)))
        for each in catalog.sinks
    )
    return stored_names.dumps(replace(catalog, sources=sources, sinks=sinks))


def sealed_again(part: Part, workspace: WorkspaceId, sealer: Sealer) -> Part:
    """Return a part of a connector with the secrets in it encrypted again, wherever they are."""

    def again(part: Any) -> Any:
        if isinstance(part, SealedSecret):
            value = sealer.open(workspace, CREDENTIAL, part.token.encode("ascii"))
            token = sealer.seal(workspace, CREDENTIAL, value).decode("ascii")
            return SealedSecret(sealer.fingerprint(workspace, value), token)
        if isinstance(part, tuple):
            return tuple(map(again, part))
        if is_dataclass(part) and not isinstance(part, type):
            own = {each.name: again(getattr(part, each.name)) for each in fields(part)}
            return replace(part, **own)
        return part

    return cast(Part, again(part))


def reseal_installation(settings: Settings) -> Resealed:
    """Run `reseal` over the installation of `settings`, for a caller without an event loop.

    Raises SecretsNotConfigured and SecretUnreadable.
    """
    key_file = settings.secrets_key_file
    if key_file is None:
        raise SecretsNotConfigured
    sealer = Sealer.from_file(key_file)

    async def work() -> Resealed:
        dsn = settings.postgres_dsn.get_secret_value()
        async with (
            postgres.pool(dsn, name="fennel-reseal", size=2) as pool,
            audited(pool, user_of_this_machine(), Action.RESEAL, "all secrets", None),
        ):
            return await reseal(pool, sealer)

    return asyncio.run(work())
