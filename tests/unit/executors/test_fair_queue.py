"""Shares take turns, whatever the length of their lines."""

from __future__ import annotations

import asyncio

import pytest

from fennel_core.executors.fair_queue import FairCapacity, FairQueue
from tests.support.polling import eventually


def test_shares_take_turns_and_the_items_of_one_keep_their_order() -> None:
    queue: FairQueue[str] = FairQueue()
    for item in ("a1", "a2", "a3", "b1", "c1", "c2"):
        queue.append(ord(item[0]), item)
    queue.discard(ord("c"), "c1")
    queue.discard(ord("z"), "z1")
    assert [queue.popleft() for _ in range(len(queue))] == ["a1", "b1", "c2", "a2", "a3"]
    with pytest.raises(IndexError):
        queue.popleft()


async def test_places_go_to_waiting_shares_in_turn() -> None:
    capacity = FairCapacity(1)
    await capacity.acquire(0)
    order: list[str] = []

    async def use(name: str) -> None:
        await capacity.acquire(ord(name[0]))
        order.append(name)
        capacity.release()

    waiting = [asyncio.create_task(use(name)) for name in ("a1", "a2", "a3", "b1")]
    await eventually(lambda: len(capacity._waiting) == 4)
    waiting[1].cancel()
    capacity.release()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert order == ["a1", "b1", "a3"]
    async with asyncio.timeout(10):
        await capacity.acquire(9)


async def test_a_place_granted_to_a_cancelled_call_is_passed_on() -> None:
    capacity = FairCapacity(1)
    await capacity.acquire(0)
    first = asyncio.create_task(capacity.acquire(1))
    await eventually(lambda: len(capacity._waiting) == 1)
    capacity.release()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    async with asyncio.timeout(10):
        await capacity.acquire(2)
