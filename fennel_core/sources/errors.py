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


class ClusterChanged(SourceError):
    """The connector leads to another Kafka cluster than the rows before came from.

    Offsets of one cluster mean nothing in another. Give the connector the address of the cluster
    that it had, or another name.
    """

    code: ClassVar[str] = "source-cluster-changed"

    def __init__(self, title: str, before: str, now: str) -> None:
        super().__init__(
            f"{title} was read from Kafka cluster `{before}`, and its connector leads to cluster "
            f"`{now}` now; give the connector its earlier address, or another name"
        )
