"""How long the rows of each topic are needed in history, and why some are kept for ever. Pure.

Theory. A dataset says with `history` for how long its rows are needed, by event time: reads as of
any time in the last `history` must stay exact. So a topic needs its rows for the longest of

- `history` of each dataset that has its rows on the topic;
- `history` and twice the longest window of each terminal aggregate over windows that end at the
  time of reading: a read as of the oldest time reaches back a window, and the last row that has
  left one dates the result;
- the need of each topic that a stateless job makes of it, because that is computed again from it
  (other than a `transform`, which may give its rows other times: its input stays).

Of a keyed dataset the last of the expired versions of each key stays, however old, and hides those
before it at any time since. So these leave, but only where nothing reads the topic but the table of
its lookups: a join or an aggregation computes something else without them, and even a stateless job
does. A version on which it fails (a dead letter) leaves its result with the version before.

Rows of other topics stay. A retraction must find its row. Any other reader (joins, first and latest
rows, windows without an end or that close) computes something else without the old rows, and a sink
that was away for long must find the changes that it has not delivered. A `history` that is not
known is no limit.

Example. Clicks keep 30 days, and an aggregate over 7 days with a `history` of 60 days reads them:
a click is needed for 74 days and two seconds. With a window `forever` it is needed for ever.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic

from fennel_core.blueprints.retractions import Topic, only_adds
from fennel_core.blueprints.spec import Catalog, Job
from fennel_core.operators.spec import AggregateSpec, MapSpec, StepSpec, TableSpec, UserCodeSpec
from fennel_core.vocab.ids import DatasetName, TopicName
from fennel_core.vocab.schema import Schema
from fennel_core.wire import operators as wire

KEYED: Final = (
    "a job other than the table of its lookups reads them, and needs versions of a key before the "
    "last"
)
RETRACTED: Final = "a job that reads or joins other rows may retract each of them later"
STATEFUL: Final = (
    "a job that reads them (a join, a first or latest row, a window without an end or that closes, "
    "or another one with state) would compute something else without them"
)
UNKNOWN: Final = "an earlier release stored a dataset with these rows without its `history`"
MOVED: Final = "a `transform` reads them, and may give its rows other times"
UNSERVED: Final = "an aggregate that no version has now reads them and may be revived"
RETAINED: Final = "a dataset that no version has now is computed from them and may be revived"
DELIVERED: Final = "a sink delivers each change of them, from the first on"
TIMES: Final = "its datasets have different time columns"
KEYS: Final = "its datasets have different keys"
SECOND_US: Final = 1_000_000
"""A row counts a second longer than the window."""


@dataclass(frozen=True, slots=True)
class KeptDataset(Generic[Topic]):
    """A dataset of a version. `topic`: that of its rows; `served_by`: the job of its lookups."""

    name: DatasetName
    schema: Schema
    topic: Topic | None
    served_by: Hashable
    is_source: bool
    history_us: int


@dataclass(frozen=True, slots=True)
class KeptJob(Generic[Topic]):
    """A job that runs or may run again."""

    id: Hashable
    step: StepSpec
    inputs: Sequence[Topic]
    outputs: Sequence[Topic]


@dataclass(frozen=True, slots=True)
class RowRetention:
    """How long rows of a topic are needed, µs of event time by the column `timestamp`.

    `kept_because`: why they are never removed; None: they are. `datasets`: those with these rows.
    `keys`: the key columns of a keyed dataset, the last expired version of each key of which stays.
    """

    kept_us: int
    timestamp: str
    kept_because: str | None
    datasets: tuple[DatasetName, ...]
    keys: tuple[str, ...] = ()


def longest_window_us(step: StepSpec) -> int | None:
    """Return how far a lookup in a terminal aggregate reaches back, µs; None: this has no end, or
    depends on more than the rows of the key (windows that close by the watermark of all rows).
    """
    if not isinstance(step, AggregateSpec) or not step.terminal or step.along is not None:
        return None
    spans = [
        each.window.duration_us + SECOND_US
        for each in step.specs
        if isinstance(each.window, wire.Sliding)
    ]
    return max(spans, default=None) if len(spans) == len(step.specs) else None


def reach_us(step: StepSpec) -> int | None:
    """Return for how long before the time of a lookup rows must be there, µs; None: for ever.

    A table needs the last version before. A window needs the rows in it, and the last row that has
    left it dates the row of a lookup.
    """
    if isinstance(step, TableSpec):
        return 0
    window = longest_window_us(step)
    return None if window is None else 2 * window


def row_retention(
    datasets: Iterable[KeptDataset[Topic]],
    jobs: Collection[KeptJob[Topic]],
    delivered: Collection[Topic] = (),
) -> dict[Topic, RowRetention]:
    """Return the retention of the topics of `datasets` and of the inputs of terminal aggregates.

    `delivered`: the topics that sinks read.
    """
    return _Needs(list(datasets), jobs, delivered).all()


def retention_of(catalogs: Iterable[Catalog], jobs: Iterable[Job]) -> dict[TopicName, RowRetention]:
    """Return the retention of the topics of versions, by their names."""
    versions = list(catalogs)
    return row_retention(
        [
            KeptDataset(
                view.name,
                view.schema,
                view.topic,
                view.served_by,
                view.is_source,
                view.history_us,
            )
            for catalog in versions
            for view in catalog.datasets
        ],
        [
            KeptJob(job.id, job.step, job.inputs, [each.topic for each in job.outputs])
            for job in jobs
        ],
        {sink.topic for catalog in versions for sink in catalog.sinks},
    )


@dataclass
class _Needs(Generic[Topic]):
    datasets: Sequence[KeptDataset[Topic]]
    jobs: Collection[KeptJob[Topic]]
    delivered: Collection[Topic]
    found: dict[Topic, int | str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._views: dict[Topic, list[KeptDataset[Topic]]] = {}
        self._served: dict[Hashable, list[KeptDataset[Topic]]] = {}
        for each in self.datasets:
            if each.topic is not None:
                self._views.setdefault(each.topic, []).append(each)
            elif each.served_by is not None:
                self._served.setdefault(each.served_by, []).append(each)
        self._readers: dict[Topic, list[KeptJob[Topic]]] = {}
        self._writers: dict[Topic, list[KeptJob[Topic]]] = {}
        for job in self.jobs:
            for topic in job.inputs:
                self._readers.setdefault(topic, []).append(job)
            for topic in job.outputs:
                self._writers.setdefault(topic, []).append(job)

    def all(self) -> dict[Topic, RowRetention]:
        times: dict[Topic, set[str]] = {
            topic: {view.schema.timestamp for view in views} for topic, views in self._views.items()
        }
        names = {topic: {view.name for view in views} for topic, views in self._views.items()}
        for topic, readers in self._readers.items():
            for job in readers:
                if isinstance(job.step, AggregateSpec) and job.step.terminal:
                    times.setdefault(topic, set()).add(job.step.input.timestamp)
                    served = (each.name for each in self._served.get(job.id, ()))
                    names.setdefault(topic, set()).update(served)
        kept = {}
        for topic, columns in times.items():
            need = self._need(topic)
            why = need if isinstance(need, str) else (TIMES if len(columns) > 1 else None)
            us = need if isinstance(need, int) else 0
            keys = next((view.schema.key_names for view in self._views.get(topic, ())), ())
            kept[topic] = RowRetention(us, min(columns), why, tuple(sorted(names[topic])), keys)
        return kept

    def _need(self, topic: Topic) -> int | str:
        """Return for how long rows are needed, µs, or why for ever."""
        if topic not in self.found:
            self.found[topic] = self._need_of(topic)
        return self.found[topic]

    def _need_of(self, topic: Topic) -> int | str:
        views = self._views.get(topic, ())
        is_source = any(view.is_source for view in views)
        keys = {view.schema.key_names for view in views}
        if len(keys) > 1:
            return KEYS
        if not only_adds(topic, is_source, self._writers):
            return RETRACTED
        if topic in self.delivered:
            return DELIVERED
        needs: list[int | str] = [view.history_us or UNKNOWN for view in views]
        readers = self._readers.get(topic, ())
        if any(keys):
            needs += [KEYED for job in readers if not isinstance(job.step, TableSpec)]
        else:
            needs += [self._need_of_reader(job) for job in readers]
        return _longest(needs or [RETAINED])

    def _need_of_reader(self, job: KeptJob[Topic]) -> int | str:
        match job.step:
            case UserCodeSpec(kind="transform"):
                return MOVED
            case MapSpec() | UserCodeSpec():
                return _longest([self._need(topic) for topic in job.outputs])
            case AggregateSpec(terminal=True):
                reach = reach_us(job.step)
                if reach is None:
                    return STATEFUL
                served = self._served.get(job.id, ())
                if not served:
                    return UNSERVED
                histories = _longest([each.history_us or UNKNOWN for each in served])
                return histories if isinstance(histories, str) else histories + reach
            case _:
                return STATEFUL


def _longest(needs: Sequence[int | str]) -> int | str:
    """Return the longest need, or the first reason for ever."""
    reasons = [need for need in needs if isinstance(need, str)]
    return reasons[0] if reasons else max((n for n in needs if isinstance(n, int)), default=0)
