"""Compile one pipeline into jobs and topics.

The compiler walks the operators from the inputs on. A *stream* is the result of an operator before
it is written to a topic. It is one of two things:

- a `StatelessStream`: a union of branches, each a topic and the stateless native operators that are
  still to be applied to its rows;
- a `PendingStep`: the step of a job whose output topic is not chosen yet.

A stateless operator extends the branches of a stream, so consecutive ones are fused into one job.
Every other operator needs its input materialized on a topic, with a partitioning of its own; only
then is a job created for the stream. So a topic exists only where state, a change of key, user code
or a dataset's content requires one. A pending step writes with the partitioning that its consumer
needs. User code is a step of its own and never fused.

Where a join precedes windows that close by event time, the join writes a watermark to its output
(the event times that it emits are not enough, see `engine/watermarks.py`), and every topic from
there to the windows carries it.

A stream with several consumers is materialized once, so that user code runs once. A job reads each
topic once; a second branch over the same topic reads a copy.

Example: `events -> filter_expr -> rename -> aggregate by user` compiles to one job that filters and
renames and writes a topic partitioned by user, and one job that aggregates that topic.
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
    """A topic, and the columns that it is partitioned by (none: by position)."""

    topic: AssetKey
    schema: Schema
    partition_by: Columns
    watermark: bool = False
    """Each partition receives the largest event time that was written to any of them."""


@dataclass(frozen=True, slots=True)
class StreamBranch:
    """A topic and the stateless operators to apply to its rows."""

    content: TopicContent
    stages: tuple[spec.MapStage, ...]

    @property
    def schema(self) -> Schema:
        return self.stages[-1].output if self.stages else self.content.schema


@dataclass(frozen=True, slots=True)
class StatelessStream:
    """A union of topics with stateless native operators that are not applied yet."""

    branches: tuple[StreamBranch, ...]
    schema: Schema


@dataclass(frozen=True, slots=True)
class PendingStep:
    """A step whose job has no output topic yet.

    `noun` names the step in titles. `salted`: its result can depend on more than its inputs, as
    that of user code can.
    """

    step: spec.StepSpec
    inputs: tuple[AssetKey, ...]
    schema: Schema
    noun: str
    salted: bool = False
    watermark: bool = False
    """The step writes a watermark, so its output topic carries one."""


Stream = StatelessStream | PendingStep


@dataclass(frozen=True, slots=True)
class PipelineResult:
    """The job that computes a dataset and the topic with its content.

    `topic` is None for a terminal aggregate, whose content is only in the state of `job`.
    """

    job: AssetKey
    topic: AssetKey | None


@dataclass(slots=True)
class PipelineCompiler:
    """Compiles one pipeline into `assembly`.

    `contents` holds the topics of the datasets that were compiled before, `target` is the schema of
    the dataset that the pipeline computes.
    """

    assembly: Assembly
    contents: dict[DatasetName, TopicContent]
    dataset: DatasetName
    version: int
    target: Schema
    pipeline: PipelineInput
    streams: dict[str, Stream] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"{self.dataset}.{self.pipeline.name}"

    def run(self) -> PipelineResult:
        """Add every job of the pipeline; the last one writes the dataset's topic."""
        consumers = Counter(i for node in self.pipeline.nodes for i in wire.operand_ids(node.kind))
        *inner, root = self.pipeline.nodes
        for node in inner:
            stream = self.compile_operator(node, node.output)
            if consumers[node.id] > 1 and not (
                isinstance(stream, StatelessStream) and not any(b.stages for b in stream.branches)
            ):
                stream = _topic_stream(self.materialize(stream, stream.schema.key_names))
            self.streams[node.id] = stream
        # The dataset's own schema fixes the order of columns and keys.
        return self.finish(self.compile_operator(root, self.target))

    def finish(self, stream: Stream) -> PipelineResult:
        """Add the job that writes the dataset.

        The dataset's version is part of its identity, so raising the version computes it again.
        """
        match stream:
            case StatelessStream():
                pending = self.fuse(stream, self.target)
            case PendingStep():
                pending = stream
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
            entity=self.dataset,
        )
        return PipelineResult(job, topic)

    # --- operators

    @property
    def closes_windows(self) -> bool:
        """True if any operator closes windows by event time."""
        return any(_closes_windows(node.kind) for node in self.pipeline.nodes)

    def compile_operator(self, node: TypedOperator, output: Schema) -> Stream:
        """Return the result of `node`, with columns in the order of `output`."""
        match node.kind:
            case wire.DatasetRef(dataset):
                return _topic_stream(self.contents[dataset])
            case (
                wire.AssignExpr()
                | wire.FilterExpr()
                | wire.Rename()
                | wire.Drop()
                | wire.Dropnull()
                | wire.Explode()
            ) as op:
                return self.with_stage(self.streams[op.operand], spec.MapStage(op, output))
            case wire.Union_(operands):
                united = [self.as_stateless(self.streams[o]) for o in operands]
                return StatelessStream(
                    tuple(b for stream in united for b in stream.branches), output
                )
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
        """Return the step of an operator that keeps state."""
        match kind:
            case wire.Aggregate(operand, keys, specs, along):
                ordered = _in_key_order(keys, output)
                rows = self.with_validity(operand)
                step = spec.AggregateSpec(
                    rows.schema,
                    ordered,
                    specs,
                    along,
                    kind.terminal,
                    output,
                )
                return self.stateful_step(rows, ordered, step, "aggregate")
            case wire.First(operand, by):
                ordered = _in_key_order(by, output)
                return self.stateful_step(
                    self.streams[operand],
                    ordered,
                    spec.FirstLatestSpec(self.schema_of(operand), ordered, True, output),
                    "first",
                )
            case wire.Latest(operand, by):
                ordered = _in_key_order(by, output)
                return self.stateful_step(
                    self.streams[operand],
                    ordered,
                    spec.FirstLatestSpec(self.schema_of(operand), ordered, False, output),
                    "latest",
                )
            case wire.Dedup(operand, by, window):
                columns = by or self.schema_of(operand).value_names
                return self.stateful_step(
                    self.streams[operand],
                    columns,
                    spec.DedupSpec(self.schema_of(operand), columns, window, output),
                    "dedup",
                )
            case wire.Changelog(operand, column, deletes):
                schema = self.schema_of(operand)
                return self.stateful_step(
                    self.streams[operand],
                    schema.key_names,
                    spec.ChangelogSpec(schema, column, deletes, output),
                    "changelog",
                )
            case wire.WindowOp(operand, window, by, name, specs):
                windows = spec.WindowsSpec(self.schema_of(operand), by, name, window, output, specs)
                return self.stateful_step(self.streams[operand], by, windows, "windows")
            case wire.Join():
                return self.join(kind, output)
            case _:
                raise AssertionError(f"{type(kind).__name__} is stateless")

    def join(self, op: wire.Join, output: Schema) -> PendingStep:
        """Return the join, with its left side co-partitioned with the right dataset.

        The left side is partitioned by its join columns in the order of the right keys.
        """
        right = self.right_side(op.right)
        pairs = {right_key: left for left, right_key in op.on}
        left_on = tuple(pairs[key] for key in right.schema.key_names)
        columns = (*right.schema.value_names, right.schema.timestamp)
        joined = (
            tuple(c for c in columns if c in op.fields) if op.fields else right.schema.value_names
        )
        left = self.materialize(self.with_validity(op.left), left_on, other_than=right.topic)
        step = spec.JoinSpec(
            left=left.schema,
            right=right.schema,
            left_on=left_on,
            right_values=joined,
            inner=op.how is wire.JoinHow.INNER,
            low_us=op.within_low_us,
            high_us=op.within_high_us,
            output=output,
        )
        return PendingStep(
            step, (left.topic, right.topic), output, "join", watermark=self.closes_windows
        )

    def right_side(self, operand: str) -> TopicContent:
        """Return the topic of the dataset on the right side of a join."""
        stream = self.streams[operand]
        assert isinstance(stream, StatelessStream), "the right side of a join is a dataset"
        (branch,) = stream.branches
        assert not branch.stages, "the right side of a join is a dataset without operators"
        return branch.content

    def user_code(self, noun: str, operand: str, step: spec.UserCodeSpec) -> PendingStep:
        """Return a step of user code, which reads one topic and writes one.

        It keeps the partitioning by key, so the versions of a key stay in order.
        """
        content = self.materialize(self.streams[operand], self.schema_of(operand).key_names)
        return PendingStep(
            step, (content.topic,), step.output, noun, salted=True, watermark=content.watermark
        )

    def with_validity(self, operand: str) -> Stream:
        """Return the operand for a step that may be partitioned by any columns.

        Rows of a keyed operand get the end of their validity as a column, because it cannot be
        derived any more once rows of one key are on several partitions.
        """
        stream = self.streams[operand]
        if not stream.schema.keyed:
            return stream
        content = self.materialize(stream, stream.schema.key_names)
        output = spec.with_validity(content.schema)
        return PendingStep(
            spec.IntervalsSpec(content.schema, output),
            (content.topic,),
            output,
            "intervals",
            watermark=content.watermark,
        )

    def stateful_step(
        self, stream: Stream, partition_by: Columns, step: spec.StepSpec, noun: str
    ) -> PendingStep:
        """Return a stateful step over its operand, partitioned as the step requires."""
        closes = spec.needs_watermark(step)
        content = self.materialize(stream, partition_by, watermark=closes)
        forwards = content.watermark and not closes
        assert not isinstance(step, spec.TableSpec), "a table has no output"
        return PendingStep(step, (content.topic,), step.output, noun, watermark=forwards)

    def schema_of(self, operand: str) -> Schema:
        """Return the schema of an operand."""
        return self.streams[operand].schema

    # --- topics

    def with_stage(self, stream: Stream, stage: spec.MapStage) -> StatelessStream:
        """Return the stream with one more stateless operator."""
        stateless = self.as_stateless(stream)
        return StatelessStream(
            tuple(StreamBranch(b.content, (*b.stages, stage)) for b in stateless.branches),
            stage.output,
        )

    def as_stateless(self, stream: Stream) -> StatelessStream:
        """Return the stream as branches over topics.

        A pending step is materialized, partitioned by its key, or by position if it has none.
        """
        return (
            stream
            if isinstance(stream, StatelessStream)
            else _topic_stream(self.materialize(stream, stream.schema.key_names))
        )

    def materialize(
        self,
        stream: Stream,
        partition_by: Columns,
        *,
        other_than: AssetKey | None = None,
        watermark: bool = False,
    ) -> TopicContent:
        """Return a topic with the content of the stream, adding a job unless one exists already.

        The topic is partitioned by `partition_by` (empty: any partitioning of keyless rows), is not
        `other_than`, and carries a watermark if `watermark` is true.
        """
        match stream:
            case StatelessStream(branches=(StreamBranch(content, ()),)):
                fits = content.topic != other_than and (content.watermark or not watermark)
                if fits and content.partition_by == partition_by:
                    return content
                if fits and not partition_by and not content.schema.keyed:
                    return content
                pending = self.fuse(stream, stream.schema)
            case StatelessStream():
                pending = self.fuse(stream, stream.schema)
            case PendingStep():
                pending = stream
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
            entity=self.dataset,
            watermark=watermark,
        )
        assert topic is not None, "a job with a partitioning has an output"
        return TopicContent(topic, pending.schema, partition_by, watermark)

    def fuse(self, stream: StatelessStream, output: Schema) -> PendingStep:
        """Return one step that applies the stateless operators of all branches."""
        branches = self.with_distinct_topics(stream.branches)
        step = spec.MapSpec(
            tuple(b.content.schema for b in branches), tuple(b.stages for b in branches), output
        )
        watermark = any(b.content.watermark for b in branches)
        return PendingStep(
            step, tuple(b.content.topic for b in branches), output, "map", watermark=watermark
        )

    def with_distinct_topics(self, branches: Sequence[StreamBranch]) -> list[StreamBranch]:
        """Return the branches over distinct topics.

        A branch over a topic that an earlier branch reads gets a copy of the topic.
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
                    entity=self.dataset,
                    watermark=content.watermark,
                )
                assert topic is not None
                content = TopicContent(
                    topic, content.schema, content.partition_by, content.watermark
                )
            seen.add(content.topic)
            out.append(StreamBranch(content, branch.stages))
        return out


def _closes_windows(kind: wire.OperatorKind) -> bool:
    match kind:
        case wire.WindowOp():
            return True
        case wire.Aggregate(specs=specs):
            return any(wire.is_discrete(one.window) for one in specs)
        case _:
            return False


def _topic_stream(content: TopicContent) -> StatelessStream:
    return StatelessStream((StreamBranch(content, ()),), content.schema)


def _in_key_order(keys: Columns, output: Schema) -> Columns:
    """Return grouping keys in the order of the output's keys: that of a lookup's key bytes."""
    assert set(keys) == set(output.key_names), "the grouping keys are the keys of the result"
    return output.key_names
