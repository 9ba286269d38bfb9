"""Which job partitions somebody means: by workspace and dataset, or by job, and by partition.

Theory. People know datasets, the platform knows jobs; a job's title begins with its dataset.
Whoever names something that is not there is told what there is, in the same sentence: that is
quicker than a manual.
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
"""Names in one sentence: beyond that nobody reads them."""
PARTITIONS: Final = """
    SELECT j.id, p.part, j.workspace, a.title FROM job j JOIN job_partition p ON p.job_id = j.id
        JOIN asset a ON a.id = j.id
    WHERE j.desired = 'run' ORDER BY j.id, p.part
"""


@dataclass(frozen=True, slots=True)
class NamedPartition:
    """One job partition that is wanted, and what people call it."""

    job: JobId
    part: PartitionIndex
    workspace: str
    title: str

    @property
    def place(self) -> JobPartition:
        return self.job, self.part

    @property
    def dataset(self) -> str:
        """The dataset that the job works for: `Order` of `Order: table` and of `Order.by_user:
        aggregate`.
        """
        return self.title.partition(":")[0].partition(".")[0]

    def __str__(self) -> str:
        return f"{self.title} ({self.job}[{self.part}])"


@dataclass(frozen=True, slots=True)
class Selection:
    """What somebody names. `parts` empty: all. Without `jobs` a workspace is needed; without
    `dataset` all of it is meant.
    """

    workspace: str | None = None
    dataset: str | None = None
    jobs: tuple[str, ...] = ()
    parts: tuple[int, ...] = ()


def select_partitions(known: Sequence[NamedPartition], wish: Selection) -> list[NamedPartition]:
    """The job partitions that are meant; ApiError with what there is where a name leads nowhere."""
    if not wish.jobs and not wish.workspace:
        raise ApiError(
            400,
            "form-incomplete",
            "name a workspace (and a dataset of it), or job ids: they say what is meant",
        )
    found = list(known)
    if wish.workspace:
        found = _those(found, [wish.workspace], "workspace", lambda each: each.workspace)
    if wish.dataset:
        found = _those(found, [wish.dataset], "dataset with a job", lambda each: each.dataset)
    if wish.jobs:
        found = _those(found, wish.jobs, "job", lambda each: each.job)
    if wish.parts:
        there = sorted({each.part for each in found})
        if strangers := sorted(set(wish.parts) - set(there)):
            raise ApiError(
                404,
                "partition-not-found",
                f"there is no partition {strangers[0]}: there are {there[0]} to {there[-1]}",
            )
        found = [each for each in found if each.part in wish.parts]
    return found


def list_partitions(settings: Settings) -> list[NamedPartition]:
    """Every job partition there is, by job."""
    with postgres.connect(settings.postgres_dsn.get_secret_value(), name="snapshots") as connection:
        rows = connection.execute(PARTITIONS).fetchall()
    return [
        NamedPartition(JobId(str(job)), PartitionIndex(cast(int, part)), str(workspace), str(title))
        for job, part, workspace, title in rows
    ]


def _those(
    known: Sequence[NamedPartition],
    names: Collection[str],
    noun: str,
    of: Callable[[NamedPartition], str],
) -> list[NamedPartition]:
    there = {of(each): each for each in known}
    for name in names:
        if name not in there:
            raise ApiError(
                404, "nothing-of-that-name", f"there is no {noun} `{name}`: {_listed(name, there)}"
            )
    return [each for each in known if of(each) in names]


def _listed(name: str, there: Iterable[str]) -> str:
    """What there is, the likeliest first."""
    names = sorted(there)
    if not names:
        return "there is none at all; nothing is committed"
    near = get_close_matches(name, names, len(names), 0.5)
    ordered = [*near, *(each for each in names if each not in near)]
    more = f" and {len(ordered) - LISTED_NAMES} more" if len(ordered) > LISTED_NAMES else ""
    return f"there is {', '.join(ordered[:LISTED_NAMES])}{more}"
