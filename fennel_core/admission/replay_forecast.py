"""Count the rows of earlier requests that a source replay would dead-letter, before it is created.

The count is made by the code that the replay runs, so it is exact for the requests that are
counted. Sources that run user code are not counted: a plan must not wait for executors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl
import pyarrow as pa

from fennel_core.admission.source_replay import replay_requests
from fennel_core.admission.validator import SourceDefinition, Validator
from fennel_core.executors.calls import ExecutorCall
from fennel_core.executors.client import NO_CALLBACKS, Callbacks
from fennel_core.vocab.raw_batches import RawRequest


@dataclass(slots=True)
class ReplayTally:
    """The rows of the requests counted so far, and the dead ones by kind of failure.

    A plan is stored, and outlives the rows: kinds hold no values.
    """

    rows: int = 0
    dead: Counter[str] = field(default_factory=Counter)

    async def add(self, definition: SourceDefinition, requests: Sequence[RawRequest]) -> None:
        """Count requests that ingest has not judged for the dataset of `definition`.

        The source of `definition` runs no user code.
        """
        validator = Validator(_NoExecutors(), NO_CALLBACKS)
        for group in await replay_requests(validator, definition, requests, ()):
            self.rows += len(group.positions)
            for letter in group.dead:
                self.dead[letter.kind] += len(letter.payload)


class _NoExecutors:
    async def run(
        self,
        call: ExecutorCall,
        rows: pa.Table | pl.DataFrame | None,
        *,
        callbacks: Callbacks,
        timeout_ms: int | None = None,
    ) -> pa.Table:
        del call, rows, callbacks, timeout_ms
        raise AssertionError("sources with user code are not counted")
