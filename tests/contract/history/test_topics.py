"""Which versions decide for how long requests are kept, in a real Postgres."""

from __future__ import annotations

from dataclasses import replace

from fennel_core.blueprints import stored_names
from fennel_core.blueprints.spec import Catalog, DatasetView
from fennel_core.connections.postgres import Pool, pool
from fennel_core.history.topics import HistoryTopics
from tests.support import ingest_world


def catalog(history_us: int) -> Catalog:
    source = ingest_world.binding()
    view = DatasetView(
        source.dataset, 1, source.schema, source.topic, None, True, True, (), True, history_us
    )
    return replace(ingest_world.catalog(source), datasets=(view,))


async def add_version(
    connections: Pool, id_: str, history_us: int, *, branch: str | None = None, open_: bool = False
) -> None:
    async with connections.connection() as connection:
        await connection.execute(
            "INSERT INTO workspace (name) VALUES ('w') ON CONFLICT (name) DO NOTHING"
        )
        await connection.execute(
            "INSERT INTO commit (id, workspace, branch, state, digest, options, catalog, "
            "finished_at) VALUES (%s, 'w', 'main', '', '', '{}', %s, "
            "CASE WHEN %s THEN NULL ELSE now() END)",
            (id_, stored_names.dumps(catalog(history_us)), open_),
        )
        if branch is not None:
            await connection.execute(
                "INSERT INTO branch (workspace, name, target, serving) VALUES ('w', %s, %s, %s)",
                (branch, id_, id_),
            )


async def test_versions_of_branches_and_of_running_commits_keep_requests(database: str) -> None:
    raw = ingest_world.binding().raw_topic
    async with pool(database, name="test", size=2) as connections:
        topics = HistoryTopics(connections)
        assert await topics.request_history_us() == {}
        await add_version(connections, "former", 99)
        assert await topics.request_history_us() == {}
        await add_version(connections, "main", 5, branch="main")
        assert await topics.request_history_us() == {raw: 5}
        await add_version(connections, "running", 7, open_=True)
        assert await topics.request_history_us() == {raw: 7}
