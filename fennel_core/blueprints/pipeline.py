"""One pipeline → jobs and topics.

Theory. Walking the operators from the inputs on, a *flow* is what an operator would put out, not
yet put anywhere. It is either *loose*, a union of branches, each a topic with a run of stateless
native operators still to be applied, or *pending*, the one step of a job whose output topic is not
chosen yet. Stateless operators lengthen the runs of a loose flow and so are fused for nothing;
every other operator needs its input on a topic, partitioned the way it asks, and only then is a job
made for what came before. So a topic exists only where state, a change of key, user code or a
dataset's content needs one; a pending step writes straight into the partitioning its consumer
wants; and user code, being a pending step of its own, is never part of another.

Where windows close by event time behind a join, the join tells how far event time has come (what it
emits does not, see `engine/watermarks.py`), and every topic from there to the windows carries that.

A flow that several operators consume is put on a topic once, so that user code runs once. A job
reads each topic once, so a second branch over the same topic gets a copy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

from fennel_core.blueprints import identity
from fennel_core.blueprints.assembly import Assembly
from fennel_core.blueprints.compiler_input import PipelineInput, TypedOperator
from fennel_core.blueprints.logical import AssetKey
from fennel_core.operators import spec
from fennel_core.vocab.dtypes import Field
from fennel_core.vocab.ids import DatasetName
from fennel_core.vocab.schema import Schema
from fennel_core.wire import operators as wire

Columns = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicContent:
    """A topic and how it is partitioned (no columns: by position)."""

    topic: AssetKey
    schema: Schema
    partition_by: Columns
    watermark: bool = False
    """Every partition of it is told the largest event time written to any."""


@dataclass(frozen=True, slots=True)
class StreamBranch:
    content: TopicContent
    stages: tuple[spec.MapStage, ...]

    @property
    def schema(self) -> Schema:
        return self.stages[-1].output if self.stages else self.content.schema


@dataclass(frozen=True, slots=True)
class StatelessStream:
    """Stateless native operators over topics, not applied yet."""

    branches: tuple[StreamBranch, ...]
    schema: Schema


@dataclass(frozen=True, slots=True)
class PendingStep:
    """A step whose job has no output topic yet. `salted`: its result may depend on more than its
    inputs.
    """

    step: spec.StepSpec
    inputs: tuple[AssetKey, ...]
    schema: Schema
    noun: str
    salted: bool = False
    watermark: bool = False
    """It tells the frontier: the topic it is put on carries it."""


Stream = StatelessStream | PendingStep


@dataclass(frozen=True, slots=True)
class PipelineResult:
    """Where a dataset's content is: on a topic, or (terminal aggregates) only in the state of
    `job`.
    """

    job: AssetKey
    topic: AssetKey | None


@dataclass(slots=True)
class PipelineCompiler:
    """`contents`: the topics of the datasets that were compiled before."""

    assembly: Assembly
    contents: dict[DatasetName, TopicContent]
    dataset: DatasetName
    version: int
    target: Schema
    pipeline: PipelineInput
    flows: dict[str, Stream] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"{self.dataset}.{self.pipeline.name}"

    def run(self) -> PipelineResult:
        """Make every job of the pipeline; the last one writes the dataset's topic."""
        consumers = Counter(i for node in self.pipeline.nodes for i in wire.operand_ids(node.kind))
        *inner, root = self.pipeline.nodes
        for node in inner:
            flow = self.flow(node, node.output)
            if consumers[node.id] > 1 and not (
                isinstance(flow, StatelessStream) and not any(b.stages for b in flow.branches)
            ):
                flow = _loose(self.place(flow, flow.schema.key_names))
            self.flows[node.id] = flow
        # The dataset's own schema fixes the order of columns and keys.
        return self.finish(self.flow(root, self.target))

    def finish(self, flow: Stream) -> PipelineResult:
        """Put the result where the dataset lives. It carries the dataset's version, so that raising
        it computes this again.
        """
        match flow:
            case StatelessStream():
                pending = self.fused(flow, self.target)
            case PendingStep():
                pending = flow
            case unreachable:
                assert_never(unreachable)
        terminal = isinstance(pending.step, spec.AggregateSpec) and pending.step.terminal
        partition_by = None if terminal else self.target.key_names
        job, topic = self.assembly.add_job(
            pending.step,
            pending.inputs,
            partition_by,
            salt=identity.user_code_salt(self.version, self.pipeline.includes)
            if pending.salted
            else self.version,
            title=f"{self.title}: {pending.noun}",
            content=self.dataset,
        )
        return PipelineResult(job, topic)

    # --- flows

    @property
    def closing(self) -> bool:
        """Does any operator close windows by event time?"""
        return any(_closes(node.kind) for node in self.pipeline.nodes)

    def flow(self, node: TypedOperator, output: Schema) -> Stream:
        """What `node` puts out, with columns in the order of `output`."""
        match node.kind:
            case wire.DatasetRef(dataset):
                return _loose(self.contents[dataset])
            case (
                wire.AssignExpr()
                | wire.FilterExpr()
                | wire.Rename()
                | wire.Drop()
                | wire.Dropnull()
                | wire.Explode()
            ) as op:
                return self.longer(self.flows[op.operand], spec.MapStage(op, output))
            case wire.Union_(operands):
                loose = [self.loosened(self.flows[o]) for o in operands]
                return StatelessStream(tuple(b for flow in loose for b in flow.branches), output)
            case wire.Transform(operand, _, code):
                return self.user_code(
                    "transform",
                    operand,
                    spec.UserCodeSpec("transform", code, None, self.schema_of(operand), output),
                )
            case wire.Filter(operand, code):
                return self.user_code(
                    "filter",
                    operand,
                    spec.UserCodeSpec("filter", code, None, self.schema_of(operand), output),
                )
            case wire.Assign(operand, column, dtype, code):
                step = spec.UserCodeSpec(
                    "assign", code, Field(column, dtype), self.schema_of(operand), output
                )
                return self.user_code("assign", operand, step)
            case _:
                return self.stateful(node.kind, output)

    def stateful(self, kind: wire.OperatorKind, output: Schema) -> PendingStep:
        match kind:
            case wire.Aggregate(operand, keys, specs, along, emit):
                ordered = _in_order(keys, output)
                rows = self.rows(operand)
                step = spec.AggregateSpec(
                    rows.schema,
                    ordered,
                    specs,
                    along,
                    emit is wire.Emit.FINAL,
                    kind.terminal,
                    output,
                )
                return self.after(rows, ordered, step, "aggregate")
            case wire.First(operand, by):
                ordered = _in_order(by, output)
                return self.after(
                    self.flows[operand],
                    ordered,
                    spec.FirstLatestSpec(self.schema_of(operand), ordered, True, output),
                    "first",
                )
            case wire.Latest(operand, by):
                ordered = _in_order(by, output)
                return self.after(
                    self.flows[operand],
                    ordered,
                    spec.FirstLatestSpec(self.schema_of(operand), ordered, False, output),
                    "latest",
                )
            case wire.Dedup(operand, by, window):
                columns = by or self.schema_of(operand).value_names
                return self.after(
                    self.flows[operand],
                    columns,
                    spec.DedupSpec(self.schema_of(operand), columns, window, output),
                    "dedup",
                )
            case wire.Changelog(operand, column, deletes):
                schema = self.schema_of(operand)
                return self.after(
                    self.flows[operand],
                    schema.key_names,
                    spec.ChangelogSpec(schema, column, deletes, output),
                    "changelog",
                )
            case wire.WindowOp(operand, window, by, name, specs):
                windows = spec.WindowsSpec(self.schema_of(operand), by, name, window, output, specs)
                return self.after(self.flows[operand], by, windows, "windows")
            case wire.Join():
                return self.join(kind, output)
            case _:
                raise AssertionError(f"{type(kind).__name__} is stateless")

    def join(self, op: wire.Join, output: Schema) -> PendingStep:
        """The left side goes where the right side's keys are: partitioned by its columns in the
        order of the right keys.
        """
        right = self.right_content(op.right)
        pairs = {right_key: left for left, right_key in op.on}
        left_on = tuple(pairs[key] for key in right.schema.key_names)
        columns = (*right.schema.value_names, right.schema.timestamp)
        taken = (
            tuple(c for c in columns if c in op.fields) if op.fields else right.schema.value_names
        )
        left = self.place(self.rows(op.left), left_on, unlike=right.topic)
        step = spec.JoinSpec(
            left=left.schema,
            right=right.schema,
            left_on=left_on,
            right_values=taken,
            inner=op.how is wire.JoinHow.INNER,
            low_us=op.within_low_us,
            high_us=op.within_high_us,
            output=output,
        )
        return PendingStep(step, (left.topic, right.topic), output, "join", watermark=self.closing)

    def right_content(self, operand: str) -> TopicContent:
        """The right side of a join is a dataset, on its own topic."""
        flow = self.flows[operand]
        assert isinstance(flow, StatelessStream), "the right side of a join is a dataset"
        (branch,) = flow.branches
        assert not branch.stages, "the right side of a join is a dataset as it is"
        return branch.content

    def user_code(self, noun: str, operand: str, step: spec.UserCodeSpec) -> PendingStep:
        """User code reads a topic and writes one. Versions of a key stay on one partition, in
        order.
        """
        content = self.place(self.flows[operand], self.schema_of(operand).key_names)
        return PendingStep(
            step, (content.topic,), step.output, noun, salted=True, watermark=content.watermark
        )

    def rows(self, operand: str) -> Stream:
        """The operand for a step that may be partitioned by anything: a keyed one as signed facts,
        which carry the end of each row.
        """
        flow = self.flows[operand]
        if not flow.schema.keyed:
            return flow
        content = self.place(flow, flow.schema.key_names)
        facts = spec.with_validity(content.schema)
        return PendingStep(
            spec.IntervalsSpec(content.schema, facts),
            (content.topic,),
            facts,
            "intervals",
            watermark=content.watermark,
        )

    def after(
        self, flow: Stream, partition_by: Columns, step: spec.StepSpec, noun: str
    ) -> PendingStep:
        """A stateful step over its operand, which is partitioned for it."""
        closes = spec.needs_watermark(step)
        content = self.place(flow, partition_by, watermark=closes)
        passes = content.watermark and not closes
        return PendingStep(step, (content.topic,), step.output, noun, watermark=passes)  # type: ignore[union-attr]  # Table has no output and is never made here

    def schema_of(self, operand: str) -> Schema:
        return self.flows[operand].schema

    # --- putting flows on topics

    def longer(self, flow: Stream, stage: spec.MapStage) -> StatelessStream:
        loose = self.loosened(flow)
        return StatelessStream(
            tuple(StreamBranch(b.content, (*b.stages, stage)) for b in loose.branches), stage.output
        )

    def loosened(self, flow: Stream) -> StatelessStream:
        """The flow as branches over topics; a pending step gets its topic, by key or by
        position.
        """
        return (
            flow
            if isinstance(flow, StatelessStream)
            else _loose(self.place(flow, flow.schema.key_names))
        )

    def place(
        self,
        flow: Stream,
        partition_by: Columns,
        *,
        unlike: AssetKey | None = None,
        watermark: bool = False,
    ) -> TopicContent:
        """The flow on a topic partitioned by these columns (none: however it is), not `unlike`, and
        with the frontier if asked.
        """
        match flow:
            case StatelessStream(branches=(StreamBranch(content, ()),)):
                fits = content.topic != unlike and (content.watermark or not watermark)
                if fits and content.partition_by == partition_by:
                    return content
                if fits and not partition_by and not content.schema.keyed:
                    return content
                pending = self.fused(flow, flow.schema)
            case StatelessStream():
                pending = self.fused(flow, flow.schema)
            case PendingStep():
                pending = flow
            case unreachable:
                assert_never(unreachable)
        watermark = watermark or pending.watermark
        _, topic = self.assembly.add_job(
            pending.step,
            pending.inputs,
            partition_by,
            salt=identity.user_code_salt(self.version, self.pipeline.includes)
            if pending.salted
            else 0,
            title=f"{self.title}: {pending.noun}",
            content=f"{self.title}: {pending.noun}"
            + (f" by {', '.join(partition_by)}" if partition_by else ""),
            watermark=watermark,
        )
        assert topic is not None, "a job with a partitioning has an output"
        return TopicContent(topic, pending.schema, partition_by, watermark)

    def fused(self, flow: StatelessStream, output: Schema) -> PendingStep:
        """One job for the whole run."""
        branches = self.distinct(flow.branches)
        step = spec.MapSpec(
            tuple(b.content.schema for b in branches), tuple(b.stages for b in branches), output
        )
        heard = any(b.content.watermark for b in branches)
        return PendingStep(
            step, tuple(b.content.topic for b in branches), output, "map", watermark=heard
        )

    def distinct(self, branches: Sequence[StreamBranch]) -> list[StreamBranch]:
        """Branches over different topics: whatever reads a topic that stands before gets a copy of
        it.
        """
        seen: set[AssetKey] = set()
        out = []
        for number, branch in enumerate(branches):
            content = branch.content
            if content.topic in seen:
                step = spec.MapSpec((content.schema,), ((),), content.schema)
                _, topic = self.assembly.add_job(
                    step,
                    (content.topic,),
                    content.partition_by,
                    salt=number,
                    title=f"{self.title}: copy",
                    content=f"{self.title}: copy",
                    watermark=content.watermark,
                )
                assert topic is not None
                content = TopicContent(
                    topic, content.schema, content.partition_by, content.watermark
                )
            seen.add(content.topic)
            out.append(StreamBranch(content, branch.stages))
        return out


def _closes(kind: wire.OperatorKind) -> bool:
    match kind:
        case wire.WindowOp():
            return True
        case wire.Aggregate(specs=specs):
            return any(wire.is_discrete(one.window) for one in specs)
        case _:
            return False


def _loose(content: TopicContent) -> StatelessStream:
    return StatelessStream((StreamBranch(content, ()),), content.schema)


def _in_order(keys: Columns, output: Schema) -> Columns:
    """Grouping keys in the order of the output's keys, which is the order of a lookup's key
    bytes.
    """
    assert set(keys) == set(output.key_names), "what is grouped by is the key of the result"
    return output.key_names
