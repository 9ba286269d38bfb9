"""A repeated commit with `allow_data_loss` confirms retention in a workspace that is older."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.support.definition_world import CommitServerWorld, recorded, request
from tests.support.ledger_world import SHOP

FEATURES = recorded("featuresets")


@pytest.mark.parametrize("retention", [True, False])
async def test_a_repeated_commit_confirms_retention_of_an_older_workspace_once(
    retention: bool,
) -> None:
    server = await CommitServerWorld.open()
    server.steps.context = replace(server.steps.context, history_retention=retention)
    asked = request(FEATURES)
    confirmed = replace(asked, options=replace(asked.options, allow_data_loss=True))
    await server.commits.commit(confirmed)
    server.world.ledger.state.keeping_old_rows.add(SHOP)
    both = [report.lines for report in [await server.commits.commit(confirmed) for _ in range(2)]]
    told = ["the workspace is older than retention" in "".join(lines) for lines in both]
    assert told == [retention, False]
    assert both[1][0].startswith("nothing to do")
    assert len(server.states) == 1 + retention
    assert (SHOP in server.world.ledger.state.keeping_old_rows) is not retention


async def test_a_repeated_commit_that_confirms_nothing_is_that_commit() -> None:
    server = await CommitServerWorld.open()
    server.steps.context = replace(server.steps.context, history_retention=True)
    await server.commits.commit(request(FEATURES))
    server.world.ledger.state.keeping_old_rows.add(SHOP)
    (line,) = (await server.commits.commit(request(FEATURES))).lines
    assert line.startswith("nothing to do")
    assert SHOP in server.world.ledger.state.keeping_old_rows


async def test_a_commit_that_is_sent_twice_at_once_confirms_once() -> None:
    server = await CommitServerWorld.open()
    server.steps.context = replace(server.steps.context, history_retention=True)
    await server.commits.commit(request(FEATURES))
    server.world.ledger.state.keeping_old_rows.add(SHOP)
    asked = request(FEATURES)
    confirmed = replace(asked, options=replace(asked.options, allow_data_loss=True))
    await asyncio.gather(*(server.commits.commit(confirmed) for _ in range(3)))
    assert len(server.states) == 2
