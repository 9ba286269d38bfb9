"""Rows that a definition server would have written, put into Postgres by hand."""

from __future__ import annotations

import hashlib

from fennel_core.blueprints import stored_names
from fennel_core.blueprints.spec import Catalog
from fennel_core.connections.postgres import Pool


async def open_workspace(pool: Pool, workspace: str, token: str = "") -> None:
    """A workspace and, when given, a token that opens it."""
    async with pool.connection() as connection:
        await connection.execute(
            "INSERT INTO workspace (name) VALUES (%s) ON CONFLICT DO NOTHING", (workspace,)
        )
        if token:
            digest = hashlib.sha256(token.encode()).digest()
            await connection.execute(
                "INSERT INTO token (digest, workspace, role) VALUES (%s, %s, 'admin')",
                (digest, workspace),
            )


async def point_branch(
    pool: Pool, workspace: str, branch: str, commit: str, catalog: Catalog | None
) -> None:
    """Let `branch` point at a commit with `catalog` (None: at nothing yet)."""
    async with pool.connection() as connection, connection.transaction():
        if catalog is not None:
            await connection.execute(
                "INSERT INTO commit (id, workspace, branch, state, digest, request, "
                "options, catalog) "
                "VALUES (%s, %s, %s, 'done', %s, '', '{}', %s)",
                (commit, workspace, branch, commit, stored_names.dumps(catalog)),
            )
        await connection.execute(
            "INSERT INTO branch (workspace, name, target) VALUES (%s, %s, %s) ON "
            "CONFLICT (workspace, name) DO UPDATE SET target = %s",
            (
                workspace,
                branch,
                commit if catalog is not None else None,
                commit if catalog is not None else None,
            ),
        )
