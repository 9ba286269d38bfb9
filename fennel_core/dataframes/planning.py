"""Plan a read of a dataset: what its branch serves now, and what there is to read.

The version of the branch, the ends of the topic and the erased keys are read once, in this order,
so that the rows of a read depend on nothing that happens later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from fennel_core.blueprints import stored_names
from fennel_core.blueprints.row_retention import reach_us
from fennel_core.blueprints.spec import Catalog, DatasetView, Job
from fennel_core.connections import erasures, postgres
from fennel_core.connections.erasures import ErasedKeys
from fennel_core.connections.postgres import Pool
from fennel_core.dataframes import read_options
from fennel_core.dataframes.contents import AggregateRead, ChangelogRead, ContentRead, DatasetRead
from fennel_core.dataframes.parts import TopicInput
from fennel_core.dataframes.read_request import Mode, ReadRequest
from fennel_core.history.errors import ReadFailed
from fennel_core.history.roll import TopicLayout
from fennel_core.history.topic_slices import TopicSlice, plan_slices
from fennel_core.history.topics import catalog_layouts
from fennel_core.operators.spec import AggregateSpec
from fennel_core.query.postgres import PostgresReader
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import CommitId, DatasetName, Micros, TopicName, WorkspaceId
from fennel_core.vocab.schema import Schema
from fennel_core.wire.decode import decode_sync_request

BRANCHES: Final = """
    SELECT b.name, b.serving FROM workspace w LEFT JOIN branch b ON b.workspace = w.name
    WHERE w.name = %s AND w.state = 'open'
"""
VERSION: Final = "SELECT coalesce(merged, request), catalog FROM commit WHERE id = %s"


@dataclass(frozen=True, slots=True)
class ServedVersion:
    """What a branch serves. `comments`: per dataset, the descriptions of its fields."""

    workspace: WorkspaceId
    commit: CommitId
    catalog: Catalog
    comments: Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What a read returns, and from what. `comments`: of columns, by name."""

    read: DatasetRead
    topic: TopicInput
    comments: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class DatasetSource:
    """A dataset as its branch serves it, and what there is to read of it.

    `job`: the one that serves lookups in a terminal aggregate; None for a dataset with a topic.
    """

    view: DatasetView
    job: Job | None
    topic: TopicInput
    erased: tuple[ErasedKeys, ...]
    comments: dict[str, str]

    def plan(self, request: ReadRequest) -> ReadPlan:
        """Return the plan of a read; ReadFailed for unknown columns, and where rows have
        expired.
        """
        aggregate = None if self.job is None else _aggregate_of(self.job)
        if request.mode is Mode.AS_OF:
            _check_not_expired(self.view.name, self.topic.slices, aggregate, request.as_of)
        read = read_of(self.view.schema, aggregate, request, self.erased)
        return ReadPlan(read, self.topic, self.comments)


@dataclass(frozen=True, slots=True)
class AskedDataset:
    """The dataset that a read names, and how it is read."""

    workspace: WorkspaceId
    branch: str
    dataset: DatasetName
    mode: Mode


SliceReader = Callable[[TopicName], Awaitable[tuple[TopicSlice, ...]]]
"""Returns the slices of a topic as of now."""


async def plan_read(settings: Settings, request: ReadRequest) -> ReadPlan:
    """Return the plan of a read as of now; ReadFailed if it cannot be done."""
    async with postgres.pool(
        settings.postgres_dsn.get_secret_value(), name="fennel-read", size=1
    ) as pool:
        workspace = await read_options.workspace_of(
            pool, settings, request.workspace, request.token
        )
        asked = AskedDataset(workspace, request.branch, request.dataset, request.mode)
        source = await find_source(pool, asked, slice_reader(settings, pool))
    return source.plan(request)


def slice_reader(settings: Settings, pool: Pool) -> SliceReader:
    """Return what reads the slices of topics of this platform."""

    async def read(topic: TopicName) -> tuple[TopicSlice, ...]:
        return (await plan_slices(settings, pool, [topic]))[topic]

    return read


async def find_source(pool: Pool, asked: AskedDataset, slices_of: SliceReader) -> DatasetSource:
    """Return what there is to read of a dataset as of now; ReadFailed if it cannot be read."""
    version = await _served_version(pool, asked.workspace, asked.branch)
    view = _view_of(version.catalog, asked)
    topic = await _input_of(pool, version.catalog, view, asked.mode)
    slices = await slices_of(topic.name)
    _check_complete(topic.name, slices)
    by_workspace = await erasures.read(pool, asked.workspace)
    erased = by_workspace.get(asked.workspace, {}).get(view.name, ())
    comments = dict(version.comments.get(view.name, {}))
    return DatasetSource(view, topic.job, TopicInput(slices, topic.layout), erased, comments)


@dataclass(frozen=True, slots=True)
class InputTopic:
    """The topic that the rows of a dataset are read from. `job`: as in `DatasetSource`."""

    name: TopicName
    layout: TopicLayout
    job: Job | None = None


def read_of(
    schema: Schema,
    aggregate: AggregateSpec | None,
    request: ReadRequest,
    erased: Sequence[ErasedKeys],
) -> DatasetRead:
    """Return the read of a dataset, or of a terminal aggregate; ReadFailed for unknown columns."""
    hidden = tuple(erased)
    read: DatasetRead
    if aggregate is not None:
        read = AggregateRead(aggregate, (), request.as_of, hidden)
    elif request.mode is Mode.CHANGELOG:
        read = ChangelogRead(schema, (), hidden)
    else:
        read = ContentRead(schema, (), request.as_of, hidden)
    return with_columns(read, request.columns or read.available.names)


def with_columns(read: DatasetRead, wanted: Sequence[str]) -> DatasetRead:
    """Return the read with other columns; ReadFailed if one is unknown."""
    known = read.available.names
    if unknown := [name for name in wanted if name not in known]:
        raise ReadFailed(
            f"unknown column `{unknown[0]}`; valid columns: {read_options.listed(known)} "
            "[read-columns]"
        )
    return replace(read, wanted=tuple(wanted))


async def _served_version(pool: Pool, workspace: WorkspaceId, branch: str) -> ServedVersion:
    async with pool.connection() as connection:
        rows = await (await connection.execute(BRANCHES, (workspace,))).fetchall()
        if not rows:
            raise ReadFailed(
                f"unknown workspace `{workspace}`; `fennel-core workspace list` prints the valid "
                "ones [read-workspace]"
            )
        serving = {str(name): commit for name, commit in rows if name is not None}
        if branch not in serving:
            raise ReadFailed(
                f"unknown branch `{branch}` of `{workspace}`; valid branches: "
                f"{read_options.listed(serving)} [read-branch]"
            )
        commit = serving[branch]
        if commit is None:
            raise ReadFailed(
                f"branch `{branch}` serves nothing yet; commit to it, or wait until its commit has "
                "caught up [read-branch]"
            )
        [(definitions, catalog)] = await (await connection.execute(VERSION, (commit,))).fetchall()
    assert isinstance(definitions, bytes), "definitions are kept while a branch needs them"
    assert isinstance(catalog, bytes), "a commit that serves has a catalog"
    decoded = await asyncio.to_thread(stored_names.loads, catalog, Catalog)
    comments = await asyncio.to_thread(comments_of, definitions)
    return ServedVersion(workspace, CommitId(str(commit)), decoded, comments)


def comments_of(definitions: bytes) -> dict[str, dict[str, str]]:
    """Return the descriptions of fields, per dataset, as the client sent them."""
    return {
        dataset.name: {
            name: metadata.description
            for name, metadata in dataset.field_metadata
            if metadata.description
        }
        for dataset in decode_sync_request(definitions).datasets
    }


def _view_of(catalog: Catalog, asked: AskedDataset) -> DatasetView:
    views = {view.name: view for view in catalog.datasets}
    view = views.get(asked.dataset)
    if view is None:
        raise ReadFailed(
            f"unknown dataset `{asked.dataset}` in branch `{asked.branch}`; valid datasets: "
            f"{read_options.listed(views)} [read-dataset]"
        )
    return view


async def _input_of(pool: Pool, catalog: Catalog, view: DatasetView, mode: Mode) -> InputTopic:
    layouts = catalog_layouts(catalog)
    if view.topic is not None:
        return InputTopic(view.topic, layouts[view.topic])
    if view.served_by is None:
        raise ReadFailed(
            f"`{view.name}` is a terminal aggregate without an index, so nothing computes it. Give "
            "the dataset `index=True`, or read the dataset that it aggregates [read-dataset]"
        )
    if mode is not Mode.AS_OF:
        raise ReadFailed(
            f"`{view.name}` is a terminal aggregate, which has no rows of its own and is computed "
            f"as of a time: it cannot be read in mode `{mode}`. Omit the mode, or read the "
            "dataset that it aggregates [read-mode]"
        )
    job = (await PostgresReader(pool).read_jobs([view.served_by])).get(view.served_by)
    if job is None:
        raise ReadFailed(
            f"`{view.name}` was deleted while the read was planned; read again [read-dataset]"
        )
    step, [topic] = _aggregate_of(job), job.inputs
    layout = layouts.get(topic, TopicLayout(step.keys, step.input.timestamp))
    return InputTopic(topic, layout, job)


def _aggregate_of(job: Job) -> AggregateSpec:
    step = job.step
    assert isinstance(step, AggregateSpec), "a dataset without a topic is a terminal aggregate"
    assert step.output.key_names == step.keys, "a result has the keys that it is grouped by"
    return step


def _check_not_expired(
    dataset: DatasetName,
    slices: Sequence[TopicSlice],
    aggregate: AggregateSpec | None,
    as_of: Micros,
) -> None:
    """Raise ReadFailed if rows that a read as of a time needs were removed."""
    expired_to = max((part.expired_to for part in slices if part.expired_rows), default=None)
    if expired_to is None:
        return
    rows = sum(part.expired_rows for part in slices)
    reach = 0 if aggregate is None else reach_us(aggregate)
    if reach is None:
        raise ReadFailed(
            f"`{dataset}` is not complete as of any time: it is computed from all rows, and {rows} "
            "that are older than the `history` of its input were removed [read-expired]"
        )
    if as_of < expired_to + reach:
        complete = datetime.fromtimestamp((expired_to + reach) / 1e6, UTC)
        raise ReadFailed(
            f"`{dataset}` is complete as of {complete.isoformat()} or later: {rows} rows that are "
            "older than its `history` were removed. Read it as of a later time, or in mode "
            "`changelog` for the rows that are left [read-expired]"
        )


def _check_complete(topic: TopicName, slices: Sequence[TopicSlice]) -> None:
    if not slices:
        raise ReadFailed(
            f"topic `{topic}` does not exist on the broker; restore the topic [read-incomplete]"
        )
    for part in slices:
        if part.gap is not None:
            first, following = part.gap
            raise ReadFailed(
                f"records of `{topic}`, partition {part.partition[1]}, from offset "
                f"{first} to {following} were deleted before they were in history. Keep "
                "FENNEL_HISTORY_BEFORE_DELETION on, and log those rows again "
                "[read-incomplete]"
            )
