"""Failures of computing features as of a time per row."""

from __future__ import annotations

from typing import ClassVar


class OfflineError(Exception):
    """Base class of every failure of this package. `code` is stable and never reused."""

    code: ClassVar[str] = "offline-failed"


class LookupNotOffline(OfflineError):
    """A lookup is served by a job whose rows cannot be read as of a time from history."""

    code = "lookup-not-offline"


class CallInterrupted(OfflineError):
    """A lookup cannot be answered in this call, which is repeated. No client sees this."""

    code = "call-interrupted"


class HistoryIncomplete(OfflineError):
    """Rows that a query needs are neither in history nor on their topic."""

    code = "history-incomplete"
