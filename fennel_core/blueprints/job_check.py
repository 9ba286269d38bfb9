"""Check that every job of a compiled commit can be built.

An engine builds a job's step when it claims the job. A step that cannot be built would park the job
of a commit that succeeded, so validation builds all of them first and refuses the commit instead.
The steps are pure and read nothing when they are built; user code has no step and is not imported.
"""

from __future__ import annotations

from collections.abc import Iterator

from fennel_core.aggregates.errors import AggregateError
from fennel_core.blueprints.logical import Compiled
from fennel_core.expressions.errors import ExpressionsError
from fennel_core.operators.build import build
from fennel_core.operators.errors import OperatorError
from fennel_core.operators.spec import UserCodeSpec
from fennel_core.vocab.problems import Problem


def jobs_that_cannot_be_built(compiled: Compiled) -> Iterator[Problem]:
    """Yield one problem per job whose step cannot be built; its title names the pipeline."""
    for job in compiled.jobs:
        if isinstance(job.step, UserCodeSpec):
            continue
        try:
            build(job.step)
        except (OperatorError, AggregateError, ExpressionsError) as error:
            yield Problem("job-not-served", job.title, f"`{job.title}` cannot be computed: {error}")
