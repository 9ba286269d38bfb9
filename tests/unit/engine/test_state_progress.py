"""The state hash and the cached reads from which it is computed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fennel_core.engine import state_progress
from fennel_core.engine.state_progress import (
    NO_PROGRESS,
    CachedReads,
    PartitionState,
    StateProgress,
)
from fennel_core.hangar import read_view, store
from fennel_core.hangar.memory import MemoryHangar
from fennel_core.hangar.store import WriteBatch
from fennel_core.operators.step import Outcome
from fennel_core.vocab.ids import Epoch, Offset

KEYS = st.sampled_from([b"a", b"b", b"c", b"d"])
OUTCOMES = st.builds(
    lambda puts, deletes: Outcome(puts, frozenset(deletes) - puts.keys()),
    st.dictionaries(KEYS, st.binary(max_size=3)),
    st.sets(KEYS),
)


class CountingHangar(MemoryHangar):
    """Counts the keys that are read."""

    read_keys = 0

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self.read_keys += len(keys)
        return super().get_many(keys)


@given(st.lists(OUTCOMES, max_size=6), st.sets(KEYS))
def test_the_state_hash_depends_on_content_alone(
    outcomes: list[Outcome], read_before: set[bytes]
) -> None:
    hangar, state_hash = MemoryHangar(), NO_PROGRESS.state_hash
    for outcome in outcomes:
        reads = CachedReads(hangar)
        reads.get_many(sorted(read_before))
        state_hash = state_progress.updated_state_hash(reads, state_hash, outcome)
        hangar.write(
            state_progress.write_batch(
                StateProgress(1, Offset(0), {}, state_hash, Epoch(1)), outcome
            )
        )
    content = dict(hangar.scan(b"a", b"e"))
    assert state_hash == state_progress.updated_state_hash(
        MemoryHangar(), NO_PROGRESS.state_hash, Outcome(content)
    )


def test_keys_that_the_step_has_read_are_not_read_again() -> None:
    hangar = CountingHangar({b"a": b"1", b"b": b"2"})
    reads = CachedReads(hangar)
    assert reads.get_many([b"a", b"x", b"a"]) == [b"1", None, b"1"]
    read_keys = hangar.read_keys
    state_progress.updated_state_hash(reads, 0, Outcome({b"a": b"3", b"x": b"4"}))
    assert hangar.read_keys == read_keys
    state_progress.updated_state_hash(reads, 0, Outcome({b"b": b"3"}))
    assert hangar.read_keys == read_keys + 1


class SlowToStage(MemoryHangar):
    """Stages a batch until the event loop has renewed its lease a few times."""

    def __init__(self) -> None:
        super().__init__()
        self.renewed, self.staged = threading.Semaphore(0), 0

    def stage(self, batch: WriteBatch) -> None:
        self.staged += 1
        for _ in range(3):
            assert self.renewed.acquire(timeout=60), "the event loop is held"


async def test_a_lease_is_renewed_and_the_state_is_read_while_a_large_batch_is_staged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state_progress, "LARGE_BATCH_KEYS", 3)
    hangar = SlowToStage()
    state = PartitionState(hangar, Epoch(1))

    async def renewals() -> None:
        while True:
            assert hangar.get_many([b"a", b"b"]) in ([None, None], [b"1", b"2"])
            hangar.renewed.release()
            await asyncio.sleep(0.001)  # the interval of renewals: without them staging never ends

    small = Outcome(puts={b"x": b"1"}, deletes=frozenset([b"y"]))
    await state.apply(1, small, 0, {}, Offset(0))
    assert not hangar.staged
    renewing = asyncio.create_task(renewals())
    large = Outcome(puts={b"a": b"1", b"b": b"2"}, deletes=frozenset([b"c"]))
    applying = asyncio.create_task(state.apply(2, large, 0, {}, Offset(0)))
    await asyncio.wait([applying])
    renewing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await renewing
    await applying
    assert (hangar.staged, state.progress.iteration) == (1, 2)
    assert hangar.get_many([b"a"]) == [b"1"]


class MeasuredReads(MemoryHangar):
    """Records the largest number of keys of one read."""

    largest = 0

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self.largest = max(self.largest, len(keys))
        return super().get_many(keys)


async def test_open_views_keep_a_large_batch_in_slices_between_which_others_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state_progress, "LARGE_BATCH_KEYS", 3)
    monkeypatch.setattr(read_view, "KEEP_KEYS", 5)
    hangar = MeasuredReads()
    keys = [b"%03d" % number for number in range(100)]
    hangar.write(WriteBatch(dict.fromkeys(keys, b"old")))
    state = PartitionState(hangar, Epoch(1))
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    with state.view() as first:
        hangar.largest, running = 0, asyncio.create_task(others())
        batch = Outcome(puts=dict.fromkeys(keys[:80], b"new"), deletes=frozenset(keys[80:]))
        await state.apply(1, batch, 0, {}, Offset(0))
        running.cancel()
        assert hangar.largest <= 5
        assert turns >= 100 / 5
        assert first.get_many(keys) == [b"old"] * 100
        assert first.scan(b"0", b"1") == [(key, b"old") for key in keys]
    assert hangar.get_many(keys) == [b"new"] * 80 + [None] * 20


@given(st.lists(st.binary(max_size=3), unique=True), st.integers(1, 4))
def test_keys_are_in_order_in_how_many_parts_they_are_sorted(keys: list[bytes], part: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "SORTED_TOGETHER", part)
        assert list(store.in_order(keys)) == sorted(keys)
