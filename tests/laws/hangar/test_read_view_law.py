"""A view shows the state at its beginning, whatever is written while it is open."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fennel_core.hangar.memory import MemoryHangar
from fennel_core.hangar.read_view import ReadView
from fennel_core.hangar.store import WriteBatch

keys = st.sampled_from([bytes([n, m]) for n in range(4) for m in range(4)])
entries = st.dictionaries(keys, st.binary(max_size=2))
bounds = st.sampled_from([b"", b"\x01", b"\x01\x02", b"\x03", b"\xff"])
batches = st.lists(
    st.tuples(entries, st.frozensets(keys)).map(
        lambda drawn: WriteBatch({k: v for k, v in drawn[0].items() if k not in drawn[1]}, drawn[1])
    ),
    max_size=5,
)


@given(entries, batches, bounds, bounds, st.booleans(), st.none() | st.integers(1, 6))
def test_a_view_reads_as_a_copy_made_at_its_beginning(
    before: dict[bytes, bytes],
    written: list[WriteBatch],
    start: bytes,
    stop: bytes,
    reverse: bool,
    limit: int | None,
) -> None:
    live, copy = MemoryHangar(before), MemoryHangar(before)
    view = ReadView(live)
    everything = [bytes([n, m]) for n in range(4) for m in range(4)]
    for batch in (WriteBatch(), *written):
        view.keep(batch)
        live.write(batch)
        assert view.get_many(everything) == copy.get_many(everything)
        assert view.scan(start, stop, reverse=reverse, limit=limit) == copy.scan(
            start, stop, reverse=reverse, limit=limit
        )
