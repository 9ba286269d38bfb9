"""Tokens open exactly their workspace: at once when new, and under a second after its deletion."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import psycopg
import pytest
import pytest_asyncio
from pydantic import SecretStr

from fennel_core.connections import token_store, tokens, workspaces
from fennel_core.connections.api_errors import TokenExpired
from fennel_core.connections.postgres import Pool, pool
from fennel_core.connections.roles import Role
from fennel_core.connections.tokens import TokenSettings
from fennel_core.settings.model import Settings
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import WorkspaceId
from tests.support.polling import eventually


@dataclass
class Rules:
    dev_tokens: bool = False
    only_on_loopback: bool = True
    admin_digest: bytes | None = None


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@pytest_asyncio.fixture
async def open_pool(database: str) -> AsyncIterator[Pool]:
    async with pool(database, name="test", size=3) as opened:
        yield opened


async def _workspace(
    opened: Pool, rules: Rules, header: str | None, clock: Callable[[], float] = time.monotonic
) -> WorkspaceId | None:
    return (await tokens.access_of(opened, rules, header, clock)).workspace


async def _refusal(
    opened: Pool, rules: TokenSettings, header: str | None, clock: Clock | None = None
) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await _workspace(opened, rules, header, clock or Clock())
    return caught.value


async def test_a_token_opens_its_workspace_which_was_made_with_branch_main(open_pool: Pool) -> None:
    token = await workspaces.create(open_pool, "shop")
    assert await _workspace(open_pool, Rules(), f"Bearer {token}") == "shop"
    assert await _workspace(open_pool, Rules(), f"bearer  {token} ") == "shop"
    async with open_pool.connection() as connection:
        rows = await (
            await connection.execute("SELECT name, target FROM branch WHERE workspace = 'shop'")
        ).fetchall()
    assert rows == [("main", None)]


@pytest.mark.parametrize("header", [None, "", "Bearer ", "Basic abc", "Bearer"])
async def test_a_request_without_a_bearer_token_is_refused_without_a_database_query(
    header: str | None,
) -> None:
    closed = pool("postgresql://nobody@127.0.0.1:1/none", name="test")
    assert (await _refusal(closed, Rules(), header)).code == "unauthenticated"


async def test_a_wrong_token_opens_nothing_and_is_not_remembered_when_it_becomes_right(
    open_pool: Pool,
) -> None:
    refused = await _refusal(open_pool, Rules(), "Bearer not-yet")
    assert (refused.status, refused.code) == (401, "token-unknown")
    await workspaces.create(open_pool, "late", lambda: "not-yet")
    assert await _workspace(open_pool, Rules(), "Bearer not-yet") == "late"


async def test_the_token_itself_is_nowhere_in_the_database(open_pool: Pool) -> None:
    token = await workspaces.create(open_pool, "shop")
    async with open_pool.connection() as connection:
        row = await (await connection.execute("SELECT digest FROM token")).fetchone()
    assert row is not None
    assert token.encode() not in bytes(row[0])


async def test_a_deleted_workspaces_token_stops_working_within_a_second(open_pool: Pool) -> None:
    clock, header = Clock(), f"Bearer {await workspaces.create(open_pool, 'shop')}"
    await _workspace(open_pool, Rules(), header, clock)
    await workspaces.mark_deleting(open_pool, "shop")
    clock.now += 1.0
    assert (await _refusal(open_pool, Rules(), header, clock)).code == "token-unknown"


async def test_a_busy_server_learns_of_the_end_beside_its_requests(open_pool: Pool) -> None:
    clock, header = Clock(), f"Bearer {await workspaces.create(open_pool, 'shop')}"
    await _workspace(open_pool, Rules(), header, clock)
    await workspaces.mark_deleting(open_pool, "shop")
    clock.now += tokens.FRESH_SECONDS + 0.1
    assert await _workspace(open_pool, Rules(), header, clock) == "shop", (
        "the cached result is used while the token is read again"
    )

    async def refused() -> bool:
        try:
            await _workspace(open_pool, Rules(), header, clock)
        except ApiError:
            return True
        return False

    await eventually(refused)
    assert (await _refusal(open_pool, Rules(), header, clock)).code == "token-unknown"


async def test_a_dev_token_makes_its_workspace_once_however_many_ask(open_pool: Pool) -> None:
    rules = Rules(dev_tokens=True)
    found = await asyncio.gather(
        *(_workspace(open_pool, rules, "Bearer dev-alice") for _ in range(8))
    )
    assert set(found) == {"alice"}
    assert [each.name for each in await workspaces.list_all(open_pool)] == ["alice"]


@pytest.mark.parametrize(
    "rules", [Rules(dev_tokens=False), Rules(dev_tokens=True, only_on_loopback=False)]
)
async def test_a_dev_token_opens_nothing_when_off_or_not_on_loopback(
    open_pool: Pool, rules: Rules
) -> None:
    assert (await _refusal(open_pool, rules, "Bearer dev-alice")).code == "token-unknown"
    assert await workspaces.list_all(open_pool) == ()


async def test_a_dev_token_of_a_workspace_that_is_being_deleted_is_refused(open_pool: Pool) -> None:
    rules, clock = Rules(dev_tokens=True), Clock()
    await _workspace(open_pool, rules, "Bearer dev-alice", clock)
    await workspaces.mark_deleting(open_pool, "alice")
    clock.now += tokens.USABLE_SECONDS
    assert (await _refusal(open_pool, rules, "Bearer dev-alice", clock)).status == 401


@pytest.mark.parametrize("name", ["", "Shop", "a.b", "a/b", "x" * 64, "a_b", "a\n"])
async def test_a_name_that_cannot_be_part_of_a_topic_is_refused(open_pool: Pool, name: str) -> None:
    with pytest.raises(ApiError, match="1 to 63") as caught:
        await workspaces.create(open_pool, name)
    assert caught.value.code == "workspace-name"


async def test_a_workspace_is_made_once(open_pool: Pool) -> None:
    await workspaces.create(open_pool, "shop")
    with pytest.raises(ApiError) as caught:
        await workspaces.create(open_pool, "shop")
    assert (caught.value.status, caught.value.code) == (409, "workspace-exists")


async def test_an_unreachable_database_is_not_a_wrong_token(open_pool: Pool) -> None:
    await open_pool.close()
    refused = await _refusal(open_pool, Rules(), "Bearer x")
    assert (refused.status, refused.code) == (503, "database-unavailable")


async def test_a_cached_token_is_served_while_postgres_is_unreachable_and_then_checked_again(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    async with pool(database, name="test", size=3) as opened:
        header = f"Bearer {await workspaces.create(opened, 'shop')}"
        assert await _workspace(opened, Rules(), header, clock) == "shop"
        reads = 0
        find = tokens._find

        async def unreachable(*_: object) -> None:
            nonlocal reads
            reads += 1
            raise psycopg.OperationalError("no route to host")

        monkeypatch.setattr(tokens, "_find", unreachable)
        for _ in range(5):
            clock.now += 120.0
            assert await _workspace(opened, Rules(), header, clock) == "shop"
            await asyncio.sleep(0)
        assert reads >= 2, "it goes on reading"
        await workspaces.mark_deleting(opened, "shop")
        monkeypatch.setattr(tokens, "_find", find)

        async def refused() -> bool:
            clock.now += 1.0
            try:
                await _workspace(opened, Rules(), header, clock)
            except ApiError as error:
                return error.code == "token-unknown"
            return False

        await eventually(refused)


async def test_a_database_that_hangs_holds_the_first_request_only(
    open_pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, header = Clock(), f"Bearer {await workspaces.create(open_pool, 'shop')}"
    await _workspace(open_pool, Rules(), header, clock)
    monkeypatch.setattr(tokens, "WAIT_SECONDS", 0.01)
    held = asyncio.Event()

    async def hang(*_: object) -> None:
        await held.wait()

    monkeypatch.setattr(tokens, "_find", hang)
    clock.now += 120.0
    assert await _workspace(open_pool, Rules(), header, clock) == "shop"
    monkeypatch.setattr(tokens, "WAIT_SECONDS", 3600.0)
    async with asyncio.timeout(10):
        assert await _workspace(open_pool, Rules(), header, clock) == "shop"
    held.set()


async def test_a_burst_of_requests_with_one_token_is_one_read(
    open_pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, header = Clock(), f"Bearer {await workspaces.create(open_pool, 'shop')}"
    reads, find = 0, tokens._find

    async def counted(source: Pool, digest: bytes) -> tokens._Found | None:
        nonlocal reads
        reads += 1
        return await find(source, digest)

    monkeypatch.setattr(tokens, "_find", counted)
    for _ in range(2):
        clock.now += 120.0
        found = await asyncio.gather(
            *(_workspace(open_pool, Rules(), header, clock) for _ in range(50))
        )
        assert set(found) == {"shop"}
    assert reads == 2


async def test_the_cache_evicts_the_oldest_tokens_and_loses_no_other(
    open_pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "KEPT_TOKENS", 2)
    clock = Clock()
    made = [f"Bearer {await workspaces.create(open_pool, f'shop-{n}')}" for n in range(4)]
    for turn in range(3):
        clock.now += tokens.FRESH_SECONDS
        found = await asyncio.gather(
            *(_workspace(open_pool, Rules(), header, clock) for header in made)
        )
        assert found == [f"shop-{n}" for n in range(4)], turn
    assert len(tokens._caches[open_pool].known) == 2


@pytest.mark.parametrize(
    ("expected", "given", "passes"),
    [("s3cret", "s3cret", True), ("s3cret", "s3cre", False), ("", "anything", False)],
)
async def test_the_token_of_the_setting_is_an_operators(
    open_pool: Pool, expected: str, given: str, passes: bool
) -> None:
    rules = Settings(admin_token=SecretStr(expected))
    if passes:
        access = await tokens.access_of(open_pool, rules, f"Bearer {given}")
        assert (access.role, access.workspace) == (Role.OPERATOR, None)
    else:
        assert (await _refusal(open_pool, rules, f"Bearer {given}")).code == "token-unknown"


async def test_the_last_use_is_written_once_a_minute_and_no_request_waits_for_it(
    open_pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, header = Clock(), f"Bearer {await workspaces.create(open_pool, 'shop')}"
    held, writes, write_use = asyncio.Event(), 0, tokens._write_use

    async def counted(source: Pool, digest: bytes) -> None:
        nonlocal writes
        writes += 1
        await held.wait()
        await write_use(source, digest)

    monkeypatch.setattr(tokens, "_write_use", counted)
    for _ in range(2):
        clock.now += tokens.USABLE_SECONDS
        assert await _workspace(open_pool, Rules(), header, clock) == "shop"
    await eventually(lambda: writes == 2)
    assert (await token_store.list_tokens(open_pool, WorkspaceId("shop")))[0].last_used_at is None
    held.set()

    async def written() -> bool:
        (row,) = await token_store.list_tokens(open_pool, WorkspaceId("shop"))
        return row.last_used_at is not None and not tokens._caches[open_pool].writes

    await eventually(written)
    (first,) = await token_store.list_tokens(open_pool, WorkspaceId("shop"))
    clock.now += tokens.USABLE_SECONDS
    assert await _workspace(open_pool, Rules(), header, clock) == "shop"
    assert writes == 2, "the use that was written is not a minute old"
    await write_use(open_pool, workspaces.digest_of(header.removeprefix("Bearer ")))
    assert (await token_store.list_tokens(open_pool, WorkspaceId("shop"))) == (first,)


async def test_a_token_expires_even_while_postgres_is_unreachable(
    open_pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    await workspaces.create(open_pool, "shop")
    made = await token_store.issue(open_pool, WorkspaceId("shop"), Role.QUERY, "notebook", 60.0)
    assert made.expires_at is not None
    ends, header, clock = made.expires_at.timestamp(), f"Bearer {made.token}", Clock()
    access = await tokens.access_of(open_pool, Rules(), header, clock, lambda: ends - 1)
    assert (access.workspace, access.role) == ("shop", Role.QUERY)

    async def unreachable(*_: object) -> None:
        raise psycopg.OperationalError("no route to host")

    monkeypatch.setattr(tokens, "_find", unreachable)
    clock.now += 120.0
    await tokens.access_of(open_pool, Rules(), header, clock, lambda: ends - 1)
    with pytest.raises(TokenExpired, match="notebook"):
        await tokens.access_of(open_pool, Rules(), header, clock, lambda: ends)
