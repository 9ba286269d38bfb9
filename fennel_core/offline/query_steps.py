"""The steps of an offline query, in the order in which its rows go through them.

Theory. A step either works on batches of rows, one after the other, or is a shuffle that brings
rows together. In memory as with Spark, everything between two shuffles is
one pass over batches (`batch_work.run_steps`), and the steps of both are the same.

Example. A program with a lookup of `F.user`, an expression of what it found and a list lookup:

    MakeRequests, ShuffleByKey, ComputeLevel,
    MakeRequests, ShuffleByKey, ShuffleByRow, PackLists

User code that looks datasets up is one step, `CallInRounds`, which is several shuffles
(`lookup_rounds`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from fennel_core.offline.code_lookups import CodeDataset, code_datasets
from fennel_core.offline.lookup_groups import LookupGroup, lookup_groups
from fennel_core.offline.sources import LookupSource
from fennel_core.operators.spec import StepSpec
from fennel_core.query.bound_expressions import BoundExpressions
from fennel_core.query.program import BoundAlias, BoundExtractor, BoundLevel, QueryProgram
from fennel_core.vocab.ids import JobId

Registers = frozenset[int]


@dataclass(frozen=True, slots=True)
class ComputeLevel:
    """Evaluate the local nodes of a level, then its user code that looks nothing up."""

    level: BoundLevel


@dataclass(frozen=True, slots=True)
class MakeRequests:
    """Make the requests of a group of lookups."""

    group: LookupGroup


@dataclass(frozen=True, slots=True)
class ShuffleByKey:
    """Bring requests and the versions of their keys together as a timeline, and answer them."""

    group: LookupGroup


@dataclass(frozen=True, slots=True)
class ShuffleByRow:
    """Bring a row and the elements of its lists together: first the row, then they in order."""

    group: LookupGroup


@dataclass(frozen=True, slots=True)
class PackLists:
    """Pack the answers of the elements of a row into its lists."""

    group: LookupGroup


@dataclass(frozen=True, slots=True)
class CallInRounds:
    """Call the user code of a level that may look `datasets` up, until it has all rows."""

    extractors: tuple[BoundExtractor, ...]
    datasets: tuple[CodeDataset, ...]

    @property
    def filled(self) -> Registers:
        """The registers that it fills."""
        return frozenset(out for each in self.extractors for _, out in each.keep)

    @property
    def read(self) -> Registers:
        """The registers that it reads."""
        return frozenset(place for each in self.extractors for place in each.inputs)


BatchStep = ComputeLevel | MakeRequests | PackLists
Shuffle = ShuffleByKey | ShuffleByRow
OfflineStep = BatchStep | Shuffle | CallInRounds


def steps_of(program: QueryProgram, specs: Mapping[JobId, StepSpec]) -> tuple[OfflineStep, ...]:
    """Return the steps of a program. `specs`: of the jobs that serve its lookups."""
    found: list[OfflineStep] = []
    for level in program.levels:
        calls = tuple(each for each in level.extractors if each.call.datasets)
        plain = tuple(each for each in level.extractors if not each.call.datasets)
        if level.local or plain:
            found.append(ComputeLevel(replace(level, extractors=plain)))
        if calls:
            found.append(CallInRounds(calls, code_datasets(calls, specs)))
        for group in lookup_groups(level, specs):
            found += [MakeRequests(group), ShuffleByKey(group)]
            if group.listed:
                found += [ShuffleByRow(group), PackLists(group)]
    return tuple(found)


def sources_of(step: OfflineStep) -> Sequence[tuple[JobId, LookupSource]]:
    """Return what a step reads besides rows of the query, with the jobs that it is the input of."""
    match step:
        case ShuffleByKey(group):
            return group.sources
        case CallInRounds(datasets=datasets):
            return [(each.job, each.source) for each in datasets]
        case _:
            return ()


def live_registers(program: QueryProgram, steps: Sequence[OfflineStep]) -> tuple[Registers, ...]:
    """Return, per step, the registers that are read after it: the columns that its rows need."""
    needed = frozenset(place for _, _, place in program.outputs)
    found: list[Registers] = []
    for step in reversed(steps):
        found.append(needed)
        needed = (needed - _filled(step)) | _read(step)
    return tuple(reversed(found))


def _filled(step: OfflineStep) -> Registers:
    match step:
        case ComputeLevel(level):
            filled: set[int] = set()
            for local in level.local:
                match local:
                    case BoundAlias(out=out):
                        filled.add(out)
                    case BoundExpressions(outputs=outputs):
                        filled.update(out for _, _, out in outputs)
                    case unreachable:
                        assert_never(unreachable)
            filled.update(out for each in level.extractors for _, out in each.keep)
            return frozenset(filled)
        case CallInRounds():
            return step.filled
        case ShuffleByKey(group) | PackLists(group):
            return frozenset(out for out, _ in group.outputs)
        case MakeRequests() | ShuffleByRow():
            return frozenset()
        case unreachable:
            assert_never(unreachable)


def _read(step: OfflineStep) -> Registers:
    match step:
        case ComputeLevel(level):
            read: set[int] = set()
            for local in level.local:
                match local:
                    case BoundAlias(source=source):
                        read.add(source)
                    case BoundExpressions(inputs=inputs):
                        read.update(place for _, place in inputs)
                    case unreachable:
                        assert_never(unreachable)
            read.update(place for each in level.extractors for place in each.inputs)
            return frozenset(read) - _filled(step)
        case CallInRounds():
            return step.read
        case MakeRequests(group):
            return frozenset(group.keys)
        case PackLists(group):
            # The answers of single elements, which have the registers of the lists.
            return frozenset(out for out, _ in group.outputs)
        case ShuffleByKey() | ShuffleByRow():
            return frozenset()
        case unreachable:
            assert_never(unreachable)
