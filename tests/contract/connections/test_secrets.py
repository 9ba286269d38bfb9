"""Secrets are sealed before they reach the database, and open only where they belong."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from fennel_core.connections import secrets, workspaces
from fennel_core.connections.errors import SystemUnavailable
from fennel_core.connections.postgres import Pool, pool
from fennel_core.vocab.ids import WorkspaceId

SHOP, BANK = WorkspaceId("shop"), WorkspaceId("bank")


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    secrets.make_key_file(tmp_path / "key")
    return tmp_path / "key"


@pytest_asyncio.fixture
async def open_pool(database: str) -> AsyncIterator[Pool]:
    async with pool(database, name="test", size=2) as opened:
        await workspaces.create(opened, SHOP)
        await workspaces.create(opened, BANK)
        yield opened


async def test_a_secret_is_set_changed_listed_and_removed(open_pool: Pool, key_file: Path) -> None:
    sealer = secrets.Sealer.from_file(key_file)
    assert await secrets.get(open_pool, sealer, SHOP, "api.openai.com") is None
    await secrets.put(open_pool, sealer, SHOP, "api.openai.com", "first")
    await secrets.put(open_pool, sealer, SHOP, "api.openai.com", "sécond")
    assert await secrets.get(open_pool, sealer, SHOP, "api.openai.com") == "sécond"
    assert await secrets.get(open_pool, sealer, BANK, "api.openai.com") is None
    assert await secrets.names(open_pool, SHOP) == ("api.openai.com",)
    assert await secrets.delete(open_pool, SHOP, "api.openai.com")
    assert not await secrets.delete(open_pool, SHOP, "api.openai.com")


async def test_the_database_never_sees_the_value(open_pool: Pool, key_file: Path) -> None:
    await secrets.put(open_pool, secrets.Sealer.from_file(key_file), SHOP, "k", "hunter2-hunter2")
    async with open_pool.connection() as connection:
        row = await (await connection.execute("SELECT secret::text, sealed FROM secret")).fetchone()
    assert row is not None
    assert "hunter2" not in str(row[0])
    assert b"hunter2" not in bytes(row[1])


@pytest.mark.parametrize(("workspace", "name"), [(BANK, "k"), (SHOP, "other")])
async def test_a_row_copied_to_another_workspace_or_name_does_not_open(
    open_pool: Pool, key_file: Path, workspace: WorkspaceId, name: str
) -> None:
    sealer = secrets.Sealer.from_file(key_file)
    await secrets.put(open_pool, sealer, SHOP, "k", "value")
    async with open_pool.connection() as connection:
        await connection.execute(
            "INSERT INTO secret (workspace, name, sealed) SELECT %s, %s, sealed FROM secret",
            (workspace, name),
        )
    with pytest.raises(secrets.SecretUnreadable, match="copied"):
        await secrets.get(open_pool, sealer, workspace, name)


async def test_a_key_is_changed_without_losing_a_secret(
    open_pool: Pool, key_file: Path, tmp_path: Path
) -> None:
    await secrets.put(open_pool, secrets.Sealer.from_file(key_file), SHOP, "k", "value")
    secrets.make_key_file(tmp_path / "new")
    old, new = key_file.read_text(), (tmp_path / "new").read_text()
    with pytest.raises(secrets.SecretUnreadable, match="another key"):
        await secrets.get(open_pool, secrets.Sealer.from_file(tmp_path / "new"), SHOP, "k")
    key_file.write_text(new + old)
    assert await secrets.reseal(open_pool, secrets.Sealer.from_file(key_file)) == 1
    assert (
        await secrets.get(open_pool, secrets.Sealer.from_file(tmp_path / "new"), SHOP, "k")
        == "value"
    )


def test_a_key_file_that_others_may_read_is_refused(key_file: Path) -> None:
    assert key_file.stat().st_mode & 0o777 == 0o600
    key_file.chmod(0o640)
    with pytest.raises(secrets.SecretUnreadable, match="0640"):
        secrets.Sealer.from_file(key_file)


@pytest.mark.parametrize(
    ("content", "text"), [("", "empty"), ("short", "32 bytes"), (None, "cannot be read")]
)
def test_a_malformed_key_file_is_reported(tmp_path: Path, content: str | None, text: str) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_text(content)
        path.chmod(0o600)
    with pytest.raises(secrets.SecretUnreadable, match=text):
        secrets.Sealer.from_file(path)


def test_a_key_is_never_overwritten(key_file: Path) -> None:
    with pytest.raises(FileExistsError):
        secrets.make_key_file(key_file)


def test_neither_key_nor_value_is_in_a_representation(key_file: Path) -> None:
    sealer = secrets.Sealer.from_file(key_file)
    assert key_file.read_text().strip() not in repr(sealer)


async def test_a_secret_that_cannot_be_read_is_reported_as_an_unavailable_system(
    open_pool: Pool, key_file: Path
) -> None:
    await open_pool.close()
    with pytest.raises(SystemUnavailable):
        await secrets.get(open_pool, secrets.Sealer.from_file(key_file), SHOP, "some")
