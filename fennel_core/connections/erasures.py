"""Erased keys of a workspace, written by ingest and applied by ingest and query servers.

An erasure is permanent and belongs to a dataset's name, so it holds in every branch, in every later
version, and for rows that are logged again. It stores the values of the dataset's erase-key fields
as key bytes (`vocab.keys`), which all packages compute alike.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, LiteralString, cast

from fennel_core.connections.postgres import AsyncConnection, Pool, connection_of, in_transaction
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

COUNTS: Final[LiteralString] = (
    "SELECT workspace, dataset, count(*), max(id), jsonb_agg(DISTINCT to_jsonb(columns)) "
    "FROM erasure GROUP BY 1, 2 ORDER BY 1, 2"
)
NEWEST: Final[LiteralString] = "SELECT workspace, dataset, max(id) FROM erasure GROUP BY 1, 2"
NUMBERED: Final[LiteralString] = (
    "SELECT id, columns, key FROM erasure WHERE workspace = %s AND dataset = %s ORDER BY id"
)
LEFT: Final[LiteralString] = """
    SELECT count(*), min(created_at) FROM erasure e
    WHERE workspace = %(workspace)s AND dataset = %(dataset)s AND EXISTS (
        SELECT FROM unnest(%(searched_to)s::bigint[], %(min_stamps)s::bigint[])
            AS rows (searched_to, min_stamp)
        WHERE rows.searched_to < e.id AND rows.min_stamp < e.hlc
    )
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
class ErasureCount:
    """How many keys of a dataset are erased, the number of the last erasure, and the columns that
    they were erased by.

    Of one workspace, numbers grow in the order in which erasures become visible: each takes the row
    of the workspace's clock before its number.
    """

    workspace: WorkspaceId
    dataset: DatasetName
    keys: int
    newest: int
    columns: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class KeysLeft:
    """Erased keys of which rows may be left, and when the first of them was erased."""

    keys: int
    since: datetime | None


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


async def counts(pool: Pool) -> list[ErasureCount]:
    """Return every dataset with erased keys. Raises SystemUnavailable."""
    async with connection_of(pool) as connection:
        rows = await (await connection.execute(COUNTS)).fetchall()
    return [
        ErasureCount(
            WorkspaceId(str(workspace)),
            DatasetName(str(dataset)),
            cast(int, keys),
            cast(int, newest),
            tuple(tuple(each) for each in cast(list[list[str]], columns)),
        )
        for workspace, dataset, keys, newest, columns in rows
    ]


async def keys_left(pool: Pool, of: ErasureCount, stored: Collection[tuple[int, int]]) -> KeysLeft:
    """Return how many erased keys may have rows in files that are `stored`.

    `stored`: up to which erasure the rows of a file were searched, and the stamp before which none
    of them was accepted. Raises SystemUnavailable.
    """
    values = {
        "workspace": of.workspace,
        "dataset": of.dataset,
        "searched_to": [searched_to for searched_to, _ in stored],
        "min_stamps": [min_stamp for _, min_stamp in stored],
    }
    async with connection_of(pool) as connection:
        row = await (await connection.execute(LEFT, values)).fetchone()
    assert row is not None, "an aggregate has one row"
    return KeysLeft(cast(int, row[0]), cast("datetime | None", row[1]))


async def read_all(pool: Pool) -> dict[WorkspaceId, dict[DatasetName, tuple[ErasedKeys, ...]]]:
    """Return all erasures. Raises SystemUnavailable."""
    async with connection_of(pool) as connection:
        return await read_over(connection)


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


async def newest(pool: Pool) -> dict[tuple[WorkspaceId, DatasetName], int]:
    """Return the number of the last erasure of each dataset that has one.

    Raises SystemUnavailable.
    """
    async with connection_of(pool) as connection:
        rows = await (await connection.execute(NEWEST)).fetchall()
    return {
        (WorkspaceId(str(workspace)), DatasetName(str(dataset))): cast(int, number)
        for workspace, dataset, number in rows
    }


async def numbered(
    pool: Pool, workspace: WorkspaceId, dataset: DatasetName
) -> list[tuple[int, tuple[str, ...], bytes]]:
    """Return the erasures of a dataset in order: number, columns and key bytes.

    Raises SystemUnavailable.
    """
    async with connection_of(pool) as connection:
        rows = await (await connection.execute(NUMBERED, (workspace, dataset))).fetchall()
    return [
        (cast(int, number), tuple(cast(list[str], columns)), bytes(cast(bytes, key)))
        for number, columns, key in rows
    ]


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
