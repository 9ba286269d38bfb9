"""Tokens are issued, rotated and revoked by id, and belong to their owner only."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import psycopg
import pytest
import pytest_asyncio

from fennel_core.connections import token_store, tokens, workspaces
from fennel_core.connections.api_errors import TokenNotFound, TokenRequestInvalid
from fennel_core.connections.postgres import Pool, pool
from fennel_core.connections.roles import Access, Role
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import WorkspaceId

SHOP, OTHER = WorkspaceId("shop"), WorkspaceId("other")


@dataclass
class Rules:
    dev_tokens: bool = False
    only_on_loopback: bool = True
    admin_digest: bytes | None = None


class Later:
    """A clock on which no cached result is usable."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 60.0
        return self.now


@pytest_asyncio.fixture
async def shop(database: str) -> AsyncIterator[Pool]:
    async with pool(database, name="test", size=3) as opened:
        await workspaces.create(opened, SHOP, lambda: "first")
        yield opened


async def opened_by(shop: Pool, token: str, later: Later) -> Access | str:
    """Return what a token opens, or the code of the refusal."""
    try:
        return await tokens.access_of(shop, Rules(), f"Bearer {token}", later)
    except ApiError as refused:
        return refused.code


async def role_of(shop: Pool, token: str, later: Later) -> str:
    found = await opened_by(shop, token, later)
    return found if isinstance(found, str) else found.role


async def test_a_token_has_the_role_that_it_was_issued_with(shop: Pool) -> None:
    later = Later()
    assert await role_of(shop, "first", later) == Role.ADMIN
    for role in (Role.QUERY, Role.LOG, Role.COMMIT, Role.ADMIN):
        made = await token_store.issue(shop, SHOP, role, f"a {role}", None)
        assert await role_of(shop, made.token, later) == role
    operator = await token_store.issue(shop, None, Role.OPERATOR, "ops", 3600)
    assert await role_of(shop, operator.token, later) == Role.OPERATOR
    listed = await token_store.list_tokens(shop, SHOP)
    assert [each.name for each in listed] == [
        *("first token", "a query", "a log", "a commit", "a admin")
    ]
    assert [each.name for each in await token_store.list_tokens(shop, None)] == ["ops"]


async def test_only_tokens_of_the_installation_have_the_role_operator(shop: Pool) -> None:
    for owner, role in ((SHOP, Role.OPERATOR), (None, Role.ADMIN)):
        with pytest.raises(psycopg.errors.CheckViolation):
            await token_store.issue(shop, owner, role, "", None)


async def test_a_rotated_token_works_until_the_overlap_ends(shop: Pool) -> None:
    later = Later()
    old = await token_store.issue(shop, SHOP, Role.LOG, "door", 7200.0)
    new = await token_store.rotate(shop, SHOP, old.id, 3600.0)
    assert [await role_of(shop, each.token, later) for each in (old, new)] == ["log", "log"]
    assert old.expires_at is not None
    assert new.expires_at is not None
    assert new.expires_at >= old.expires_at, "it has the lifetime of the old one"
    last = await token_store.rotate(shop, SHOP, new.id, 0.0)
    assert await role_of(shop, new.token, later) == "token-expired"
    assert await role_of(shop, last.token, later) == "log"
    ends = {each.id: each.expires_at for each in await token_store.list_tokens(shop, SHOP)}
    before = ends[old.id]
    assert before is not None
    assert before < old.expires_at, "the overlap ends before the old one expires by itself"


async def test_a_token_is_changed_by_its_owner_only(shop: Pool) -> None:
    await workspaces.create(shop, OTHER)
    made = await token_store.issue(shop, SHOP, Role.QUERY, "", None)
    for owner in (OTHER, None):
        with pytest.raises(TokenNotFound):
            await token_store.revoke(shop, owner, made.id)
        with pytest.raises(TokenNotFound):
            await token_store.rotate(shop, owner, made.id, 0.0)
    assert await role_of(shop, made.token, Later()) == "query"


async def test_a_revoked_token_ends_with_the_read_tokens_that_it_issued(shop: Pool) -> None:
    later = Later()
    made = await token_store.issue(shop, SHOP, Role.COMMIT, "ci", None)
    access = await opened_by(shop, made.token, later)
    assert isinstance(access, Access)
    read = await token_store.issue_read_token(shop, access)
    assert await role_of(shop, read.token, later) == "query"
    await token_store.revoke(shop, SHOP, made.id)
    for token in (made.token, read.token):
        assert await role_of(shop, token, later) == "token-unknown"
    with pytest.raises(TokenNotFound):
        await token_store.revoke(shop, SHOP, made.id)


async def test_a_read_token_issues_no_other_and_outlives_no_token(shop: Pool) -> None:
    later = Later()
    made = await token_store.issue(shop, SHOP, Role.QUERY, "", 60.0)
    access = await opened_by(shop, made.token, later)
    assert isinstance(access, Access)
    read = await token_store.issue_read_token(shop, access, 3600.0)
    assert (read.expires_at, made.expires_at) == (made.expires_at, made.expires_at)
    issued = await opened_by(shop, read.token, later)
    assert isinstance(issued, Access)
    with pytest.raises(TokenRequestInvalid, match="issues no other"):
        await token_store.issue_read_token(shop, issued)
    log = await opened_by(
        shop, (await token_store.issue(shop, SHOP, Role.LOG, "", None)).token, later
    )
    assert isinstance(log, Access)
    with pytest.raises(ApiError, match="this call needs `query`"):
        await token_store.issue_read_token(shop, log)


async def test_expired_read_tokens_are_removed_after_a_day(shop: Pool) -> None:
    access = Access(SHOP, Role.ADMIN, "development token dev-shop")
    await token_store.issue_read_token(shop, access, 0.0)
    async with shop.connection() as connection:
        await connection.execute(
            "UPDATE token SET expires_at = now() - interval '25 hours' WHERE is_read_token"
        )
    kept = await token_store.issue_read_token(shop, access, 60.0)
    listed = [each.id for each in await token_store.list_tokens(shop, SHOP) if each.is_read_token]
    assert listed == [kept.id]
    assert kept.expires_at is not None
    assert kept.expires_at.timestamp() > time.time()


async def test_requests_for_impossible_tokens_are_refused() -> None:
    with pytest.raises(TokenRequestInvalid, match="valid roles: query, log, commit, admin"):
        token_store.checked_role("operator", of_workspace=True)
    with pytest.raises(TokenRequestInvalid, match="valid roles: operator"):
        token_store.checked_role("admin", of_workspace=False)
    with pytest.raises(TokenRequestInvalid, match="between 0 and"):
        token_store.checked_seconds("lifetime_s", -1, 60)
    for name in ("x" * 101, "a\nb"):
        with pytest.raises(TokenRequestInvalid, match="printable"):
            token_store.checked_token_name(name)
