"""Failures of backfills."""

from __future__ import annotations

from fennel_core.engine.errors import EngineError


class BackfillError(EngineError):
    """Base class: the job partition parks with the text and is retried."""

    code = "backfill-error"


class BackfillImpossible(BackfillError):
    """Needed records are deleted from the log, and history cannot replace them.

    Commit the dataset under a new version; no record is skipped.
    """

    code = "backfill-impossible"


class BackfillFailed(BackfillError):
    """A backfill that the job partition needs was not computed.

    It is requested again when the job partition is retried.
    """

    code = "backfill-failed"


class BackfillCorrupt(BackfillError):
    """A staged object is missing or differs from its manifest.

    Commit the dataset under a new version, which stages a new backfill.
    """

    code = "backfill-corrupt"
