"""Compare a copy of the live state with its newest snapshot, replayed to the copy's position.

Theory. Every state has a hash of itself that is maintained entry by entry as it is written
(`engine.state_progress`). A drill checks three things by comparing hashes: whether the live state
holds what was written to it, whether the snapshot does, and whether the snapshot, with the records
after it replayed as a recovery would, produces the live state. The copy of the live state is atomic
and carries its own position, so both are compared at the same position without stopping anything.
Where the layout of a state depends on how rows were divided into batches, which no marker records,
the served rows are compared instead of the bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from fennel_core.engine import state_progress
from fennel_core.engine.backfill.errors import BackfillCorrupt
from fennel_core.engine.errors import LogTruncated, StateFormatError, StateUnusable
from fennel_core.engine.runner import Runner
from fennel_core.engine.state_progress import STATE_FORMAT, StateProgress
from fennel_core.hangar.store import Hangar, HangarCorrupt
from fennel_core.operators.build import is_order_deterministic
from fennel_core.operators.step import StateReader
from fennel_core.snapshots import transfer
from fennel_core.snapshots.drills import DrillFinding, DrillVerdict
from fennel_core.snapshots.errors import SnapshotCorrupt
from fennel_core.snapshots.store import Pointer
from fennel_core.snapshots.transfer import SnapshotContext
from fennel_core.vocab.ids import Micros

FAR: Final = Micros(2**53)
"""Later than every event: the year 2255."""
CHANGES: Final = 64
"""How many changes of each key's served row are compared where bytes cannot be."""
Opener = Callable[[Path], Hangar]


async def drill_partition(
    context: SnapshotContext,
    pointer: Pointer,
    live: StateReader,
    scratch: Path,
    opener: Opener,
    runner_over: Callable[[Hangar], Runner],
) -> DrillFinding:
    """Return the finding of a drill.

    `live`: a copy of the live state that nothing writes. `scratch`: a new folder for the snapshot.
    `runner_over`: makes a runner that replays a copy. Raises SystemUnavailable and BrokerError,
    which say nothing about the state.
    """
    try:
        known = state_progress.load(live)
        held = state_progress.computed_state_hash(live)
    except (HangarCorrupt, StateFormatError) as wrong:
        return DrillFinding(DrillVerdict.CORRUPT, f"the live state cannot be read: {wrong}")
    if held != known.state_hash:
        detail = (
            "the live state holds other entries than were written to it (the second hash was "
            "maintained as they were written)"
        )
        return DrillFinding(DrillVerdict.DIFFERS, detail, _hex(held), _hex(known.state_hash))
    name = f"snapshot #{pointer.number}"
    try:
        await transfer.download_snapshot(context, pointer, STATE_FORMAT, scratch)
        restored = opener(scratch)
    except (SnapshotCorrupt, HangarCorrupt) as wrong:
        return DrillFinding(DrillVerdict.CORRUPT, f"{name} cannot be used: {wrong}")
    try:
        return await _compare_replayed(name, live, known, restored, runner_over)
    except (HangarCorrupt, StateFormatError) as wrong:
        return DrillFinding(DrillVerdict.CORRUPT, f"{name} cannot be used: {wrong}")
    finally:
        restored.close()


async def _compare_replayed(
    name: str,
    live: StateReader,
    known: StateProgress,
    restored: Hangar,
    runner_over: Callable[[Hangar], Runner],
) -> DrillFinding:
    begun, held = state_progress.load(restored), state_progress.computed_state_hash(restored)
    if held != begun.state_hash:
        detail = (
            f"{name} holds other entries than were written to the state it copied (the first "
            "hash was maintained as they were written)"
        )
        return DrillFinding(DrillVerdict.CORRUPT, detail, _hex(begun.state_hash), _hex(held))
    if not state_progress.position_of(known).covers(state_progress.position_of(begun)):
        return DrillFinding(DrillVerdict.SKIPPED, f"the live state has not reached {name} yet")
    runner = runner_over(restored)
    try:
        reached = await runner.replay_copy(known)
    except StateUnusable as wrong:
        stopped = state_progress.load(restored)
        return DrillFinding(
            DrillVerdict.DIFFERS,
            f"{name} cannot be replayed: {wrong}",
            _hex(known.state_hash),
            _hex(stopped.state_hash),
        )
    except (LogTruncated, BackfillCorrupt) as gone:
        return DrillFinding(
            DrillVerdict.LOST,
            f"{name} cannot be replayed to the position of the live state: {gone}",
        )
    ours, theirs = _hex(known.state_hash), _hex(reached.state_hash)
    if (
        ours != theirs
        and not runner.job.outputs
        and runner.step is not None
        and not is_order_deterministic(runner.step)
    ):
        ours, theirs = (_served_digest(runner.step, reads) for reads in (live, restored))
    both = (
        f"{name} and {sum(reached.offsets.values()) - sum(begun.offsets.values())} records after it"
    )
    if ours == theirs:
        return DrillFinding(DrillVerdict.AGREES, f"{both} produce the live state", ours, theirs)
    return DrillFinding(
        DrillVerdict.DIFFERS,
        f"{both} produce another state: {_difference(live, restored)}",
        ours,
        theirs,
    )


def _served_digest(step: Any, reads: StateReader) -> str:
    """Return a digest of the served rows: per key, after every event and before its last changes.

    A row carries the time of the last change at or before the requested time, so the loop walks
    back in time.
    """
    found = hashlib.blake2b(digest_size=16)
    rows = [row for page in step.row_pages(reads, FAR, 2**31) for row in page]
    for _ in range(CHANGES):
        for key, row in sorted(rows):
            found.update(len(key).to_bytes(4, "big") + key + len(row).to_bytes(4, "big") + row)
        before = {key: Micros(msgspec.msgpack.decode(row)[0] - 1) for key, row in rows}
        served = zip(before, step.lookup(reads, list(before), list(before.values())), strict=True)
        rows = [(key, row) for key, row in served if row is not None]
        if not rows:
            break
    return found.hexdigest()


def _difference(live: StateReader, restored: StateReader) -> str:
    """Return how many entries differ, and the key of the first one, as text."""
    differing = 0
    first = b""
    for key in _differing(state_progress.entries(live), state_progress.entries(restored)):
        first = first or key
        differing += 1
    return f"{differing} entries differ, the first at key {first.hex()}"


def _differing(
    one: Iterator[tuple[bytes, bytes]], other: Iterator[tuple[bytes, bytes]]
) -> Iterator[bytes]:
    """Yield the keys whose entries differ between two sorted streams, or are in only one."""
    left, right = next(one, None), next(other, None)
    while left is not None or right is not None:
        if right is None or (left is not None and left[0] < right[0]):
            assert left is not None
            yield left[0]
            left = next(one, None)
        elif left is None or right[0] < left[0]:
            yield right[0]
            right = next(other, None)
        else:
            if left[1] != right[1]:
                yield left[0]
            left, right = next(one, None), next(other, None)


def _hex(state_hash: int) -> str:
    return f"{state_hash:032x}"
