"""Payloads of the NOTIFY channel `owners`: the jobs whose partitions have other owners.

An empty payload means all jobs. Postgres refuses payloads of 8,000 bytes, so a change of many
jobs is announced without their names. A reader of an earlier release ignores the payload.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fennel_core.vocab.ids import JobId

OWNERS_CHANNEL: Final = "owners"
LONGEST_PAYLOAD: Final = 7_500
SEPARATOR: Final = ","
"""No part of a job's name contains it."""


def payload_of(jobs: Iterable[JobId]) -> str:
    """Return the payload that names these jobs."""
    names = SEPARATOR.join(sorted(set(jobs)))
    return names if len(names.encode()) <= LONGEST_PAYLOAD else ""


def jobs_in(payload: str) -> frozenset[JobId] | None:
    """Return the jobs that a payload names, None for all."""
    return frozenset(map(JobId, payload.split(SEPARATOR))) if payload else None
