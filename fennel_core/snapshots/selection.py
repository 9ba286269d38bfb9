"""Select job partitions for a rebuild or a drill: by workspace and dataset, or by job.

Theory. Users know datasets, the platform knows jobs; a job's title starts with its dataset. An
unknown name is an error that lists the valid names, most similar first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final, cast

from fennel_core.connections import postgres
from fennel_core.settings.model import Settings
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import JobId, JobPartition, PartitionIndex

LISTED_NAMES: Final = 30
"""Names in one error message: longer lists are not read."""
PARTITIONS: Final = """
    SELECT j.id, p.part, j.workspace, a.title
    FROM job j JOIN job_partition p ON p.job_id = j.id JOIN asset a ON a.id = j.id
    WHERE j.desired = 'run' ORDER BY j.id, p.part
"""


@dataclass(frozen=True, slots=True)
class NamedPartition:
    """One job partition with its workspace and its job's title."""

    job: JobId
    part: PartitionIndex
    workspace: str
    title: str

    @property
    def partition(self) -> JobPartition:
        return self.job, self.part

    @property
    def dataset(self) -> str:
        """The dataset that the job computes.

        For example `Order`, for both titles `Order: table` and `Order.by_user: aggregate`.
        """
        return self.title.partition(":")[0].partition(".")[0]

    def __str__(self) -> str:
        return f"{self.title} ({self.job}[{self.part}])"


@dataclass(frozen=True, slots=True)
class Selection:
    """What a user names. Either `workspace` or `jobs` is required.

    Without `dataset` all datasets of the workspace are selected, with empty `parts` all partitions.
    """

    workspace: str | None = None
    dataset: str | None = None
    jobs: tuple[str, ...] = ()
    parts: tuple[int, ...] = ()


def select_partitions(
    known: Sequence[NamedPartition], selection: Selection
) -> list[NamedPartition]:
    """Return the selected job partitions; ApiError, listing valid names, for an unknown name."""
    if not selection.jobs and not selection.workspace:
        raise ApiError(
            400,
            "form-incomplete",
            "specify a workspace (and optionally a dataset), or job ids",
        )
    found = list(known)
    if selection.workspace:
        found = _matching(found, [selection.workspace], "workspace", lambda each: each.workspace)
    if selection.dataset:
        found = _matching(
            found, [selection.dataset], "dataset with a job", lambda each: each.dataset
        )
    if selection.jobs:
        found = _matching(found, selection.jobs, "job", lambda each: each.job)
    if selection.parts:
        valid = sorted({each.part for each in found})
        if unknown := sorted(set(selection.parts) - set(valid)):
            raise ApiError(
                404,
                "partition-not-found",
                f"unknown partition {unknown[0]}; valid partitions: {valid[0]} to {valid[-1]}",
            )
        found = [each for each in found if each.part in selection.parts]
    return found


def list_partitions(settings: Settings) -> list[NamedPartition]:
    """Return every job partition, sorted by job."""
    with postgres.connect(settings.postgres_dsn.get_secret_value(), name="snapshots") as connection:
        rows = connection.execute(PARTITIONS).fetchall()
    return [
        NamedPartition(JobId(str(job)), PartitionIndex(cast(int, part)), str(workspace), str(title))
        for job, part, workspace, title in rows
    ]


def _matching(
    known: Sequence[NamedPartition],
    names: Collection[str],
    noun: str,
    of: Callable[[NamedPartition], str],
) -> list[NamedPartition]:
    valid = {of(each): each for each in known}
    for name in names:
        if name not in valid:
            raise ApiError(
                404, "nothing-of-that-name", f"unknown {noun} `{name}`; {_listed(name, valid)}"
            )
    return [each for each in known if of(each) in names]


def _listed(name: str, valid: Iterable[str]) -> str:
    """Return a list of the valid names, most similar to `name` first."""
    names = sorted(valid)
    if not names:
        return "there are none because nothing is committed"
    near = get_close_matches(name, names, len(names), 0.5)
    ordered = [*near, *(each for each in names if each not in near)]
    more = f" and {len(ordered) - LISTED_NAMES} more" if len(ordered) > LISTED_NAMES else ""
    return f"valid names: {', '.join(ordered[:LISTED_NAMES])}{more}"
