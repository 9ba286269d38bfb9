"""Decode and validate the definitions of a commit, and compile them to blueprints.

`validate_definitions` is the whole of validation: it merges the definitions of an incremental
commit with those of the branch, runs every graph pass, and reports all problems at once, so that a
user can fix them in one go. `compile_definitions` requires validated definitions. Neither does I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fennel_core.blueprints.compile import compile_datasets
from fennel_core.blueprints.compiler_input import DatasetInput, PipelineInput, TypedOperator
from fennel_core.blueprints.job_check import jobs_that_cannot_be_built
from fennel_core.blueprints.logical import AssetKey, Compiled
from fennel_core.blueprints.notices import definition_notices
from fennel_core.blueprints.plan_entries import Notice
from fennel_core.definition.errors import (
    CommitMalformed,
    CommitUnsupported,
    WindowSpecsUnavailable,
)
from fennel_core.definition.merged_request import assemble_request
from fennel_core.graph.derived_schemas import derive_pipeline_schemas
from fennel_core.graph.entity_graph import Graph, build_graph, merge_incremental
from fennel_core.graph.independent_entities import independent_entities
from fennel_core.graph.passes import validate
from fennel_core.graph.rebase import rebase_full, rebase_incremental
from fennel_core.graph.topological_order import dataset_order
from fennel_core.ledger.errors import CommitConflict
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import BranchName, CommitId, DatasetName
from fennel_core.vocab.problems import Problem
from fennel_core.wire.decode import decode_sync_request
from fennel_core.wire.entities import Dataset, IndexSide, SyncRequest
from fennel_core.wire.errors import MalformedMessage, UndecodableEntities, WireError
from fennel_core.wire.window_specs import pipelines_without_specs


@dataclass(frozen=True, slots=True)
class ValidDefinitions:
    """A version that passed validation. `body`: the SyncRequest of the whole version."""

    graph: Graph
    body: bytes
    notices: tuple[Notice, ...] = ()
    """What was accepted but its author should know; printed with the plan as `! text`."""


@dataclass(frozen=True, slots=True)
class CheckedDefinitions:
    """Valid definitions and the version of the branch that they were validated against.

    They must not be committed on top of another version.
    """

    base: CommitId | None
    definitions: ValidDefinitions


@dataclass(frozen=True, slots=True)
class DecodedCommit:
    """A SyncRequest as bytes and decoded."""

    body: bytes
    request: SyncRequest


def validate_definitions(
    received: DecodedCommit, before: DecodedCommit | None, *, incremental: bool
) -> ValidDefinitions:
    """Validate a commit against the branch's definitions `before` (None: empty branch).

    Raises ApiError with all problems.
    """
    graph = merged_graph(received, before, incremental=incremental)
    return _valid(graph, received, before, incremental=incremental)


def merged_graph(
    received: DecodedCommit, before: DecodedCommit | None, *, incremental: bool
) -> Graph:
    """Return the definitions of the branch after the commit."""
    graph = build_graph(received.request)
    if incremental and before is not None:
        return merge_incremental(build_graph(before.request), graph)
    return graph


def definition_problems(
    graph: Graph, before: DecodedCommit | None, *, incremental: bool
) -> tuple[Problem, ...]:
    """Return all problems of the definitions `graph` that are to follow `before`."""
    base = None if before is None else build_graph(before.request)
    return validate(graph, base, incremental=incremental and base is not None)


def rebase_definitions(
    received: DecodedCommit,
    base: DecodedCommit | None,
    before: DecodedCommit | None,
    *,
    incremental: bool,
    branch: BranchName,
) -> ValidDefinitions:
    """Validate a commit that was made for `base` against `before`, which the branch has now.

    Raises CommitConflict, and ApiError with all problems.
    """
    rebase = rebase_incremental if incremental else rebase_full
    rebased = rebase(_graph(base), _graph(before), build_graph(received.request))
    if rebased.conflicts:
        raise CommitConflict(branch, [conflict.text for conflict in rebased.conflicts])
    definitions = _valid(rebased.graph, received, before, incremental=incremental)
    moved = f"branch `{branch}` changed while this commit was running; its new definitions are kept"
    notices = [Notice("commit-rebased", branch, moved)]
    notices += [
        Notice("commit-rebased", unit.name, f"{unit} stays as another commit left it")
        for unit in rebased.kept
    ]
    return replace(definitions, notices=(*definitions.notices, *notices))


def _valid(
    graph: Graph, received: DecodedCommit, before: DecodedCommit | None, *, incremental: bool
) -> ValidDefinitions:
    problems = definition_problems(graph, before, incremental=incremental)
    if not problems:
        # The number of partitions changes names only, not steps.
        problems = tuple(
            jobs_that_cannot_be_built(compile_datasets(dataset_inputs(graph), partitions=1))
        )
    if problems:
        raise problems_error(problems)
    parts = [(received.body, received.request)]
    if incremental and before is not None:
        parts.append((before.body, before.request))
    return ValidDefinitions(
        graph,
        assemble_request(graph, received.request.message, parts),
        definition_notices(
            build_graph(received.request), None if before is None else build_graph(before.request)
        ),
    )


def _graph(commit: DecodedCommit | None) -> Graph:
    return Graph() if commit is None else build_graph(commit.request)


def decode_received(
    body: bytes, before: DecodedCommit | None, *, incremental: bool
) -> DecodedCommit:
    """Decode a SyncRequest that was received.

    Raises as `decode_commit`; entities that cannot be decoded are reported with the problems of all
    definitions that do not depend on them.
    """
    try:
        return decode_commit(body)
    except CommitUnsupported as unsupported:
        undecodable = unsupported.__cause__
        if not isinstance(undecodable, UndecodableEntities):
            raise
        names = [entity.name for entity in undecodable.entities]
        rest = DecodedCommit(body, independent_entities(undecodable.others, names))
        graph = merged_graph(rest, before, incremental=incremental)
        others = [
            problem
            for problem in definition_problems(graph, before, incremental=incremental)
            # They are extracted from commits that can be decoded.
            if problem.code != WindowSpecsUnavailable.CODE
        ]
        if not others:
            raise
        raise problems_error([*unsupported.problems, *others]) from undecodable


def decode_commit(body: bytes) -> DecodedCommit:
    """Decode a SyncRequest. Raises CommitMalformed, and CommitUnsupported with all entities that
    cannot be decoded.
    """
    try:
        return DecodedCommit(body, decode_sync_request(body))
    except MalformedMessage as malformed:
        raise CommitMalformed(str(malformed)) from malformed
    except UndecodableEntities as undecodable:
        problems = [
            Problem(CommitUnsupported.CODE, entity.name, entity.text)
            for entity in undecodable.entities
        ]
        raise CommitUnsupported(_listed(problems), problems) from undecodable
    except WireError as unsupported:
        raise CommitUnsupported(str(unsupported)) from unsupported


def problems_error(problems: Sequence[Problem]) -> ApiError:
    """Return all problems as one error, with the problems as data beside the text.

    A single problem is the text itself, because the client's tests pin such texts; several are a
    numbered list.
    """
    code = problems[0].code if len({p.code for p in problems}) == 1 else "definitions-invalid"
    return ApiError(500, code, _listed(problems), problems)


def _listed(problems: Sequence[Problem]) -> str:
    texts = list(dict.fromkeys(p.text for p in problems))
    if len(texts) == 1:
        return texts[0]
    lines = [f"{number}. {text}" for number, text in enumerate(texts, 1)]
    return "\n".join([f"the commit has {len(texts)} problems and nothing changed:", *lines])


def window_specs_error(
    failure: WindowSpecsUnavailable,
    received: DecodedCommit,
    before: DecodedCommit | None,
    *,
    incremental: bool,
) -> ApiError:
    """Return the error of a commit whose window aggregations could not be extracted, together with
    all other problems of its definitions.
    """
    pipelines = pipelines_without_specs(
        received.request, None if before is None else before.request
    )
    missing = [
        Problem(failure.code, f"{pipeline.dataset}.{pipeline.name}", failure.text)
        for pipeline in pipelines
    ]
    others = [
        problem
        for problem in definition_problems(
            merged_graph(received, before, incremental=incremental), before, incremental=incremental
        )
        if problem.code != failure.code  # the failure says why these specs are missing
    ]
    return problems_error([*missing, *others]) if others else failure


def compile_definitions(
    definitions: ValidDefinitions,
    partitions: int,
    source_contents: Mapping[DatasetName, AssetKey] | None = None,
) -> Compiled:
    """Return the blueprints of validated definitions.

    `source_contents`: the topics of source datasets, if they are not those that begin with the
    present sources.
    """
    return compile_datasets(dataset_inputs(definitions.graph), partitions, source_contents)


def dataset_inputs(graph: Graph) -> list[DatasetInput]:
    """Return the datasets of a valid graph, producers before consumers."""
    looked_up = {name for extractor in graph.extractors for name in extractor.datasets}
    datasets = [
        dataset for name in dataset_order(graph) if (dataset := graph.dataset(name)) is not None
    ]
    return [_dataset_input(graph, dataset, dataset.name in looked_up) for dataset in datasets]


def _dataset_input(graph: Graph, dataset: Dataset, looked_up: bool) -> DatasetInput:
    return DatasetInput(
        dataset=dataset,
        sources=graph.sources_of(dataset.name),
        pipeline=_pipeline_input(graph, dataset),
        online=graph.has_index(dataset.name, IndexSide.ONLINE),
        offline=graph.has_index(dataset.name, IndexSide.OFFLINE),
        looked_up=looked_up,
        sinks=graph.sinks_of(dataset.name),
    )


def _pipeline_input(graph: Graph, dataset: Dataset) -> PipelineInput | None:
    found = graph.pipelines_of(dataset.name)
    if not found:
        return None
    (pipeline,) = found
    outputs = derive_pipeline_schemas(graph, pipeline)
    root = graph.root_of(pipeline)
    assert root is not None, "a valid pipeline has a result"
    nodes = [TypedOperator(o.id, o.kind, outputs[o.id]) for o in graph.operators_of(pipeline)]
    return PipelineInput(
        pipeline.name, tuple(sorted(nodes, key=lambda n: n.id == root.id)), pipeline.pycode.includes
    )
