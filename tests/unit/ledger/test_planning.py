"""Previews read what exists and delay no commit."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import pytest

from fennel_core.bank.memory import MemoryBank
from fennel_core.ledger.planning import preview
from fennel_core.vocab.ids import MAIN_BRANCH
from tests.support.ledger_world import SHOP, World
from tests.support.toy_commits import toy


async def test_a_preview_takes_no_lock_and_no_number_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    await world.open()
    await world.commit("first", toy("orders"))
    before = world.ledger.state.copy()

    def refused(*_: Any) -> Awaitable[Any]:
        raise AssertionError("a preview takes no lock and no number")

    monkeypatch.setattr(MemoryBank, "lock", refused)
    monkeypatch.setattr(MemoryBank, "next_incarnation", refused)
    record = await preview(
        world.context(), SHOP, MAIN_BRANCH, toy("orders", "users"), backfill=True
    )
    assert {e.title for e in record.entries if e.action == "create"} >= {"users"}
    assert world.ledger.state == before
