"""A plan bound to one branch version: names resolved to registers, jobs and row indexes.

Everything about a query that depends only on (branch version, inputs, outputs) is computed once and
cached with the plan, because the hot path has a few hundred microseconds in all. Features become
numbers (registers of a flat list), fields become indexes in the rows that slots send, defaults
become physical values. Everything here is immutable and shared by all requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import assert_never

from fennel_core.blueprints.spec import DatasetView
from fennel_core.connections.erasures import ErasableKeys
from fennel_core.executors.calls import ExtractCall
from fennel_core.graph.passes.dependencies import datasets_looked_up
from fennel_core.plans import plan_nodes
from fennel_core.plans.absent_keys import AbsentValue
from fennel_core.plans.plan_nodes import QueryPlan, TypedFeature
from fennel_core.query.bound_expressions import BoundExpressions, group_expressions
from fennel_core.query.columns import QueryColumn
from fennel_core.query.encode import Encoder, encoder_of
from fennel_core.query.errors import LookupRejected, UnknownDataset
from fennel_core.query.lookups import row_bytes
from fennel_core.query.values import default_value
from fennel_core.vocab.dtypes import Dtype, Field, List, base
from fennel_core.vocab.ids import DatasetName, JobId, WorkspaceId
from fennel_core.wire.entities import FeatureRef

TIMESTAMP_PLACE = 0
"""A row is `[timestamp, value, …]`."""


@dataclass(frozen=True, slots=True)
class ServedDataset:
    """A dataset as lookups see it. `absent` are its values for a key without a row."""

    workspace: WorkspaceId
    view: DatasetView
    partitions: int
    absent: tuple[AbsentValue, ...]

    @property
    def absent_row(self) -> bytes:
        """The row that the public lookup uses for an absent key: every aggregation of no rows."""
        return row_bytes([empty.value for empty in self.absent])

    @property
    def serves_times(self) -> bool:
        """Whether it can be looked up as of times."""
        view = self.view
        return view.schema.keyed and view.served_by is not None and view.offline

    @property
    def erasable(self) -> ErasableKeys:
        return ErasableKeys(self.workspace, self.view.name, self.view.schema.key_names)

    def job(self) -> JobId:
        """Return the job that serves lookups; raises `LookupRejected` without one."""
        if not self.view.schema.keyed:
            raise LookupRejected(
                f"Dataset {self.view.name} does not have any key fields. Cannot "
                "perform lookup operation on it."
            )
        if self.view.served_by is None:
            raise LookupRejected(
                f"Please define an index on dataset : {self.view.name} for loookup"
            )
        return self.view.served_by

    def online_job(self) -> JobId:
        """Return the job for reads as of now; raises `LookupRejected` without an online index."""
        job = self.job()
        if not self.view.online:
            raise LookupRejected(f"Please define an online index on dataset : {self.view.name}")
        return job

    def offline_job(self) -> JobId:
        """Return the job for reads as of a time; raises `LookupRejected` without an offline
        index.
        """
        job = self.job()
        if not self.view.offline:
            raise LookupRejected(f"Please define an offline index on dataset : {self.view.name}")
        return job


@dataclass(frozen=True, slots=True)
class BoundRead:
    """Copies item `place` of the row to register `out`, with `fill` for null (None: keep nulls)."""

    place: int
    out: int
    dtype: Dtype
    fill: object


@dataclass(frozen=True, slots=True)
class BoundLookup:
    """A lookup in one job.

    `listed`: the key registers hold lists. `names` are the key features' short names, for messages.
    Lookups of a plan with the same `group` have the same keys of the same types and share them.
    """

    job: JobId
    partitions: int
    keys: tuple[int, ...]
    key_types: tuple[Dtype, ...]
    names: tuple[str, ...]
    absent: bytes
    reads: tuple[BoundRead, ...]
    listed: bool
    group: int
    erasable: ErasableKeys
    features: tuple[str, ...]
    """The features that are read, for messages."""


@dataclass(frozen=True, slots=True)
class ErasableLookup:
    """The erase keys of a lookup: `keys` are the registers of the erase-key `columns`, in order.

    `listed`: they hold lists.
    """

    dataset: DatasetName
    columns: tuple[str, ...]
    keys: tuple[int, ...]
    key_types: tuple[Dtype, ...]
    listed: bool


@dataclass(frozen=True, slots=True)
class BoundAlias:
    source: int
    out: int
    dtype: Dtype
    fill: object


@dataclass(frozen=True, slots=True)
class BoundExtractor:
    """An extractor call; `keep` pairs (index in the result, register) leave out given features.

    `tables`: the datasets that its code may look up, of a program for reads as of times.
    """

    call: ExtractCall
    inputs: tuple[int, ...]
    keep: tuple[tuple[int, int], ...]
    tables: Mapping[DatasetName, ServedDataset] = field(default_factory=dict)


BoundLocal = BoundAlias | BoundExpressions


@dataclass(frozen=True, slots=True)
class BoundLevel:
    local: tuple[BoundLocal, ...]
    lookups: tuple[BoundLookup, ...]
    extractors: tuple[BoundExtractor, ...]


@dataclass(frozen=True, slots=True)
class QueryProgram:
    """A bound plan.

    `inputs` are the given columns to read, with the register of each; `outputs` the columns of the
    response and their encoders. `repeated` are the jobs that more than one level looks up.
    `erasable`: the distinct lookups of datasets with erase keys.
    """

    inputs: tuple[tuple[str, Dtype, int], ...]
    levels: tuple[BoundLevel, ...]
    outputs: tuple[tuple[str, Encoder, int], ...]
    registers: int
    repeated: frozenset[JobId]
    erasable: tuple[ErasableLookup, ...] = ()


Registers = list[QueryColumn]


def bind(
    plan: QueryPlan, tables: Mapping[DatasetName, ServedDataset], *, offline: bool = False
) -> QueryProgram:
    """Bind a plan, for reads as of now or, `offline`, as of times.

    Raises `LookupRejected` or `UnknownDataset` for a dataset that is not served.
    """
    return _Binder(tables, offline=offline).bind(plan)


class _Binder:
    def __init__(self, tables: Mapping[DatasetName, ServedDataset], *, offline: bool) -> None:
        self._tables, self._offline = tables, offline
        self._registers: dict[FeatureRef, int] = {}
        self._given: frozenset[FeatureRef] = frozenset()
        self._erasable: dict[ErasableLookup, None] = {}
        self._groups: dict[tuple[tuple[FeatureRef, ...], tuple[Dtype, ...], bool], int] = {}

    def bind(self, plan: QueryPlan) -> QueryProgram:
        self._given = frozenset(i.ref for i in plan.inputs)
        inputs = tuple((i.ref.fqn, i.dtype, self._register(i.ref)) for i in plan.inputs)
        levels = tuple(self._level(level) for level in plan.levels)
        outputs = tuple(
            (o.ref.fqn, encoder_of(o.dtype), self._register(o.ref)) for o in plan.outputs
        )
        looked_up = Counter(job for level in levels for job in {step.job for step in level.lookups})
        repeated = frozenset(job for job, times in looked_up.items() if times > 1)
        return QueryProgram(
            inputs, levels, outputs, len(self._registers), repeated, tuple(self._erasable)
        )

    def _register(self, ref: FeatureRef) -> int:
        return self._registers.setdefault(ref, len(self._registers))

    def _level(self, level: plan_nodes.Level) -> BoundLevel:
        lookups: list[BoundLookup] = []
        extractors: list[BoundExtractor] = []
        local = tuple(self._local(part) for part in group_expressions(level.local))
        for step in level.remote:
            match step:
                case plan_nodes.LookupNode() | plan_nodes.ListLookupNode():
                    lookups.append(self._lookup(step))
                case plan_nodes.PythonExtractorNode():
                    extractors.append(self._extractor(step))
                case unreachable:
                    assert_never(unreachable)
        return BoundLevel(local, tuple(lookups), tuple(extractors))

    def _local(
        self, part: plan_nodes.AliasNode | tuple[plan_nodes.ExpressionNode, ...]
    ) -> BoundLocal:
        match part:
            case plan_nodes.AliasNode(source, output, default_json):
                fill = default_value(default_json, output.dtype)
                return BoundAlias(
                    self._register(source), self._register(output.ref), output.dtype, fill
                )
            case expressions:
                return BoundExpressions.of(expressions, self._register)

    def _lookup(self, step: plan_nodes.LookupNode | plan_nodes.ListLookupNode) -> BoundLookup:
        table = self._tables.get(step.dataset)
        if table is None:
            raise UnknownDataset(step.dataset)
        listed = isinstance(step, plan_nodes.ListLookupNode)
        names = table.view.schema.value_names
        declared = [empty.value if empty.declared else None for empty in table.absent]
        key_types = tuple(f.dtype for f in table.view.schema.keys)
        if table.view.erase_keys:
            places = list(map(table.view.schema.key_names.index, table.view.erase_keys))
            erasable = ErasableLookup(
                step.dataset,
                table.view.erase_keys,
                tuple(self._register(step.keys[place]) for place in places),
                tuple(key_types[place] for place in places),
                listed,
            )
            self._erasable[erasable] = None
        return BoundLookup(
            job=table.offline_job() if self._offline else table.online_job(),
            partitions=table.partitions,
            keys=tuple(self._register(ref) for ref in step.keys),
            key_types=key_types,
            names=tuple(ref.name for ref in step.keys),
            absent=row_bytes(declared),
            reads=tuple(self._read(read, table, names, listed=listed) for read in step.reads),
            listed=listed,
            group=self._groups.setdefault((step.keys, key_types, listed), len(self._groups)),
            erasable=table.erasable,
            features=tuple(read.output.ref.fqn for read in step.reads),
        )

    def _read(
        self,
        read: plan_nodes.FieldRead,
        table: ServedDataset,
        names: tuple[str, ...],
        *,
        listed: bool,
    ) -> BoundRead:
        output = read.output
        element = _element(output) if listed else output.dtype
        fill = default_value(read.default_json, element)
        if read.field == table.view.schema.timestamp:
            return BoundRead(TIMESTAMP_PLACE, self._register(output.ref), output.dtype, fill)
        number = names.index(read.field) if read.field in names else None
        if number is None:
            raise LookupRejected(
                f"Field: {read.field} is a key of dataset `{table.view.name}`: a "
                "feature cannot look it up"
            )
        empty = table.absent[number]
        if fill is None and not empty.declared:
            fill = empty.value
        return BoundRead(number + 1, self._register(output.ref), output.dtype, fill)

    def _extractor(self, step: plan_nodes.PythonExtractorNode) -> BoundExtractor:
        call = ExtractCall(
            code=step.code,
            featureset=step.featureset,
            extractor=step.name,
            inputs=_fields(step.inputs),
            outputs=_fields(step.outputs),
            datasets=tuple(step.datasets),
        )
        keep = tuple(
            (place, self._register(out.ref))
            for place, out in enumerate(step.outputs)
            if out.ref not in self._given
        )
        inputs = tuple(self._register(i.ref) for i in step.inputs)
        return BoundExtractor(call, inputs, keep, self._looked_up(step) if self._offline else {})

    def _looked_up(
        self, step: plan_nodes.PythonExtractorNode
    ) -> Mapping[DatasetName, ServedDataset]:
        """Return the datasets that the code of an extractor may look up as of times.

        Those that it names need an offline index; what it does not name fails when it is asked for.
        """
        found = {name: self._tables[name] for name in step.datasets if name in self._tables}
        named = datasets_looked_up(step.code.core_code)
        for name, table in found.items():
            if name in named:
                table.offline_job()
        return found


def _fields(features: tuple[TypedFeature, ...]) -> tuple[Field, ...]:
    return tuple(Field(f.ref.fqn, f.dtype) for f in features)


def _element(output: TypedFeature) -> Dtype:
    dtype = base(output.dtype)
    assert isinstance(dtype, List), "the client gives list lookups a list type"
    return dtype.of
