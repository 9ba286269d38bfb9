"""Which source replays a commit needs: decided with the assets that exist.

Theory. Ingest writes the rows of a request to every dataset that its endpoint feeds at that moment.
A dataset that comes later lacks the earlier rows; a *source replay* reads the endpoint's raw topic
and writes what ingest has not written. It is needed if and only if the dataset's topic is new and
the raw topic is not:

- The raw topic is new: no request can precede the dataset.
- The dataset's topic exists: its rows are there. A source that is added to it, or changed, takes
  the requests from this commit on. If it took earlier ones, removing a source and adding it again
  would duplicate the rows of keyless datasets.

A replay that exists is always kept: it also takes the requests that an ingest server began before
the commit and wrote after it, whenever that is.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from fennel_core.blueprints.logical import AssetKey, Compiled, SourceReplay


def all_keys(compiled: Compiled) -> list[AssetKey]:
    """Return the keys of everything that the commit needs or may need."""
    replays = [key for r in compiled.replays for key in (r.replaylog.key, r.job.key)]
    return [*(b.key for b in compiled.blueprints), *replays]


def with_needed_replays(compiled: Compiled, existing: Collection[AssetKey]) -> Compiled:
    """Return the commit with the source replays that it needs among its jobs.

    `existing`: keys of assets that the commit will share instead of creating them.
    """
    needed = [each for each in compiled.replays if _is_needed(each, existing)]
    return replace(
        compiled,
        topics=(*compiled.topics, *(each.replaylog for each in needed)),
        jobs=(*(each.job for each in needed), *compiled.jobs),
        replays=(),
    )


def _is_needed(replay: SourceReplay, existing: Collection[AssetKey]) -> bool:
    job = replay.job
    (raw,), (output,) = job.inputs, job.outputs
    return job.key in existing or (raw in existing and output.topic not in existing)
