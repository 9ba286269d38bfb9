"""Failures of the history writer and of reads of history.

`HistoryError` is the root. S3, Postgres or Kafka being unreachable is not one of these: that is
`connections.errors.SystemUnavailable`.
"""

from __future__ import annotations

from typing import ClassVar


class HistoryError(Exception):
    """Base class of every failure of this package. `code` is stable and never reused."""

    code: ClassVar[str] = "history-failed"


class RollFailed(HistoryError):
    """A batch ended with an error; files added before stay. Run the next pass, which continues."""

    code = "roll-failed"


class CompactionFailed(HistoryError):
    """A compaction failed, in whole or in part; files merged before stay. Run it again."""

    code = "compaction-failed"


class FileUnusable(HistoryError):
    """The object of a file is missing or is not what its row says. Restore it from a backup."""

    code = "history-file-unusable"


class ReadFailed(HistoryError):
    """A read cannot be done as requested.

    The text says what to change and ends with a stable code in brackets.
    """

    code = "read-failed"


class ExportFailed(HistoryError):
    """An export cannot be written; the text says what to change. What was written is deleted."""

    code = "export-failed"
