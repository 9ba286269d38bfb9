"""What the last check of each dataset found, stored in Postgres.

A row per job that serves lookups. A difference is an alarm (`status`, a metric and the log of the
definition server) until a later check of the same keys finds none, or the job is deleted: the keys
that differed are in every later sample, until they were compared and agreed. A check that could not
be carried out changes no row.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, cast

from fennel_core.blueprints import stored_names
from fennel_core.blueprints.spec import Catalog, Job
from fennel_core.connections import erasures
from fennel_core.connections.erasures import ErasedKeys
from fennel_core.connections.postgres import Pool
from fennel_core.history.erased_topic_keys import erased_by_topic
from fennel_core.integrity.checks import (
    KEPT_DIFFERENCES,
    CheckedDataset,
    DatasetFinding,
    IntegrityVerdict,
)
from fennel_core.integrity.erased_groups import keys_not_erased
from fennel_core.integrity.naive_outputs import compared_spec, inputs_of, why_not_compared
from fennel_core.integrity.output_checks import CheckedJob, UncomparedJob
from fennel_core.operators.spec import AggregateSpec, TableSpec
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import DatasetName, JobId, TopicName, WorkspaceId

SERVED: Final = """
    SELECT w.name, c.catalog FROM workspace w JOIN branch b ON b.workspace = w.name
        JOIN commit c ON c.id = b.serving
    WHERE w.state = 'open' AND c.catalog IS NOT NULL ORDER BY w.name, b.name
"""
SPECS: Final = """
    SELECT j.id, j.spec, i.differing FROM job j LEFT JOIN integrity_check i ON i.job_id = j.id
    WHERE j.id = ANY(%s::text[]) AND j.desired = 'run'
"""
UPSERT: Final = """
    INSERT INTO integrity_check (job_id, dataset, verdict, detail, compared, differing, seed)
    SELECT id, %s, %s, %s, %s, %s::bytea[], %s FROM job WHERE id = %s
    ON CONFLICT (job_id) DO UPDATE
    SET dataset = excluded.dataset, verdict = excluded.verdict, detail = excluded.detail,
        compared = excluded.compared, differing = excluded.differing, seed = excluded.seed,
        checked_at = now()
"""
DIFFERING: Final = """
    SELECT j.workspace, i.dataset, i.job_id, i.detail, i.compared, i.seed, i.checked_at
    FROM integrity_check i JOIN job j ON j.id = i.job_id
    WHERE i.verdict = 'differs' AND j.desired = 'run' ORDER BY j.workspace, i.dataset, i.job_id
"""
AllErasures = Mapping[WorkspaceId, Mapping[DatasetName, tuple[ErasedKeys, ...]]]
DETAIL_CHARACTERS: Final = 2_000
LISTED_NAMES: Final = 30


CheckableJob = CheckedDataset | CheckedJob | UncomparedJob


@dataclass(frozen=True, slots=True)
class FailedIntegrityCheck:
    """A dataset whose lookups differed from the recompute when it was last checked."""

    workspace: str
    dataset: str
    job: str
    detail: str
    compared: int
    seed: int
    at: datetime

    def __str__(self) -> str:
        return f"{self.dataset} of {self.workspace} ({self.job}): {self.detail}"


async def jobs_to_check(
    pool: Pool, workspace: str | None, dataset: str | None
) -> list[CheckableJob]:
    """Return every job of the versions that branches serve, each once, or those of the selected
    datasets. Those that are not compared say why.

    Raises ApiError, listing valid names, if the names select none.
    """
    async with pool.connection() as connection:
        rows = await (await connection.execute(SERVED)).fetchall()
        served: dict[JobId, tuple[WorkspaceId, DatasetName | None]] = {}
        for name, data in rows:
            catalog, owner = stored_names.loads(cast(bytes, data), Catalog), WorkspaceId(str(name))
            for view in catalog.datasets:
                if view.served_by is not None:
                    served.setdefault(view.served_by, (owner, view.name))
            for job in catalog.jobs:
                served.setdefault(job, (owner, None))
        specs = await (await connection.execute(SPECS, (list(served),))).fetchall()
        erased = await erasures.read_over(connection)
    on_topic = await erased_by_topic(pool, erased)
    found = [
        _checked(
            *served[JobId(str(job))],
            stored_names.loads(cast(bytes, spec), Job),
            frozenset(map(bytes, cast("list[bytes]", differing or []))),
            erased,
            on_topic,
        )
        for job, spec, differing in specs
    ]
    selected = [
        each
        for each in found
        if workspace in (None, each.workspace) and dataset in (None, each.dataset)
    ]
    if not selected and (workspace or dataset):
        raise ApiError(404, "nothing-of-that-name", _unknown(workspace, dataset, found))
    return sorted(selected, key=lambda each: (each.workspace, each.dataset, each.job))


def _checked(
    workspace: WorkspaceId,
    dataset: DatasetName | None,
    job: Job,
    known: frozenset[bytes],
    erased: AllErasures,
    on_topic: Mapping[TopicName, tuple[ErasedKeys, ...]],
) -> CheckableJob:
    """Return what is compared of a job, which serves the lookups of `dataset`, if it serves any.

    `on_topic`: the erased keys of topics; rows of theirs may have left history.
    """
    if dataset is not None and isinstance(job.step, TableSpec | AggregateSpec):
        (topic,) = job.inputs
        made = CheckedDataset(workspace, dataset, job.id, topic, job.step, job.partitions, known)
        hidden = (*erased.get(workspace, {}).get(dataset, ()), *on_topic.get(topic, ()))
        return replace(made, known=keys_not_erased(known, made.key_columns, hidden))
    named = workspace, DatasetName(job.title.partition(":")[0].partition(".")[0]), job.id, job.title
    spec = compared_spec(job.step)
    if spec is None or not job.outputs:
        return UncomparedJob(*named, why_not_compared(job.step))
    (output,) = job.outputs
    for topic, each in zip(job.inputs, inputs_of(spec), strict=True):
        known = keys_not_erased(known, each.columns, on_topic.get(topic, ()))
    return CheckedJob(*named, job.inputs, output.topic, spec, job.partitions, known)


async def record(
    pool: Pool, checked: CheckedDataset | CheckedJob, finding: DatasetFinding, seed: int
) -> None:
    """Store a finding; one without a difference that did not compare every key of an alarm leaves
    the alarm unchanged.
    """
    if finding.verdict in (IntegrityVerdict.UNKNOWN, IntegrityVerdict.SKIPPED):
        return
    missed = checked.known - finding.compared
    if missed and not finding.differing:
        return
    keys = keys_of_alarm(checked.known, finding)
    notes = _notes(len(missed), len(keys) - KEPT_DIFFERENCES)
    values = (
        *(checked.dataset, finding.verdict.value),
        str(finding)[: DETAIL_CHARACTERS - len(notes)] + notes,
        *(finding.keys, keys[:KEPT_DIFFERENCES], seed, checked.job),
    )
    async with pool.connection() as connection:
        await connection.execute(UPSERT, values)


def keys_of_alarm(known: frozenset[bytes], finding: DatasetFinding) -> list[bytes]:
    """Return the keys that differ, and the `known` ones that were not compared. The known ones are
    first, so that a limit drops none of them.
    """
    keys = finding.differing_keys | (known - finding.compared)
    return sorted(keys, key=lambda key: (key not in known, key))


def _notes(missed: int, beyond: int) -> str:
    found = ""
    if missed:
        found += f"; {missed} keys that differed before were not compared and are still checked"
    if beyond > 0:
        found += f"; {beyond} more keys differ, which are not checked again unless they are sampled"
    return found


async def failed_checks(pool: Pool) -> list[FailedIntegrityCheck]:
    """Return every dataset whose last check found a difference."""
    async with pool.connection() as connection:
        rows = await (await connection.execute(DIFFERING)).fetchall()
    return [
        FailedIntegrityCheck(
            str(workspace),
            str(dataset),
            str(job),
            str(detail),
            cast(int, compared),
            cast(int, seed),
            cast(datetime, at),
        )
        for workspace, dataset, job, detail, compared, seed, at in rows
    ]


def _unknown(workspace: str | None, dataset: str | None, known: Collection[CheckableJob]) -> str:
    if not known:
        return "no branch serves lookups of a dataset; commit one first"
    wanted = f"dataset `{dataset}`" if dataset else "dataset"
    where = f" in workspace `{workspace}`" if workspace else ""
    valid = sorted({f"`{each.dataset}` of `{each.workspace}`" for each in known})[:LISTED_NAMES]
    return f"no {wanted} can be looked up{where}; valid ones: {', '.join(valid)}"
