"""Exceptions of query planning.

`code` is stable and machine-readable. The client shows the text; its own tests check some texts
word for word.
"""

from __future__ import annotations

from typing import ClassVar


class PlansError(ValueError):
    """Base class: the query cannot be planned on this version of the branch."""

    code: ClassVar[str] = "query-plan"


class MissingProvider(PlansError):
    """Raised when a needed feature is neither an input nor computed by an extractor.

    Pass it as an input, or commit an extractor for it.
    """

    code: ClassVar[str] = "query-no-extractor"


class UnknownName(PlansError):
    """Raised when a name is neither a feature nor a featureset; correct the name or commit it."""

    code: ClassVar[str] = "query-unknown-name"


class CyclicFeatures(PlansError):
    """Raised when a feature depends on itself; pass one feature of the cycle as an input."""

    code: ClassVar[str] = "query-cycle"


class UnservedDataset(PlansError):
    """Raised when a lookup reads a dataset or field that is not committed, or one without keys.

    Commit the dataset with a key and an index.
    """

    code: ClassVar[str] = "query-lookup-dataset"
