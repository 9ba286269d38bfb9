"""The options that all reads of `spark.read.format("fennel")` share."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

import psycopg
from psycopg_pool import PoolTimeout

from fennel_core.connections import tokens
from fennel_core.connections.postgres import Pool
from fennel_core.connections.roles import Permission
from fennel_core.history.errors import ReadFailed
from fennel_core.settings.model import Settings
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import Micros, WorkspaceId

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICRO: Final = timedelta(microseconds=1)
T = TypeVar("T")


def check_known(options: Mapping[str, str], known: Collection[str]) -> None:
    """Raise ReadFailed for an option that is not in `known`."""
    unknown = sorted(set(options) - {*known, "path"})
    if unknown:
        raise ReadFailed(
            f"unknown option `{unknown[0]}`; valid options: {', '.join(known)} [read-option]"
        )


def check_workspace(options: Mapping[str, str]) -> None:
    """Raise ReadFailed if neither a token nor a workspace is given."""
    if not options.get("token") and not options.get("workspace"):
        raise ReadFailed(
            'no workspace: add .option("token", "<your token>"), or '
            '.option("workspace", "<name>") [read-option]'
        )


def check_access(options: Mapping[str, str]) -> None:
    """Raise ReadFailed if the options do not say who reads, and where, exactly once."""
    if not options.get("url"):
        check_workspace(options)
        return
    if not options.get("token"):
        raise ReadFailed('no token: add .option("token", "<your token>") to `url` [read-option]')
    for name in ("workspace", "env_file"):
        if options.get(name):
            raise ReadFailed(
                f"`{name}` has no effect beside `url`: the token selects the workspace, and no "
                "settings are read; omit one of the two [read-option]"
            )


def moment(options: Mapping[str, str], name: str, default: datetime) -> Micros:
    """Return the time in the option `name`: UTC unless it contains an offset. ReadFailed."""
    text = options.get(name)
    try:
        at = default if text is None else datetime.fromisoformat(text)
    except ValueError as wrong:
        code = name.replace("_", "-")
        raise ReadFailed(
            f'{name} `{text}` is not an ISO 8601 time; use a form like "2026-05-01T12:00:00Z" '
            f"[read-{code}]"
        ) from wrong
    return micros_of(at)


def micros_of(at: datetime) -> Micros:
    """Return a time in microseconds; UTC unless it has an offset."""
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return Micros((at - EPOCH) // MICRO)


async def workspace_of(
    pool: Pool, settings: Settings, workspace: str | None, token: str | None
) -> WorkspaceId:
    """Return the workspace that the token may read, or the one that is named; ReadFailed."""
    if token is None:
        assert workspace is not None, "`check_workspace` requires one of the two"
        return WorkspaceId(workspace)
    try:
        access = await tokens.access_of(pool, settings, f"Bearer {token}")
        found = access.workspace_for(Permission.READ)
    except ApiError as refused:
        raise ReadFailed(f"{refused.text} [{refused.code}]") from refused
    if workspace not in (None, found):
        raise ReadFailed(
            f"the token is for workspace `{found}`, not `{workspace}`; omit one of the two "
            "options [read-workspace]"
        )
    return found


def run(plan: Coroutine[Any, Any, T]) -> T:
    """Return the result of `plan`; ReadFailed if the platform's database cannot be reached."""
    try:
        return asyncio.run(plan)
    except (psycopg.OperationalError, PoolTimeout) as unavailable:
        raise ReadFailed(
            f"the platform's database cannot be reached ({unavailable}); check FENNEL_POSTGRES_DSN "
            "[read-settings]"
        ) from unavailable


def listed(names: Iterable[str]) -> str:
    """Return names as text."""
    return ", ".join(f"`{name}`" for name in sorted(names)) or "none"
