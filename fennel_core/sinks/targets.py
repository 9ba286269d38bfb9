"""Which sinks have to be written, and when a broken one is tried again: pure decisions.

The catalogs of the branches' target versions say which sinks there are. Branches with the same
content and the same place have the same sink, which is written once: a cloned branch writes nothing
twice. A sink starts when the version that has it becomes a target and ends with the last such
version.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from fennel_core.blueprints.spec import Catalog
from fennel_core.graph.sink_places import SinkPlace, SinkTable, is_written, place_of
from fennel_core.sinks.debezium import ChangeSource
from fennel_core.vocab.ids import DatasetName, TopicName, WorkspaceId
from fennel_core.vocab.schema import Schema

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
"""Back-off of a sink that cannot be written: a rotated password is noticed within a minute."""
DELTA_EVERY_S: Final = 60.0
"""How often a Delta table without `every` is written: 1,440 commits a day at most."""


@dataclass(frozen=True, slots=True)
class SinkTarget:
    """A place outside of the platform that gets the changes of a dataset.

    `name`: of the sink, and of the topic with its position, or a copy of it. `dead_letters`: None
    where an earlier version stored the catalog. `every_us`: how often it is written; None if the
    definition leaves that to the kind of the sink.
    """

    workspace: WorkspaceId
    name: TopicName
    topic: TopicName
    dataset: DatasetName
    schema: Schema
    table: SinkTable
    dead_letters: TopicName | None
    partitions: int
    every_us: int | None = None

    @property
    def place(self) -> SinkPlace:
        found = place_of(self.table)
        assert found is not None, "the kinds of sinks have places"
        return found

    @property
    def title(self) -> str:
        return self.place.title

    @property
    def shared(self) -> tuple[WorkspaceId, SinkPlace]:
        """What sinks have in common that write one place, of different versions of a dataset."""
        return self.workspace, self.place.shared

    @property
    def rest_s(self) -> float:
        """How long the sink rests when it has written what is there: a table gets few files."""
        if self.place.kind != "delta":
            return 0.0
        return DELTA_EVERY_S if self.every_us is None else self.every_us / 1_000_000

    @property
    def source(self) -> ChangeSource:
        """What its events say about where they are from."""
        return ChangeSource(self.table.db.name, self.workspace, self.dataset, self.schema)


def targets_of(catalogs: Iterable[Catalog]) -> dict[TopicName, SinkTarget]:
    """Return the sinks of the branches' versions, by name.

    The first definition counts: the newest, whose credentials were tried last.
    """
    found: dict[TopicName, SinkTarget] = {}
    for catalog in catalogs:
        for binding in catalog.sinks:
            table = binding.sink.table
            assert is_written(table), "validation refuses other sinks"
            found.setdefault(
                binding.positions,
                SinkTarget(
                    catalog.workspace,
                    binding.positions,
                    binding.topic,
                    binding.dataset,
                    binding.schema,
                    table,
                    binding.dead_letters,
                    catalog.partitions,
                    binding.sink.every_us,
                ),
            )
    return found


@dataclass(frozen=True, slots=True)
class SinkReport:
    """What `fennel-core status` shows of a sink. `reason`: why it is broken, else None.

    `events`: written since the sink began; `behind`: messages of the dataset that are not written;
    both None if not known.
    """

    workspace: WorkspaceId
    dataset: DatasetName
    sink: str
    failures: int = 0
    """How often in a row it could not be written."""
    events: int | None = None
    behind: int | None = None
    reason: str | None = None
    paused: bool = False
    rewinding: bool = False
    """A rewind was ordered that is not carried out yet."""
    replays: int = 0
    """Dead letters that are to be sent again."""
    remedy: str | None = None
    """What to do about a broken one if the credentials of its connector have changed."""


def pause_s(failures: int) -> float:
    """Return how long a sink rests that has failed so often in a row."""
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures - 1, 30))
