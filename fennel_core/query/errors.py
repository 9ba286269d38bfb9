"""The one error tree of the read path: what the client sees as status, stable code and a text that
says what to do.
"""

from __future__ import annotations

from typing import ClassVar

from fennel_core.plans.errors import PlansError
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import JobPartition


class QueryError(ApiError):
    """A read that cannot be answered."""

    STATUS: ClassVar[int] = 500
    CODE: ClassVar[str] = "query"

    def __init__(self, text: str) -> None:
        super().__init__(self.STATUS, self.CODE, text)


class RequestMalformed(QueryError):
    """The body is not what this call takes."""

    STATUS = 400
    CODE = "query-body"


class QueryRejected(ApiError):
    """A query that no plan can answer on this version of the branch."""

    def __init__(self, refused: PlansError) -> None:
        super().__init__(400, refused.code, str(refused))


class UnknownBranch(QueryError):
    """No such branch in this workspace. 500 and this text because shipped client tests pin both."""

    CODE = "branch-unknown"

    def __init__(self, branch: str) -> None:
        super().__init__(f"branch `{branch}` does not exist")


class UnknownDataset(QueryError):
    STATUS = 404
    CODE = "dataset-unknown"

    def __init__(self, dataset: str) -> None:
        super().__init__(f'dataset "{dataset}" not found')


class UnknownField(QueryError):
    STATUS = 400
    CODE = "field-unknown"

    def __init__(self, field: str) -> None:
        super().__init__(f"Field: {field} not in dataset")


class LookupRejected(QueryError):
    """A lookup that the dataset's keys, fields or indexes do not allow."""

    STATUS = 400
    CODE = "lookup-refused"


class ValueNotConvertible(QueryError):
    """A value that cannot be cast to its feature's or field's type."""

    STATUS = 400
    CODE = "query-value"


class ExpressionRejected(QueryError):
    """An expression that does not fit the features it reads; the commit should have refused it."""

    CODE = "query-expression"


class ExtractorFailed(QueryError):
    """User code raised, or returned what it must not."""

    CODE = "extractor-failed"


class ExtractorUnavailable(QueryError):
    """No executor ran the code in time. Asking again later helps."""

    STATUS = 503
    CODE = "executor-unavailable"


class JobParked(QueryError):
    """The job that would answer is stopped because its code fails."""

    CODE = "parked"

    @classmethod
    def of(cls, partition: JobPartition, error: str) -> JobParked:
        """From the registry's row; a slot says the same in its own words."""
        job, part = partition
        return cls(f"{job}[{part}] is parked: {error}")


class PartitionUnavailable(QueryError):
    """A partition found no live owner within the deadline. Asking again later helps."""

    STATUS = 503
    CODE = "partition-moving"

    def __init__(self, partition: JobPartition, why: str) -> None:
        job, part = partition
        super().__init__(
            f"partition {part} of job `{job}` is not served at the moment: {why}. Try again"
        )


class ViewOutdated(QueryError):
    """The branch version in memory names a job that is gone: the view is read again and the request
    repeated.
    """

    CODE = "view-stale"


class BarrierTimeout(QueryError):
    """The deadline passed before everything logged had been processed."""

    STATUS = 504
    CODE = "barrier-timeout"


class DatabaseUnavailable(QueryError):
    """Postgres does not answer. Views in memory go on being served."""

    STATUS = 503
    CODE = "database-unavailable"


class TooManyRows(QueryError):
    STATUS = 413
    CODE = "too-many-rows"

    def __init__(self, rows: int, limit: int) -> None:
        super().__init__(
            f"{rows} rows are over the limit of {limit} for one request: send them in smaller parts"
        )


class UpstreamUnavailable(QueryError):
    """A server behind the front door does not answer."""

    STATUS = 503
    CODE = "upstream-unavailable"


class ResponseTruncated(QueryError):
    """The upstream server broke off after the response had started.

    It is too late for an error response: return from the ASGI application, which closes the
    client's connection.
    """

    STATUS = 502
    CODE = "response-truncated"


class UnknownRoute(QueryError):
    STATUS = 404
    CODE = "not-found"

    def __init__(self, method: str, path: str) -> None:
        super().__init__(f"there is no {method} {path}")


class BrokerUnavailable(QueryError):
    STATUS = 503
    CODE = "kafka-unavailable"


class MissingInput(QueryError):
    """A feature is named as an input, but the data has no such column."""

    STATUS = 400
    CODE = "query-input-missing"

    def __init__(self, feature: str) -> None:
        super().__init__(
            f"the input feature `{feature}` has no column in `data`: add it, or take "
            "it out of `inputs`"
        )


class ReleaseMismatch(QueryError):
    """Rows that this release cannot read."""

    CODE = "other-release"
