"""The headers of dead letters: what a message of the dead-letter topic says about its rows.

A dead letter is a row that cannot be processed. The messages of a workspace's dead-letter topic are
batches of rows that failed together: rejected rows of a request as JSON text, rows of a pipeline in
the schema of the step's input. Who wrote the batch, and why, is in its headers, so that it can be
counted without knowing its schema.

    kind     class of reasons, a small enumeration (`DeadLetterKind`)
    writer   id of the job that wrote it, or `ingest`
    subject  the dataset that ingest wrote for, or the title of the job
    reason   for people, with the value that failed
    source   for people, where a source read the rows; absent for rows of other origins

Example: `kind=not-admitted writer=ingest subject=Users reason="Field `age` not found …"`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from fennel_core.vocab.versions import FORMAT_HEADER

Headers = tuple[tuple[str, bytes], ...]
INGEST: Final = "ingest"
"""The writer that is no job."""
KIND: Final = "kind"
WRITER: Final = "writer"
SUBJECT: Final = "subject"
REASON: Final = "reason"
SOURCE: Final = "source"


class DeadLetterKind(StrEnum):
    """Why a row could not be processed."""

    NOT_ADMITTED = "not-admitted"
    """A logged row does not fit the dataset: a type, a missing field, `preproc` or `where`."""
    USER_CODE = "user-code"
    """Python code of a pipeline raised."""
    EXPRESSION = "expression"
    """An expression of a pipeline failed, for example a cast."""
    UNCLASSIFIED = "unclassified"
    """The message has no kind, as those of earlier versions."""


@dataclass(frozen=True, slots=True)
class DeadLetterOrigin:
    """Who wrote a message of dead letters, and why."""

    kind: DeadLetterKind
    writer: str
    subject: str
    reason: str
    source: str = ""

    def headers(self) -> Headers:
        """Return the headers of a message with rows of this origin."""
        return (
            FORMAT_HEADER,
            (KIND, self.kind.value.encode()),
            (WRITER, self.writer.encode()),
            (SUBJECT, self.subject.encode()),
            (REASON, self.reason.encode()),
            *(((SOURCE, self.source.encode()),) if self.source else ()),
        )


def origin_of(headers: Iterable[tuple[str, bytes]]) -> DeadLetterOrigin:
    """Return the origin in the headers of a message; what is missing is empty."""
    found = {name: value.decode(errors="replace") for name, value in headers}
    known = {kind.value: kind for kind in DeadLetterKind}
    return DeadLetterOrigin(
        known.get(found.get(KIND, ""), DeadLetterKind.UNCLASSIFIED),
        found.get(WRITER, ""),
        found.get(SUBJECT, ""),
        found.get(REASON, ""),
        found.get(SOURCE, ""),
    )
