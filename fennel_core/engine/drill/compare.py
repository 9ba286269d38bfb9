"""The drill itself: a copy of the live state against its newest snapshot, replayed to where the
copy stands.

Theory. Every state carries a hash of itself that was kept entry by entry as it was written
(`engine.progress`). Three questions follow, each with a number for an answer. Does the live state
hold what was written to it? Does the snapshot? And does the snapshot, with what came after it
replayed as a recovery would replay it, come to the same state? A copy of the live state was made by
one act and carries its own position, so the two are compared at the same position without anything
being stopped. Where the layout of a state depends on how rows were cut into batches (and no marker
tells how they were), what it answers is compared in place of its bytes.
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
from fennel_core.hangar.store import Hangar, HangarCorrupt, HangarReader
from fennel_core.operators.build import is_order_deterministic
from fennel_core.snapshots import transfer
from fennel_core.snapshots.drills import DrillFinding, DrillVerdict
from fennel_core.snapshots.errors import SnapshotCorrupt
from fennel_core.snapshots.manifest import StatePosition
from fennel_core.snapshots.store import Pointer
from fennel_core.snapshots.transfer import SnapshotContext
from fennel_core.vocab.ids import Micros

FAR: Final = Micros(2**53)
"""After every event: the year 2255."""
CHANGES: Final = 64
"""How many changes of each key's answer are compared where bytes cannot be."""
Opener = Callable[[Path], Hangar]


async def drill_partition(
    tools: SnapshotContext,
    pointer: Pointer,
    live: HangarReader,
    scratch: Path,
    opener: Opener,
    runner_over: Callable[[Hangar], Runner],
) -> DrillFinding:
    """What a drill finds. `live`: a copy that nobody writes; `scratch`: a new folder for the
    snapshot; `runner_over`: one that rehearses.

    SystemUnavailable and BrokerError pass through: they say nothing about the state.
    """
    try:
        known = state_progress.load(live)
        held = state_progress.computed_state_hash(live)
    except (HangarCorrupt, StateFormatError) as wrong:
        return DrillFinding(DrillVerdict.CORRUPT, f"the live state cannot be read: {wrong}")
    if held != known.state_hash:
        told = (
            "the live state holds other entries than were written to it (the second hash "
            "was kept as they were written)"
        )
        return DrillFinding(DrillVerdict.DIFFERS, told, _hex(held), _hex(known.state_hash))
    name = f"snapshot #{pointer.number}"
    try:
        await transfer.download_snapshot(tools, pointer, STATE_FORMAT, scratch)
        restored = opener(scratch)
    except (SnapshotCorrupt, HangarCorrupt) as wrong:
        return DrillFinding(DrillVerdict.CORRUPT, f"{name} cannot be used: {wrong}")
    try:
        return await _rehearsed(name, live, known, restored, runner_over)
    except (HangarCorrupt, StateFormatError) as wrong:
        return DrillFinding(DrillVerdict.CORRUPT, f"{name} cannot be used: {wrong}")
    finally:
        restored.close()


async def _rehearsed(
    name: str,
    live: HangarReader,
    known: StateProgress,
    restored: Hangar,
    runner_over: Callable[[Hangar], Runner],
) -> DrillFinding:
    begun, held = state_progress.load(restored), state_progress.computed_state_hash(restored)
    if held != begun.state_hash:
        told = (
            f"{name} holds other entries than were written to the state it copied (the "
            "first hash was kept as they were written)"
        )
        return DrillFinding(DrillVerdict.CORRUPT, told, _hex(begun.state_hash), _hex(held))
    if not _position(known).covers(_position(begun)):
        return DrillFinding(
            DrillVerdict.SKIPPED, f"the live state has not come as far as {name} yet"
        )
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
            DrillVerdict.LOST, f"{name} cannot be replayed to where the live state stands: {gone}"
        )
    ours, theirs = _hex(known.state_hash), _hex(reached.state_hash)
    if (
        ours != theirs
        and not runner.job.outputs
        and runner.step is not None
        and not is_order_deterministic(runner.step)
    ):
        ours, theirs = (_answers(runner.step, reads) for reads in (live, restored))
    both = (
        f"{name} and {sum(reached.offsets.values()) - sum(begun.offsets.values())} records after it"
    )
    if ours == theirs:
        return DrillFinding(DrillVerdict.AGREES, f"{both} come to the live state", ours, theirs)
    return DrillFinding(
        DrillVerdict.DIFFERS,
        f"{both} come to another state: {_difference(live, restored)}",
        ours,
        theirs,
    )


def _answers(step: Any, reads: HangarReader) -> str:
    """A digest of what is served: of every key its row after every event, and before each of its
    last changes.

    A row carries the time of the last change at or before the moment asked for, and stands until
    the next one: so one walks back in time.
    """
    found = hashlib.blake2b(digest_size=16)
    rows = step.rows(reads, FAR, 2**31)
    for _ in range(CHANGES):
        for key, row in sorted(rows):
            found.update(len(key).to_bytes(4, "big") + key + len(row).to_bytes(4, "big") + row)
        before = {key: Micros(msgspec.msgpack.decode(row)[0] - 1) for key, row in rows}
        answers = zip(before, step.lookup(reads, list(before), list(before.values())), strict=True)
        rows = [(key, row) for key, row in answers if row is not None]
        if not rows:
            break
    return found.hexdigest()


def _difference(live: HangarReader, restored: HangarReader) -> str:
    """How many entries differ, and where the first one is."""
    differing = 0
    first = b""
    for key in _differing(state_progress.entries(live), state_progress.entries(restored)):
        first = first or key
        differing += 1
    return f"{differing} entries differ, the first at key {first.hex()}"


def _differing(
    one: Iterator[tuple[bytes, bytes]], other: Iterator[tuple[bytes, bytes]]
) -> Iterator[bytes]:
    """Keys of one sorted stream whose entry is not the other's, and the other way round."""
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


def _position(known: StateProgress) -> StatePosition:
    return StatePosition(known.iteration, known.replayed, known.offsets)


def _hex(state_hash: int) -> str:
    return f"{state_hash:032x}"
