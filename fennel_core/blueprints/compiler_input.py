"""The input of the compiler: datasets with everything the graph resolved about them."""

from __future__ import annotations

from dataclasses import dataclass

from fennel_core.vocab.schema import Schema
from fennel_core.wire.connectors import Sink, Source
from fennel_core.wire.entities import Dataset
from fennel_core.wire.operators import OperatorKind
from fennel_core.wire.pycode import PyCode


@dataclass(frozen=True, slots=True)
class TypedOperator:
    """An operator of a pipeline and the schema of its result."""

    id: str
    kind: OperatorKind
    output: Schema


@dataclass(frozen=True, slots=True)
class PipelineInput:
    """A pipeline. `nodes` are in topological order; the last one is its result."""

    name: str
    nodes: tuple[TypedOperator, ...]
    includes: tuple[PyCode, ...] = ()
    """Code that the pipeline's user code may call."""


@dataclass(frozen=True, slots=True)
class DatasetInput:
    """A dataset and its sources or its pipeline.

    `online` and `offline`: it has such an index. `looked_up`: an extractor reads it by key.
    """

    dataset: Dataset
    sources: tuple[Source, ...]
    pipeline: PipelineInput | None
    online: bool
    offline: bool
    looked_up: bool
    sinks: tuple[Sink, ...] = ()
