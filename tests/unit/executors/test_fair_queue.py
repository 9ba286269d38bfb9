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
    assert [queue.pop_allowed(bool) for _ in range(len(queue))] == ["a1", "b1", "c2", "a2", "a3"]
    assert queue.pop_allowed(bool) is None


def test_a_share_that_may_not_have_more_is_passed_over_and_keeps_its_turn() -> None:
    queue: FairQueue[str] = FairQueue()
    for item in ("a1", "a2", "b1", "b2"):
        queue.append(ord(item[0]), item)

    def not_a(item: str) -> bool:
        return item[0] != "a"

    assert [queue.pop_allowed(not_a) for _ in range(3)] == ["b1", "b2", None]
    assert [queue.pop_allowed(bool) for _ in range(2)] == ["a1", "a2"]


async def test_one_share_never_has_all_places() -> None:
    capacity = FairCapacity(3, per_share=2)
    for _ in range(2):
        await capacity.acquire(1)
    third = asyncio.create_task(capacity.acquire(1))
    await eventually(lambda: len(capacity._waiting) == 1)
    async with asyncio.timeout(10):
        await capacity.acquire(2)
    capacity.release(2)
    assert not third.done(), "the free place is not for the share that has two"
    capacity.release(1)
    async with asyncio.timeout(10):
        await third


async def test_places_go_to_waiting_shares_in_turn() -> None:
    capacity = FairCapacity(1, per_share=1)
    await capacity.acquire(0)
    order: list[str] = []

    async def use(name: str) -> None:
        await capacity.acquire(ord(name[0]))
        order.append(name)
        capacity.release(ord(name[0]))

    waiting = [asyncio.create_task(use(name)) for name in ("a1", "a2", "a3", "b1")]
    await eventually(lambda: len(capacity._waiting) == 4)
    waiting[1].cancel()
    capacity.release(0)
    await asyncio.gather(*waiting, return_exceptions=True)
    assert order == ["a1", "b1", "a3"]
    async with asyncio.timeout(10):
        await capacity.acquire(9)


async def test_a_place_granted_to_a_cancelled_call_is_passed_on() -> None:
    capacity = FairCapacity(1, per_share=1)
    await capacity.acquire(0)
    first = asyncio.create_task(capacity.acquire(1))
    await eventually(lambda: len(capacity._waiting) == 1)
    capacity.release(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    async with asyncio.timeout(10):
        await capacity.acquire(2)
