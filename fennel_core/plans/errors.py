"""The one error tree of planning: a query that no plan can answer.

`code` is stable and machine-readable; the text is what the client shows, and shipped tests pin some
of them word for word.
"""

from __future__ import annotations


class PlansError(ValueError):
    """A query that cannot be planned on this version of the branch."""

    code = "query-plan"


class MissingProvider(PlansError):
    """A feature is needed that is neither given nor computable."""

    code = "query-no-extractor"


class UnknownName(PlansError):
    """A featureset, or a name that is neither a feature nor a featureset."""

    code = "query-unknown-name"


class CyclicFeatures(PlansError):
    """A feature that is needed to compute itself."""

    code = "query-cycle"


class UnservedDataset(PlansError):
    """A lookup into a dataset that is not committed or has no key to look up by."""

    code = "query-lookup-dataset"
