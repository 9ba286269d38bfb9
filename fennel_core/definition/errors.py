"""The HTTP status of each error code of a commit.

Theory. A commit's error is stored with the commit as a code and a text, because the process that
found it (an Airflow task) is not the one that answers. The status is a function of the code, so it
need not be stored. The public client's tests pin status 500 for definitions that are wrong and for
unknown branches, as the reference server answers them; new errors of ours use the statuses of RFC
9110.
"""

from __future__ import annotations

from typing import Final

from fennel_core.vocab.errors import ApiError

DEFAULT_STATUS: Final = 500
STATUS: Final = {
    "commit-malformed": 400,
    "commit-unsupported": 400,
    "backfill-needed": 400,
    "workspace-not-found": 404,
    "commit-not-found": 404,
    "commit-base-moved": 409,
    "commit-out-of-order": 409,
    "kafka-unavailable": 503,
    "commit-abandoned": 503,
    "orchestrator-unavailable": 503,
}


def commit_error(code: str | None, text: str | None, fallback: str) -> ApiError:
    """The error that a commit's row tells of."""
    known = code or "commit-undone"
    return ApiError(STATUS.get(known, DEFAULT_STATUS), known, text or fallback)
