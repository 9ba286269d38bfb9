"""Errors of streaming sources: why the rows of one cannot be read or written."""

from __future__ import annotations

from typing import ClassVar


class SourceError(Exception):
    """Base class. `code` is stable and never reused."""

    code: ClassVar[str] = "source"


class FeedRemoved(SourceError):
    """No branch has the source any more: stop reading it."""

    code: ClassVar[str] = "source-removed"


class RowsNotWritten(SourceError):
    """Rows could not be written, and none of them was. The source is read again after a pause."""

    code: ClassVar[str] = "source-rows-not-written"


class SourceRewound(SourceError):
    """A user has moved the position since the reader began; it begins again after a pause."""

    code: ClassVar[str] = "source-rewound"


class ReaderSuperseded(SourceError):
    """Another reader has moved the position since this one read it; begin again at the position."""

    code: ClassVar[str] = "source-reader-superseded"


class TooManyFiles(SourceError):
    """A source has more files than can be remembered; give it a narrower path."""

    code: ClassVar[str] = "source-too-many-files"

    def __init__(self, title: str, limit: int) -> None:
        super().__init__(
            f"{title} has more than {limit:,} files, and what was read is remembered per file; "
            "use a path with fewer, larger files"
        )


class StreamReplaced(SourceError):
    """The connector leads to another stream than the rows before came from.

    Offsets of one topic mean nothing in another one, nor in one of the same name that was created
    after it was deleted. Give the connector its earlier address, or another name.
    """

    code: ClassVar[str] = "source-stream-replaced"

    def __init__(self, title: str, before: str, now: str) -> None:
        super().__init__(
            f"{title} was read from `{before}` (cluster/topic), and is `{now}` now, because it was "
            "created again or the connector has another address; give the connector its earlier "
            "address, or another name to read all of it"
        )


class TableVersionsGone(SourceError):
    """Versions or files of a Delta table were deleted before they were read."""

    code: ClassVar[str] = "source-versions-gone"


class TableVersionUnfit(SourceError):
    """A version of a Delta table cannot be read as changes of its datasets; the text says why."""

    code: ClassVar[str] = "source-version-unfit"


class SchemaRefused(SourceError):
    """A registered schema cannot be used; every message that has it is unreadable."""

    code: ClassVar[str] = "source-schema-refused"
