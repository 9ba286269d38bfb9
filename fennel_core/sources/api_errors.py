"""Errors of the calls about sources: what a client receives as status, stable code and text."""

from __future__ import annotations

from collections.abc import Collection

from fennel_core.sources.pace import MAX_ROWS_PER_S, MIN_ROWS_PER_S
from fennel_core.vocab.errors import ClassifiedApiError

NAMED: int = 20
"""Names that an error lists."""


class SourceApiError(ClassifiedApiError):
    """Base class of these errors. `CODE` is stable and never reused."""

    CODE = "source-call"


class SourceUnknown(SourceApiError):
    """No branch of the workspace has a source with this name."""

    STATUS = 404
    CODE = "source-unknown"

    def __init__(self, name: str, known: Collection[str]) -> None:
        shown = ", ".join(sorted(known)[:NAMED]) or "none"
        super().__init__(f"there is no source `{name}` in this workspace; its sources: {shown}")


class SourceNotReadable(SourceApiError):
    """The stream cannot be reached, refuses the credentials, or these cannot be decrypted."""

    STATUS = 502
    CODE = "source-not-readable"

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"source `{name}` cannot be read: {reason}")


class SourceIsSent(SourceApiError):
    """The rows of a webhook are sent to the platform, so there is nothing that it could stop."""

    STATUS = 409
    CODE = "source-is-sent"

    def __init__(self, name: str, what: str) -> None:
        super().__init__(
            f"source `{name}` is a webhook: its rows are sent by `log`, so the platform cannot "
            f"{what} it; stop the program that sends them, or revoke its token"
        )


class OrderNotServed(SourceApiError):
    """This order is not served for sources of this kind."""

    STATUS = 409
    CODE = "source-order-not-served"

    def __init__(self, name: str, title: str, what: str) -> None:
        super().__init__(
            f"source `{name}` reads {title}, which this platform cannot {what} yet; `list`, "
            "`pause`, `resume` and `limit` work for it"
        )


class LimitInvalid(SourceApiError):
    """No source can be read at such a rate."""

    STATUS = 400
    CODE = "source-limit"

    def __init__(self, rows_per_s: float) -> None:
        super().__init__(
            f"a source cannot be limited to {rows_per_s:g} rows per second: a limit is at least "
            f"{MIN_ROWS_PER_S:g} and at most {MAX_ROWS_PER_S:g}; pause the source to read nothing, "
            "and end its limit to read it as fast as it can be"
        )


class SourceNotPaused(SourceApiError):
    """A stream is rewound while it is not read."""

    STATUS = 409
    CODE = "source-not-paused"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"source `{name}` is being read; pause it first, and resume it after it was rewound"
        )


class RewindPlaceInvalid(SourceApiError):
    """The stream has no such place."""

    STATUS = 400
    CODE = "rewind-place"


class RewindNeedsConsent(SourceApiError):
    """The rewind would duplicate rows or skip messages; the text has the numbers."""

    STATUS = 409
    CODE = "rewind-consent"


class RewindEndedEarly(SourceApiError):
    """Some partitions were moved and others were not."""

    STATUS = 503
    CODE = "rewind-ended-early"
