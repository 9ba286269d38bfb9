"""Erased keys of a workspace, written by ingest and applied by ingest and query servers.

An erasure is permanent and belongs to a dataset's name, so it holds in every branch, in every later
version, and for rows that are logged again. It stores the values of the dataset's erase-key fields
as key bytes (`vocab.keys`), which all packages compute alike.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, LiteralString, cast

from fennel_core.connections.postgres import AsyncConnection, Pool, in_transaction
from fennel_core.vocab.ids import DatasetName, WorkspaceId

CHANNEL = "erasure"
"""NOTIFY channel; the payload is the workspace."""

ALL: Final[LiteralString] = (
    "SELECT workspace, dataset, columns, array_agg(key) FROM erasure GROUP BY 1, 2, 3"
)
OF_WORKSPACES: Final[LiteralString] = """
    SELECT workspace, dataset, columns, array_agg(key) FROM erasure WHERE workspace = ANY(%s)
    GROUP BY 1, 2, 3
"""

Erased = Mapping[DatasetName, "tuple[ErasedKeys, ...]"]
"""The erasures of one workspace."""


@dataclass(frozen=True, slots=True)
class ErasedKeys:
    """Erased values of one set of columns.

    A row is erased when the key bytes of its `columns` are in `keys`.
    """

    columns: tuple[str, ...]
    keys: frozenset[bytes]


@dataclass(frozen=True, slots=True)
class ErasableKeys:
    """The keys of a dataset as erasures see them: whose they are, and their columns in order."""

    workspace: WorkspaceId
    dataset: DatasetName
    columns: tuple[str, ...]


async def read(
    pool: Pool, workspace: WorkspaceId | None = None
) -> dict[WorkspaceId, dict[DatasetName, tuple[ErasedKeys, ...]]]:
    """Return all erasures, of one workspace or of all."""
    async with pool.connection() as connection:
        return await read_over(connection, None if workspace is None else (workspace,))


async def read_over(
    connection: AsyncConnection, workspaces: Collection[WorkspaceId] | None = None
) -> dict[WorkspaceId, dict[DatasetName, tuple[ErasedKeys, ...]]]:
    """Return the erasures of `workspaces`, or all, read over a given connection.

    Workspaces without erasures are absent.
    """
    cursor = await (
        connection.execute(ALL)
        if workspaces is None
        else connection.execute(OF_WORKSPACES, (list(workspaces),))
    )
    rows = await cursor.fetchall()
    found: dict[WorkspaceId, dict[DatasetName, tuple[ErasedKeys, ...]]] = {}
    for name, dataset, columns, keys in rows:
        of_dataset = found.setdefault(WorkspaceId(str(name)), {})
        erased = ErasedKeys(
            tuple(cast(list[str], columns)), frozenset(bytes(k) for k in cast(list[bytes], keys))
        )
        of_dataset[DatasetName(str(dataset))] = (
            *of_dataset.get(DatasetName(str(dataset)), ()),
            erased,
        )
    return found


async def add(
    pool: Pool,
    workspace: WorkspaceId,
    dataset: DatasetName,
    columns: Sequence[str],
    keys: Sequence[bytes],
) -> None:
    """Erase `keys` of `dataset` permanently; idempotent."""

    async def work(connection: AsyncConnection) -> None:
        await connection.execute(
            """
            WITH stamp AS (
                INSERT INTO ingest_clock AS c (workspace, hlc)
                VALUES (%(workspace)s, (extract(epoch FROM clock_timestamp()) * 1000)::bigint << 16)
                ON CONFLICT (workspace) DO UPDATE SET hlc = greatest(c.hlc + 1, excluded.hlc)
                    RETURNING hlc
            )
            INSERT INTO erasure (workspace, dataset, columns, key, hlc)
            SELECT %(workspace)s, %(dataset)s, %(columns)s, k, stamp.hlc FROM stamp,
                unnest(%(keys)s::bytea[]) k
            ON CONFLICT DO NOTHING""",
            {
                "workspace": workspace,
                "dataset": dataset,
                "columns": list(columns),
                "keys": list(keys),
            },
        )

    await in_transaction(pool, work)
