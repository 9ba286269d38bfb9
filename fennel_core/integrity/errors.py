"""Failures of integrity checks; `IntegrityError` is the root.

S3, Kafka, Postgres or a slot being unreachable is not one of these: that is
`connections.errors.SystemUnavailable`.
"""

from __future__ import annotations

from typing import ClassVar


class IntegrityError(Exception):
    """Base class of every failure of this package. `code` is stable and never reused."""

    code: ClassVar[str] = "integrity"


class IntegrityDiffers(IntegrityError):
    """Live lookups return other rows than a recompute from history; the text lists the datasets.

    Keep the report, rebuild the named job partitions, then check them again.
    """

    code = "integrity-differs"


class IntegrityNotChecked(IntegrityError):
    """Some datasets could not be checked, which says nothing about them; check them again."""

    code = "integrity-not-checked"


class RowsUnreadable(IntegrityError):
    """Rows that a recompute needs are deleted, or more than a check may read; the text says which.

    The rest of the dataset is checked.
    """

    code = "integrity-rows-unreadable"
