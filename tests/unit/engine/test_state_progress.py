"""The state hash and the cached reads from which it is computed."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from fennel_core.engine import state_progress
from fennel_core.engine.state_progress import NO_PROGRESS, CachedReads, StateProgress
from fennel_core.hangar.memory import MemoryHangar
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
