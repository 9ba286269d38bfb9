"""The cache of owners: what is read again, and what concurrent readers see."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest

from fennel_core.bank.wakeups import LONGEST_PAYLOAD, jobs_in, payload_of
from fennel_core.connections.api_errors import DatabaseUnavailable
from fennel_core.query.owners import Owners, Ownership, Parked
from fennel_core.vocab.ids import JobId, PartitionIndex
from tests.support.fake_slots import FakeRegistry
from tests.support.polling import eventually

A, B = JobId("shop.job.a.1"), JobId("shop.job.b.1")
FIRST = PartitionIndex(0)


@pytest.fixture
def registry() -> FakeRegistry:
    made = FakeRegistry()
    made.addresses |= {(A, FIRST): "/one", (B, FIRST): "/one"}
    return made


async def test_only_the_named_jobs_are_read_again(registry: FakeRegistry) -> None:
    owners = Owners(registry)
    await owners.reread(None)
    registry.addresses |= {(A, FIRST): "/two", (B, FIRST): "/two"}
    await owners.reread({A})
    assert registry.read_jobs == [None, {A}]
    assert owners.address((A, FIRST)) == "/two"
    assert owners.address((B, FIRST)) == "/one", "no notification named it"
    registry.parked[B, FIRST] = Parked("boom")
    del registry.addresses[B, FIRST]
    await owners.reread({B})
    assert owners.address((B, FIRST)) is None
    assert owners.parked((B, FIRST)) == Parked("boom")
    await owners.reread(None)
    assert owners.address((A, FIRST)) == "/two"


async def test_a_job_that_was_deleted_is_known_to_be_gone(registry: FakeRegistry) -> None:
    owners = Owners(registry)
    assert owners.knows(A), "nothing was read yet"
    await owners.reread({B})
    assert owners.knows(A), "it was not read yet"
    registry.destroyed.add(A)
    await owners.reread({A})
    assert not owners.knows(A)
    assert owners.knows(B)


async def test_a_read_of_other_jobs_does_not_count_for_a_caller_that_was_refused(
    registry: FakeRegistry,
) -> None:
    owners = Owners(registry)
    await owners.reread(None)
    seen = owners.epoch
    await owners.reread({B})
    registry.addresses[A, FIRST] = "/two"
    await owners.refresh(seen, {A})
    assert owners.address((A, FIRST)) == "/two"
    reads = registry.reads
    await owners.refresh(seen, {A, B})
    assert registry.reads == reads, "both were read since"


async def test_callers_at_the_same_time_share_a_read(registry: FakeRegistry) -> None:
    owners = Owners(registry)
    await asyncio.gather(*(owners.refresh(0, {job}) for job in (A, B) * 20))
    assert registry.reads <= 2, "one of what the first caller wanted, one of all others"


class HeldRegistry(FakeRegistry):
    """A registry whose reads see it as of their beginning, and end when the test lets them."""

    def __init__(self) -> None:
        super().__init__()
        self.ends = [asyncio.Event(), asyncio.Event()]
        self.ended = asyncio.Event()

    async def read_owners(self, jobs: Collection[JobId] | None = None) -> Ownership:
        found = await super().read_owners(jobs)
        await self.ends[self.reads - 1].wait()
        self.ended.set()
        return found


async def test_a_reread_waits_for_a_later_read_even_if_another_caller_begins_that() -> None:
    registry = HeldRegistry()
    registry.addresses[A, FIRST] = "/one"
    owners = Owners(registry)

    async def other_caller() -> None:
        await registry.ended.wait()
        await owners.refresh(owners.epoch, {B})

    older = asyncio.create_task(owners.refresh(0, {A}))
    other = asyncio.create_task(other_caller())
    await eventually(lambda: registry.reads == 1)
    registry.addresses[A, FIRST] = "/two"
    reread = asyncio.create_task(owners.reread({A}))
    await asyncio.sleep(0)
    registry.ends[0].set()
    await older
    await eventually(lambda: registry.reads == 2)
    for _ in range(10):
        await asyncio.sleep(0)
    assert not reread.done(), "the read that began after the call has not ended"
    registry.ends[1].set()
    await asyncio.gather(reread, other)
    assert owners.address((A, FIRST)) == "/two"


async def test_what_a_failed_read_should_have_covered_is_read_by_the_next_one(
    registry: FakeRegistry,
) -> None:
    owners = Owners(registry)
    await owners.reread(None)
    registry.unreachable = True
    with pytest.raises(DatabaseUnavailable):
        await owners.reread({A})
    registry.unreachable = False
    registry.addresses[A, FIRST] = "/two"
    await owners.reread({B})
    assert owners.address((A, FIRST)) == "/two"


async def test_after_many_reads_of_single_jobs_everything_is_read(
    registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs come and go; what is kept of them is bounded."""
    monkeypatch.setattr("fennel_core.query.owners.MOST_NEWER", 1)
    owners = Owners(registry)
    await owners.reread({A})
    await owners.reread({B})
    await owners.reread({B})
    assert registry.read_jobs == [{A}, {B}, None]
    assert not owners._newer


def test_a_payload_names_the_jobs_unless_they_are_too_many() -> None:
    assert jobs_in(payload_of([B, A, B])) == {A, B}
    many = [JobId(f"shop.job.{number:032}.1") for number in range(400)]
    assert len(payload_of(many[:100]).encode()) <= LONGEST_PAYLOAD
    assert jobs_in(payload_of(many)) is None
