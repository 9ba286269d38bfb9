"""Check what a job has written: recompute a sample of its groups from its inputs, and compare with
the topic that it writes.

Theory. Only the state of a job is known to be of one moment with its offsets; its outputs are
written before the state moves. So inputs are read below the offsets that the state had, then the
output to its end, then the ends of the inputs. A group with an input row between the two may or may
not have its output yet, and is not compared. Every other group has the output of exactly the rows
that were read. The end of an output is read when it has reached the high watermark of the moment
after the offsets: before, a transaction of another partition may hide what is written already.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec

from fennel_core.integrity.checks import (
    LOOKUP_TIMEOUT_S,
    DatasetFinding,
    KeyDifference,
    PartitionCheck,
    TopicRows,
    add_all,
)
from fennel_core.integrity.key_sample import KeySample
from fennel_core.integrity.naive_outputs import (
    OutputSpec,
    Row,
    groups_of,
    output_row,
    written_rows,
)
from fennel_core.integrity.naive_rows import RowDifference
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
from fennel_core.vocab.versions import META

ROWS: Final = "(rows)"
_encode = msgspec.msgpack.Encoder(order="sorted").encode


class WrittenRows(TopicRows, Protocol):
    """The versions of topics, and where they end. The methods block."""

    def settled_end(self, partition: TopicPartition) -> Offset:
        """Return an end below which every record is settled that is written now, committed or not.

        Raises RowsUnreadable if a transaction stays open.
        """
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


@dataclass(slots=True)
class _Groups:
    """The sampled groups of one partition: their rows per input, and those that cannot be
    compared.
    """

    samples: list[KeySample]
    chosen: list[bytes] = field(default_factory=list)
    unsettled: set[bytes] = field(default_factory=set)


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
        output = await asyncio.to_thread(self._read_output, checked, groups.chosen)
        await asyncio.to_thread(self._find_unsettled, checked, part, offsets, groups)
        await asyncio.to_thread(_compare, checked, groups, output, finding)

    def _read_inputs(
        self,
        checked: CheckedJob,
        part: PartitionIndex,
        offsets: Mapping[TopicName, Offset],
        wanted: int,
    ) -> _Groups:
        samples = []
        for topic, (schema, columns) in zip(checked.inputs, groups_of(checked.spec), strict=True):
            sample = KeySample(columns, self._seed, wanted, checked.known)
            frames = self._topics.below((topic, part), offsets[topic], (*schema.names, *META))
            add_all(frames, sample.add)
            samples.append(sample)
        ranks = {key: sample.rank_of(key) for sample in samples for key in sample.chosen()}
        always = [key for key in ranks if key in checked.known]
        others = sorted((key for key in ranks if key not in checked.known), key=ranks.__getitem__)
        return _Groups(samples, [*always, *others[:wanted]])

    def _read_output(self, checked: CheckedJob, chosen: Sequence[bytes]) -> KeySample:
        schema, columns = checked.spec.output, groups_of(checked.spec)[0][1]
        sample = KeySample(columns, self._seed, 0, frozenset(chosen))
        for part in partition_indexes(checked.partitions):
            partition = (checked.output, part)
            end = self._topics.settled_end(partition)
            add_all(self._topics.below(partition, end, (*schema.names, *META)), sample.add)
        return sample

    def _find_unsettled(
        self,
        checked: CheckedJob,
        part: PartitionIndex,
        offsets: Mapping[TopicName, Offset],
        groups: _Groups,
    ) -> None:
        """Note the groups with input rows that may or may not have their output."""
        for topic, (_, columns) in zip(checked.inputs, groups_of(checked.spec), strict=True):
            first, end = offsets[topic], self._topics.end((topic, part))
            for frame in self._topics.between((topic, part), first, end, columns):
                groups.unsettled.update(key_bytes(frame, columns))


def _compare(
    checked: CheckedJob, groups: _Groups, output: KeySample, finding: DatasetFinding
) -> None:
    times = [schema.timestamp for schema, _ in groups_of(checked.spec)]
    inputs = [sample.rows_of(time) for sample, time in zip(groups.samples, times, strict=True)]
    written = output.rows_of(checked.spec.output.timestamp)
    too_large = output.excluded.union(*(sample.excluded for sample in groups.samples))
    for key in groups.chosen:
        if key in groups.unsettled or key in too_large:
            continue
        rows = [each.get(key, []) for each in inputs]
        expected = written_rows(checked.spec, rows)
        found = [output_row(row) for row in written.get(key, [])]
        finding.keys += 1
        finding.compared.add(key)
        finding.rows += sum(map(len, rows))
        difference = _difference(checked.spec.output.names, expected, found)
        if difference is not None:
            finding.add(KeyDifference(key, None, difference))
    if too_large:
        finding.details.append(f"{len(too_large)} groups have too many rows to recompute")


def _difference(
    names: Sequence[str], expected: Sequence[Row], found: Sequence[Row]
) -> RowDifference | None:
    """Compare two bags of rows; return the rows that only one of them has."""
    left, right = (Counter(_content(names, row) for row in rows) for rows in (expected, found))
    if left == right:
        return None
    missing, extra = (
        [msgspec.msgpack.decode(each) for each in bag.elements()]
        for bag in (left - right, right - left)
    )
    return RowDifference((ROWS,), missing, extra)


def _content(names: Sequence[str], row: Row) -> bytes:
    values: list[Any] = [row[name] for name in names]
    return _encode(values)
