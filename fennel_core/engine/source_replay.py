"""Run a source replay: raw requests in, rows of a dataset and dead letters out.

Theory. The job has no state and its output is a topic, so, as with user code, replay after a crash
never computes it again: the executors' code and the erased keys of that moment may be gone. The
request says whether ingest wrote its rows to the topic (`admission.source_replay`), so the job and
all ingest servers can write one topic: each row is written once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import polars as pl
import pyarrow as pa

from fennel_core.admission.dead_letters import dead_letter_frame
from fennel_core.admission.errors import SourceCodeFailed
from fennel_core.admission.source_replay import ReplayedRows, missed_requests, replay_requests
from fennel_core.admission.validator import RowKind, TypedRows, Validator
from fennel_core.connections.erasures import Erased
from fennel_core.operators.spec import SourceReplaySpec
from fennel_core.operators.step import DeadRows, Outcome, OutputBatch
from fennel_core.vocab.ids import TopicName
from fennel_core.vocab.raw_batches import requests_of
from fennel_core.vocab.versions import IS_TOMBSTONE, POS, SIGN

ReadErased = Callable[[], Awaitable[Erased]]


async def run_source_replay(
    validator: Validator,
    read_erased: ReadErased,
    spec: SourceReplaySpec,
    topic: TopicName,
    batch: pl.DataFrame,
) -> Outcome:
    """Return the rows of a batch of raw requests that ingest did not write to `topic`.

    Raises the executor's errors, except those that a single row causes.
    """
    requests = missed_requests(requests_of(batch), topic)
    if not requests:
        return Outcome()
    erased = (await read_erased()).get(spec.dataset, ())
    try:
        groups = await replay_requests(validator, spec, requests, erased)
    except SourceCodeFailed as failed:
        raise failed.__cause__ or failed from None
    frames = [
        _versions(rows, group.positions)
        for group in groups
        for rows in group.good
        if len(rows.numbers)
    ]
    emits = (OutputBatch(0, pl.concat(frames, how="vertical")),) if frames else ()
    return Outcome(emits=emits, dead=tuple(_dead_rows(spec, groups)))


def _versions(rows: TypedRows, positions: pa.Array) -> pl.DataFrame:
    own = positions.take(pa.array(rows.numbers))
    return rows.frame.with_columns(
        pl.Series(POS, own, dtype=pl.Binary),
        pl.lit(1, pl.Int8).alias(SIGN),
        pl.lit(value=rows.kind is RowKind.DELETE).alias(IS_TOMBSTONE),
    )


def _dead_rows(spec: SourceReplaySpec, groups: Sequence[ReplayedRows]) -> list[DeadRows]:
    return [
        DeadRows(letter.reason, dead_letter_frame(spec.dataset, letter, group.positions))
        for group in groups
        for letter in group.dead
    ]
