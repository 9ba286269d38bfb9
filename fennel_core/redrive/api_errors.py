"""Errors of the calls about dead letters: status, stable code and text."""

from __future__ import annotations

from fennel_core.vocab.errors import ClassifiedApiError


class RedriveError(ClassifiedApiError):
    """Base class of these errors. `CODE` is stable and never reused."""

    CODE = "dead-letters"


class LetterFilterMalformed(RedriveError):
    """A filter of the request cannot be read."""

    STATUS = 400
    CODE = "dead-letter-filter"


class DropNeedsFilter(RedriveError):
    """An order to drop says neither which letters, nor that it is about all."""

    STATUS = 400
    CODE = "dead-letters-all"

    def __init__(self) -> None:
        super().__init__(
            "this would drop every dead letter of the workspace; name a dataset, a source, a sink, "
            "a time or a reason, or say `all`"
        )


class RedriveStopped(RedriveError):
    """An order ended early. What the text counts is done; the rest waits for the same order."""

    STATUS = 503
    CODE = "dead-letters-stopped"
