"""Check the Delta tables that a commit reads: open them, and compare them with the datasets.

A table is opened with the credentials of the commit. A dataset with keys follows changes and
deletes, which needs the change data feed of the table. A table is read once for all of its
datasets, in every branch, so they agree on the columns that name a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from fennel_core.blueprints.spec import Catalog
from fennel_core.blueprints.streams import stream_of
from fennel_core.connections.delta_log import FEED, TableHead
from fennel_core.connections.errors import ConnectionsError
from fennel_core.connections.external_delta import source_place
from fennel_core.connections.external_s3 import bucket_refused, opened
from fennel_core.connections.secrets import Sealer
from fennel_core.definition.external_checks import REACHED_S, answers
from fennel_core.definition.source_check import secret_opener
from fennel_core.graph.delta_keys import is_delta, key_columns
from fennel_core.graph.entity_graph import Graph
from fennel_core.graph.passes.delta_sources import keys_title
from fennel_core.settings.model import Settings
from fennel_core.vocab import dtypes
from fennel_core.vocab.ids import BranchName, WorkspaceId
from fennel_core.vocab.problems import Problem
from fennel_core.vocab.schema import Schema
from fennel_core.wire.connectors import S3, S3Table, Source


@dataclass(frozen=True, slots=True)
class AddedDelta:
    """A source of a Delta table that a commit adds or changes, and the schema of its dataset."""

    source: Source
    table: S3Table
    schema: Schema

    @property
    def title(self) -> str:
        return f"Dataset `{self.source.dataset}`: {stream_of(self.table).title}"

    @property
    def keys(self) -> tuple[str, ...]:
        return key_columns(self.source, self.schema) or ()


def added_deltas(graph: Graph, before: Sequence[Source]) -> list[AddedDelta]:
    """Return the Delta tables of a valid `graph` that are not in `before`, the branch's version."""
    found = []
    for source in graph.sources:
        table, dataset = source.table, graph.dataset(source.dataset)
        if source not in before and is_delta(source) and isinstance(table, S3Table):
            assert dataset is not None, "a valid source has a dataset"
            found.append(AddedDelta(source, table, dataset.schema))
    return found


async def delta_problems(
    added: Sequence[AddedDelta],
    others: Mapping[BranchName, Catalog],
    workspace: WorkspaceId,
    sealer: Sealer | None,
    settings: Settings | None = None,
) -> tuple[Problem, ...]:
    """Return a problem for each table that cannot be read, or not into its dataset.

    `others`: the catalogs of the workspace's other branches. `settings` as of `source_problems`.
    """
    found = [problem for each in added for problem in _disagreements(each, others)]
    asked = [partial(_unreadable, each, workspace, sealer, settings) for each in added]
    for each, problems in zip(added, await answers(asked), strict=True):
        late = f"{each.title} was not reached in {REACHED_S:.0f} s; commit again"
        found += (
            [Problem("source-unreachable", each.source.dataset, late)]
            if problems is None
            else problems
        )
    return tuple(found)


def _disagreements(added: AddedDelta, others: Mapping[BranchName, Catalog]) -> Iterator[Problem]:
    stream, name = stream_of(added.table), added.table.db.name
    for branch, catalog in others.items():
        for binding in catalog.sources:
            table = binding.source.table
            if not (is_delta(binding.source) and isinstance(table, S3Table)):
                continue
            theirs = key_columns(binding.source, binding.schema) or ()
            if (table.db.name, stream_of(table)) == (name, stream) and theirs != added.keys:
                text = (
                    f"{added.title} is read by {keys_title(added.keys)}, and in branch "
                    f"`{branch}` by {keys_title(theirs)}; branches share what they read, so give "
                    "both the same keys, or the connector another name"
                )
                yield Problem("connector-redefined", added.source.dataset, text)
                return


def _unreadable(
    added: AddedDelta, workspace: WorkspaceId, sealer: Sealer | None, settings: Settings | None
) -> list[Problem]:
    table, dataset = added.table, added.source.dataset
    assert isinstance(table.db, S3), "validation refuses connectors by name"
    refused = (
        "cannot be read by a program without an installation"
        if settings is None
        else bucket_refused(table.db, table.bucket, settings)
    )
    if refused is not None or settings is None:
        return [Problem("connector-not-served", dataset, f"{added.title} {refused}")]
    try:
        bucket = opened(table.db, table.bucket, settings, secret_opener(workspace, sealer))
        bucket.check()
        head = source_place(bucket, table).head()
    except ConnectionsError as unusable:
        return [Problem("source-unreachable", dataset, f"Dataset `{dataset}`: {unusable}")]
    return [
        Problem("source-table-unfit", dataset, f"{added.title} {text}")
        for text in unfit(head, added)
    ]


def unfit(head: TableHead, added: AddedDelta) -> Iterator[str]:
    """Yield why a table does not fit a dataset, as ends of sentences about it."""
    if head.unserved is not None:
        yield head.unserved
    if added.keys and not head.shape.has_feed:
        yield (
            "has no change data feed, by which a dataset with keys follows it; set its property "
            f"`{FEED}` to true (`ALTER TABLE … SET TBLPROPERTIES`), or use no keys if it only grows"
        )
    columns = head.shape.columns
    made = {name for name, _ in added.source.preproc}
    needed = {*added.keys}
    needed |= {
        field.name
        for field in added.schema.fields
        if field.name not in made and not dtypes.is_optional(field.dtype)
    }
    for name in sorted(needed - columns.keys()):
        yield f"has no column `{name}`; add it, or make the field with preproc"
