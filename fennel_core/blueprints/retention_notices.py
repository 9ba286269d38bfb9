"""Notices about the `history` of datasets that has no effect on their rows in history, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fennel_core.blueprints.logical import Compiled
from fennel_core.blueprints.notices import DAY_US, duration
from fennel_core.blueprints.plan_entries import Notice
from fennel_core.blueprints.row_retention import KeptDataset, KeptJob, row_retention

DEFAULT_HISTORY_US: Final = 2 * 365 * DAY_US
"""The client's default `history` of a dataset, two years."""

NOT_COMPUTED: Final = "nothing computes it, and the rows that it would aggregate are others'"


def retention_notices(compiled: Compiled, *, removed: bool) -> Iterator[Notice]:
    """Yield the datasets of a version whose `history` was chosen and that keep rows longer.

    `removed`: rows that are older are removed, by the setting `FENNEL_HISTORY_RETENTION`.
    """
    kept = row_retention(
        [
            KeptDataset(
                each.name,
                each.schema,
                each.topic,
                each.served_by,
                each.is_source,
                each.history_us,
            )
            for each in compiled.datasets
        ],
        [
            KeptJob(job.key, job.step, job.inputs, [each.topic for each in job.outputs])
            for job in compiled.jobs
        ],
        {sink.topic for sink in compiled.sinks},
    )
    inputs = {job.key: job.inputs for job in compiled.jobs}
    for dataset in compiled.datasets:
        topics = inputs.get(dataset.served_by, ()) if dataset.served_by is not None else ()
        if dataset.topic is not None:
            topics = (dataset.topic,)
        found = [kept[topic] for topic in topics]
        if dataset.history_us in (0, DEFAULT_HISTORY_US):
            continue
        reasons = [each.kept_because for each in found]
        why = next(filter(None, reasons), None if found else NOT_COMPUTED)
        begin = f"dataset `{dataset.name}`: history {duration(dataset.history_us)} is recorded; "
        if not removed:
            text = f"{begin}rows are kept longer while the setting FENNEL_HISTORY_RETENTION is off"
            yield Notice("history-not-applied", dataset.name, f"{text}{_also(why)}")
        elif why is not None:
            text = f"{begin}rows are kept longer, because {why}"
            yield Notice("history-not-applied", dataset.name, text)
        elif dataset.topic is not None and found[0].kept_us > dataset.history_us:
            longer = -(-found[0].kept_us // DAY_US)
            text = (
                f"{begin}rows are kept {longer} days, because datasets computed from them need them"
            )
            yield Notice("history-not-applied", dataset.name, text)


def _also(why: str | None) -> str:
    return "" if why is None else f", and also when it is on, because {why}"
