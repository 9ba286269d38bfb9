"""Line coverage of the production classes by a set of seeds.

A simulation that does not reach a line proves nothing about it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import coverage

from fennel_core.engine import (
    iteration,
    iteration_writer,
    outputs,
    replay,
    runner,
    service,
    snapshots,
    starting_state,
    state_folders,
    state_progress,
    supervisor,
    watermarks,
)
from fennel_core.engine.kafka import consumer, cursor, reader, subscription
from fennel_core.snapshots import pruning, transfer
from tests.sim.engine.world import simulate

SUBJECTS: Final = (
    runner,
    iteration,
    iteration_writer,
    replay,
    supervisor,
    service,
    snapshots,
    starting_state,
    state_folders,
    state_progress,
    watermarks,
    outputs,
    consumer,
    cursor,
    reader,
    subscription,
    transfer,
    pruning,
)
WANTED_PERCENT: Final = 90
ELSEWHERE: Final = {
    "compute_chunk",
    "_recomputed_chunk",
    "read_manifest",
    "partition_of_key",
    "hold",
    "_held",
    "_moved",
    "jobs",
    "delete_job",
    "description",
}
"""Functions of the backfill, which this world does not have: `tests/unit/engine/test_backfill.py`
kills runners in them. Manifests of every malformed kind are read in `tests/contract/snapshots`.
Folders are locked against other processes in `tests/unit/engine/test_state_folders.py`; this world
deletes jobs from its own disks. The rest is tested in `tests/unit/engine/test_starting_state.py`.
"""


def covered(seeds: Iterable[int]) -> dict[str, float]:
    """Return the percentage of lines that the seeds run, per module.

    Later seeds are not run once each module has as much as is wanted. Lines that run at import do
    not count.
    """
    files = {
        str(module.__file__): module.__name__.removeprefix("fennel_core.") for module in SUBJECTS
    }
    watched = coverage.Coverage(data_file=None, include=list(files), config_file=False)
    reached: dict[str, float] = {}
    for seed in seeds:
        watched.start()
        try:
            simulate(seed)
        finally:
            watched.stop()
        reached = {name: _percent(watched, Path(file)) for file, name in files.items()}
        if min(reached.values()) >= WANTED_PERCENT:
            break
    return reached


def _percent(watched: coverage.Coverage, file: Path) -> float:
    _, statements, _, missing, _ = watched.analysis2(str(file))
    at_import = _lines_at_import(file)
    inside = [line for line in statements if line not in at_import]
    return 100 * (1 - len(set(missing) & set(inside)) / len(inside))


def _lines_at_import(file: Path) -> set[int]:
    """Return the lines of module and class bodies, and of functions that are tested elsewhere."""
    body = compile(file.read_text(), str(file), "exec")
    found, waiting = set[int](), [body]
    while waiting:
        code = waiting.pop()
        found |= {line for _, _, line in code.co_lines() if line is not None}
        waiting += [
            c
            for c in code.co_consts
            if isinstance(c, type(body))
            and (c.co_name.lstrip("_")[:1].isupper() or c.co_name in ELSEWHERE)
        ]
    return found
