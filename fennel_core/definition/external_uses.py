"""What a commit adds of streams, tables and sinks, and whether all of it can be reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fennel_core.blueprints.spec import Catalog
from fennel_core.blueprints.streams import is_scheduled, is_stream
from fennel_core.connections.http_addresses import AllowedHosts
from fennel_core.connections.secrets import Sealer
from fennel_core.connectors.references import Stored, resolved_uses
from fennel_core.definition.changes_check import (
    AddedChanges,
    added_changes,
    changes_problems,
)
from fennel_core.definition.delta_check import AddedDelta, added_deltas, delta_problems
from fennel_core.definition.sink_check import AddedSink, added_sinks, sink_problems
from fennel_core.definition.source_check import added_streams, source_problems
from fennel_core.definition.table_check import (
    AddedTable,
    DatabaseTable,
    added_tables,
    table_problems,
)
from fennel_core.graph.delta_keys import is_delta
from fennel_core.graph.entity_graph import Graph
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import BranchName, WorkspaceId
from fennel_core.vocab.problems import Problem
from fennel_core.wire.connectors import (
    MySQLChanges,
    NamedReference,
    PostgresChanges,
    S3Table,
    Sink,
    Source,
)
from fennel_core.wire.entities import SyncRequest


@dataclass(frozen=True, slots=True)
class ExternalUses:
    """Streams, tables and sinks that are reached before they are accepted."""

    streams: Sequence[Source]
    tables: Sequence[AddedTable]
    sinks: Sequence[AddedSink]
    deltas: Sequence[AddedDelta]
    changes: Sequence[AddedChanges]

    def __bool__(self) -> bool:
        return bool(self.streams or self.tables or self.sinks or self.deltas or self.changes)

    @property
    def definitions(self) -> list[Source | Sink]:
        """All of them as they are defined."""
        return [
            *self.streams,
            *(each.source for each in self.tables),
            *(each.sink for each in self.sinks),
            *(each.source for each in self.deltas),
            *(each.source for each in self.changes),
        ]

    def with_address(self) -> ExternalUses:
        """Return those whose connector is there, not only named."""
        return ExternalUses(
            [each for each in self.streams if not isinstance(each.table.db, NamedReference)],
            [each for each in self.tables if not isinstance(each.table.db, NamedReference)],
            [each for each in self.sinks if not isinstance(each.sink.table.db, NamedReference)],
            [each for each in self.deltas if not isinstance(each.table.db, NamedReference)],
            [each for each in self.changes if not isinstance(each.table.db, NamedReference)],
        )


def added_uses(graph: Graph, before: SyncRequest | None, stored: Stored) -> ExternalUses:
    """Return what a valid `graph` adds to the branch's version, with stored connectors."""
    known = () if before is None else resolved_uses(before.sources, stored)
    known_sinks = () if before is None else resolved_uses(before.sinks, stored)
    now = replace(
        graph,
        sources=resolved_uses(graph.sources, stored),
        sinks=resolved_uses(graph.sinks, stored),
    )
    return ExternalUses(
        added_streams(now, known),
        added_tables(now, known),
        added_sinks(now, known_sinks),
        added_deltas(now, known),
        added_changes(now, known),
    )


def uses_of(catalog: Catalog) -> ExternalUses:
    """Return what the bindings of a catalog read and write."""
    streams: list[Source] = []
    tables: list[AddedTable] = []
    deltas: list[AddedDelta] = []
    changes: list[AddedChanges] = []
    for each in catalog.sources:
        table = each.source.table
        if isinstance(table, DatabaseTable):
            tables.append(AddedTable(each.source, table, each.schema, (each.source,)))
        elif isinstance(table, PostgresChanges | MySQLChanges):
            changes.append(AddedChanges(each.source, table, each.schema, is_read=True))
        elif is_delta(each.source) and isinstance(table, S3Table):
            deltas.append(AddedDelta(each.source, table, each.schema))
        elif is_stream(table) and not is_scheduled(table):
            streams.append(each.source)
    sinks = [AddedSink(each.sink, each.schema) for each in catalog.sinks]
    return ExternalUses(streams, tables, sinks, deltas, changes)


async def use_problems(
    uses: ExternalUses,
    others: Mapping[BranchName, Catalog],
    workspace: WorkspaceId,
    sealer: Sealer | None,
    settings: Settings | None,
) -> list[Problem]:
    """Return why streams and tables cannot be read, and sinks cannot be written.

    `others`: the catalogs of other branches. `settings` None: of a program without an installation.
    """
    allowed = AllowedHosts() if settings is None else AllowedHosts.of(settings)
    return [
        *await source_problems(uses.streams, others, workspace, sealer, settings),
        *await table_problems(uses.tables, others, workspace, sealer, settings),
        *await delta_problems(uses.deltas, others, workspace, sealer, settings),
        *await changes_problems(uses.changes, others, workspace, sealer, settings),
        *await sink_problems(uses.sinks, others, workspace, sealer, allowed, settings),
    ]
