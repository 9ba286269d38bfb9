"""Check what a job has written: recompute a sample of its groups from its inputs, and compare with
the topic that it writes.

Theory. Only the state of a job is known to be of one moment with its offsets; its outputs are
written before the state moves. So inputs are read below the offsets that the state had, then the
output to its end, then the ends of the inputs. A group with an input row between the two may or may
not have its output yet, and is not compared. Every other group has the output of exactly the rows
that were read. The end of an output is read when it has reached the high watermark of the moment
after the offsets: before, a transaction of another partition may hide what is written already.

A step has closed every window up to the largest event time of the rows that it has applied, if not
more: watermarks of other partitions may have closed later ones. So results are compared up to that
time, which follows from the rows and not from the state.

A tombstone of a table-table join has no columns but its key, so those of its group may be null. It
is found by its position, which is made from that of its left row.

Outputs that are compared never lose rows of erased keys (`history.erasable_topics`); inputs may, so
groups of their erased keys are left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec
import polars as pl

from fennel_core.connections.erasures import ErasedKeys
from fennel_core.integrity.checks import (
    LOOKUP_TIMEOUT_S,
    DatasetFinding,
    KeyDifference,
    PartitionCheck,
    TopicRows,
    add_all,
)
from fennel_core.integrity.erased_groups import keys_not_erased
from fennel_core.integrity.errors import RowsUnreadable
from fennel_core.integrity.key_sample import KeySample
from fennel_core.integrity.naive_outputs import (
    OutputSpec,
    closed_by,
    inputs_of,
    output_row,
    tombstones_of,
    unmatched,
)
from fennel_core.integrity.naive_rows import RowDifference
from fennel_core.integrity.naive_values import InputRow
from fennel_core.operators.spec import JoinSpec, has_validity
from fennel_core.snapshots.rebuild import SlotClient
from fennel_core.vocab.ids import (
    DatasetName,
    JobId,
    Offset,
    PartitionIndex,
    TopicName,
    TopicPartition,
    WorkspaceId,
    partition_indexes,
)
from fennel_core.vocab.keys import key_bytes
from fennel_core.vocab.versions import IS_TOMBSTONE, META, POS, SIGN

ROWS: Final = "(rows)"
_encode = msgspec.msgpack.Encoder().encode


class WrittenRows(TopicRows, Protocol):
    """The versions of topics, and where they end. The methods block."""

    def settled_end(self, partition: TopicPartition) -> Offset:
        """Return an end below which every record is settled that is written now, committed or not.

        Raises RowsUnreadable if a transaction stays open.
        """
        ...

    def erased(self, topic: TopicName) -> Sequence[ErasedKeys]:
        """Return the erased keys of a topic's datasets: all whose rows a read before lacked."""
        ...

    def end(self, partition: TopicPartition) -> Offset:
        """Return the offset after the last record of a partition that a job can have read."""
        ...


@dataclass(frozen=True, slots=True)
class CheckedJob:
    """A job whose written rows are compared, and the dataset that it belongs to.

    `known`: groups that differed when it was last checked. They are checked again.
    """

    workspace: WorkspaceId
    dataset: DatasetName
    job: JobId
    title: str
    inputs: tuple[TopicName, ...]
    output: TopicName
    spec: OutputSpec
    partitions: int
    known: frozenset[bytes] = frozenset()

    def __str__(self) -> str:
        return f"{self.title} of {self.workspace} ({self.job})"


@dataclass(frozen=True, slots=True)
class UncomparedJob:
    """A job that a check does not compare, and why not."""

    workspace: WorkspaceId
    dataset: DatasetName
    job: JobId
    title: str
    reason: str

    def __str__(self) -> str:
        return f"{self.title} of {self.workspace} ({self.job})"


@dataclass(slots=True)
class _Groups:
    """The sampled groups of one partition: their rows per input, and those that cannot be
    compared. `watermark`: the largest event time of input 0, None without rows.
    """

    samples: list[KeySample]
    watermark: int | None
    chosen: list[bytes] = field(default_factory=list)
    unsettled: set[bytes] = field(default_factory=set)

    @property
    def too_large(self) -> frozenset[bytes]:
        return frozenset[bytes]().union(*(sample.excluded for sample in self.samples))


@dataclass(frozen=True, slots=True)
class _Written:
    """The rows that a job has written for sampled groups, and, of a table-table join, the
    tombstones of their left rows by position.
    """

    rows: KeySample
    tombstones: KeySample


class OutputCheck:
    """Checks the written rows of jobs, `keys` sampled groups of each."""

    def __init__(self, slots: SlotClient, topics: WrittenRows, *, keys: int, seed: int) -> None:
        self._slots, self._topics, self._keys, self._seed = slots, topics, keys, seed

    async def run(self, checked: CheckedJob) -> DatasetFinding:
        """Check partitions in an order that the seed makes, until there are enough groups."""

        async def compare(part: PartitionIndex, address: str, finding: DatasetFinding) -> None:
            await self._compare_partition(checked, part, address, finding)

        check = PartitionCheck(self._slots, self._keys, self._seed)
        return await check.run(checked.job, checked.partitions, checked.known, compare)

    async def _compare_partition(
        self, checked: CheckedJob, part: PartitionIndex, address: str, finding: DatasetFinding
    ) -> None:
        async with asyncio.timeout(LOOKUP_TIMEOUT_S):
            reply = await self._slots.call(
                address,
                "lookup_at_offsets",
                {"job": checked.job, "part": part, "keys": [], "as_of": []},
            )
        offsets = {topic: Offset(reply["offsets"].get(topic, 0)) for topic in checked.inputs}
        wanted = max(self._keys - finding.keys, 0)
        groups = await asyncio.to_thread(self._read_inputs, checked, part, offsets, wanted)
        if not groups.chosen:
            return
        inputs = await asyncio.to_thread(_rows_of, checked, groups)
        output = await asyncio.to_thread(self._read_output, checked, groups.chosen, inputs)
        await asyncio.to_thread(self._find_unsettled, checked, part, offsets, groups)
        await asyncio.to_thread(_compare, checked, groups, inputs, output, finding)

    def _read_inputs(
        self,
        checked: CheckedJob,
        part: PartitionIndex,
        offsets: Mapping[TopicName, Offset],
        wanted: int,
    ) -> _Groups:
        samples, watermarks = [], []
        for topic, each in zip(checked.inputs, inputs_of(checked.spec), strict=True):
            sample = KeySample(each.columns, self._seed, wanted, checked.known)
            columns = (*each.schema.names, *META)
            frames = self._topics.below((topic, part), offsets[topic], columns, each.columns)
            largest: list[int] = []
            add_all(_largest_times(frames, each.schema.timestamp, largest), sample.add)
            if self._topics.expired_to((topic, part)) is not None:
                raise RowsUnreadable(
                    f"rows older than `history` were removed from {topic}[{part}], so nothing can "
                    "be recomputed"
                )
            samples.append(sample)
            watermarks.append(max(largest, default=None))
        ranks = {key: sample.rank_of(key) for sample in samples for key in sample.chosen()}
        ranks = {key: ranks[key] for key in self._not_erased(checked, ranks)}
        always = [key for key in ranks if key in checked.known]
        others = sorted((key for key in ranks if key not in checked.known), key=ranks.__getitem__)
        return _Groups(samples, watermarks[0], [*always, *others[:wanted]])

    def _not_erased(self, checked: CheckedJob, keys: Iterable[bytes]) -> frozenset[bytes]:
        """Return the groups that have all of their rows, after the inputs were read: one input may
        lack the rows of an erased key, and another have its own of the same group.
        """
        left = frozenset(keys)
        for topic, each in zip(checked.inputs, inputs_of(checked.spec), strict=True):
            left = keys_not_erased(left, each.columns, self._topics.erased(topic))
        return left

    def _read_output(
        self, checked: CheckedJob, chosen: Sequence[bytes], inputs: Sequence[_RowsByGroup]
    ) -> _Written:
        columns = (*checked.spec.output.names, *META)
        of_group = inputs_of(checked.spec)[0].columns
        rows = KeySample(of_group, self._seed, 0, frozenset(chosen))
        left = [row for key in chosen for row in inputs[0].get(key, [])]
        ends = {_encode([tombstones_of(row)]) for row in left} if _ends_rows(checked.spec) else ()
        tombstones = KeySample((POS,), self._seed, 0, frozenset(ends))
        for part in partition_indexes(checked.partitions):
            partition = (checked.output, part)
            end = self._topics.settled_end(partition)
            for frame in self._topics.below(partition, end, columns):
                if not _ends_rows(checked.spec):
                    add_all(iter([frame]), rows.add)
                    continue
                add_all(iter([frame.filter(~pl.col(IS_TOMBSTONE))]), rows.add)
                add_all(iter([frame.filter(IS_TOMBSTONE)]), tombstones.add)
        return _Written(rows, tombstones)

    def _find_unsettled(
        self,
        checked: CheckedJob,
        part: PartitionIndex,
        offsets: Mapping[TopicName, Offset],
        groups: _Groups,
    ) -> None:
        """Note the groups with input rows that may or may not have their output."""
        for topic, each in zip(checked.inputs, inputs_of(checked.spec), strict=True):
            partition = (topic, part)
            # A left row that has moved to another group has left this one on another partition.
            ends_rows = _ends_rows(checked.spec)
            end = (self._topics.settled_end if ends_rows else self._topics.end)(partition)
            for frame in self._topics.between(partition, offsets[topic], end, each.columns):
                groups.unsettled.update(key_bytes(frame, each.columns))


_RowsByGroup = Mapping[bytes, Sequence[InputRow]]


def _ends_rows(spec: OutputSpec) -> bool:
    """Return whether the job writes tombstones that may not have the columns of a group."""
    return isinstance(spec, JoinSpec) and has_validity(spec.left)


def _largest_times(
    frames: Iterator[pl.DataFrame], timestamp: str, largest: list[int]
) -> Iterator[pl.DataFrame]:
    """Yield frames; append the largest event time of the rows that each of them adds."""
    for frame in frames:
        time = frame.filter(pl.col(SIGN) > 0)[timestamp].to_physical().max()
        if isinstance(time, int):
            largest.append(time)
        yield frame


def _rows_of(checked: CheckedJob, groups: _Groups) -> list[_RowsByGroup]:
    """Return, per input, the rows of the sampled groups."""
    inputs = inputs_of(checked.spec)
    return [sample.rows_of(each.time) for sample, each in zip(groups.samples, inputs, strict=True)]


def _compare(
    checked: CheckedJob,
    groups: _Groups,
    inputs: Sequence[_RowsByGroup],
    output: _Written,
    finding: DatasetFinding,
) -> None:
    spec = checked.spec
    written = output.rows.rows_of(spec.output.timestamp)
    ends = output.tombstones.rows_of(spec.output.timestamp)
    closed = closed_by(spec, groups.watermark)
    too_large = output.rows.excluded | groups.too_large
    for key in groups.chosen:
        if key in groups.unsettled or key in too_large:
            continue
        rows = [each.get(key, []) for each in inputs]
        names = [_encode([tombstones_of(row)]) for row in rows[0]] if _ends_rows(spec) else []
        if not output.tombstones.excluded.isdisjoint(names):
            too_large |= {key}
            continue
        tombstones = [row for name in dict.fromkeys(names) for row in ends.get(name, [])]
        found = [output_row(row) for row in (*written.get(key, []), *tombstones)]
        finding.keys += 1
        finding.compared.add(key)
        finding.rows += sum(map(len, rows))
        differences = unmatched(spec, rows, found, closed)
        if differences.missing or differences.extra:
            rows_of_both = RowDifference((ROWS,), differences.missing, differences.extra)
            finding.add(KeyDifference(key, None, rows_of_both))
    if too_large:
        finding.details.append(f"{len(too_large)} groups have too many rows to recompute")
