"""Errors of the read path: what a client receives as status, stable code and text."""

from __future__ import annotations

from collections.abc import Sequence

from fennel_core.connections.kafka import access_command
from fennel_core.plans.errors import PlansError
from fennel_core.vocab.errors import ClassifiedApiError
from fennel_core.vocab.ids import JobPartition


class QueryError(ClassifiedApiError):
    """Base class of every error of the read path. `CODE` is stable and never reused."""

    CODE = "query"


class RequestMalformed(QueryError):
    """The body or a parameter of the request is malformed. Fix the request."""

    STATUS = 400
    CODE = "query-body"


class QueryRejected(QueryError):
    """No plan can compute the query on this version of the branch."""

    STATUS = 400

    def __init__(self, refused: PlansError) -> None:
        super().__init__(str(refused))
        self.code = refused.code


class UnknownBranch(QueryError):
    """The workspace has no such branch. Shipped client tests check this status and text."""

    CODE = "branch-unknown"

    def __init__(self, branch: str) -> None:
        super().__init__(f"branch `{branch}` does not exist")


class UnknownDataset(QueryError):
    """The branch has no such dataset."""

    STATUS = 404
    CODE = "dataset-unknown"

    def __init__(self, dataset: str) -> None:
        super().__init__(f'dataset "{dataset}" not found')


class UnknownField(QueryError):
    """The dataset has no such field."""

    STATUS = 400
    CODE = "field-unknown"

    def __init__(self, field: str) -> None:
        super().__init__(f"Field: {field} not in dataset")


class LookupRejected(QueryError):
    """The dataset's keys, fields or indexes do not allow the lookup."""

    STATUS = 400
    CODE = "lookup-refused"


class ValueNotConvertible(QueryError):
    """A value cannot be cast to the type of its feature or field."""

    STATUS = 400
    CODE = "query-value"


class ExpressionRejected(QueryError):
    """An expression does not fit the features it reads; the commit should have refused it."""

    CODE = "query-expression"


class ExtractorFailed(QueryError):
    """User code raised, or returned an invalid result."""

    CODE = "extractor-failed"


class ExtractorUnavailable(QueryError):
    """No executor ran the code in time. Retry."""

    STATUS = 503
    CODE = "executor-unavailable"


class JobParked(QueryError):
    """The job that serves the read is parked because its code fails. A retry does not help."""

    CODE = "parked"

    @classmethod
    def of(cls, partition: JobPartition, error: str) -> JobParked:
        """Return the error for a job that is parked in the registry."""
        job, part = partition
        return cls(f"{job}[{part}] is parked: {error}")

    def needed_by(self, features: Sequence[str]) -> JobParked:
        """Return the error with the names of the features that need the job."""
        names = ", ".join(f"`{name}`" for name in features)
        return JobParked(f"{self}. The features {names} need it; query without them, or repair it")


class SlotCallFailed(QueryError):
    """A slot refused a call for a reason that no other slot can resolve.

    `not-owner` and `parked` are handled elsewhere; what is left is a defect, a version mismatch, or
    a result that is too large.
    """

    CODE = "slot-call-failed"

    def __init__(self, remote_code: str, text: str) -> None:
        super().__init__(f"the engine could not serve the read ({remote_code}): {text}")


class SlotUnresponsive(QueryError):
    """The slot accepts connections and does not respond: its process is frozen. Retry."""

    STATUS = 503
    CODE = "slot-unresponsive"


class QueryTimeout(QueryError):
    """A request took longer than the setting FENNEL_QUERY_TIMEOUT_MS and was cancelled."""

    STATUS = 504
    CODE = "query-timeout"

    def __init__(self, timeout_s: float) -> None:
        super().__init__(
            f"the request was cancelled after {timeout_s:g} s: ask for fewer rows or features, or "
            "raise FENNEL_QUERY_TIMEOUT_MS"
        )


class LargeReadInterrupted(QueryError):
    """The process that had the large request ended or froze. Retry."""

    STATUS = 503
    CODE = "large-read-interrupted"

    def __init__(self, why: str) -> None:
        super().__init__(
            f"the process for large requests was lost before it responded ({why}): try again, with "
            "fewer rows if it was lost for lack of memory"
        )


class LargeReadFailed(QueryError):
    """The process for large requests has a defect; its log has the reason."""

    CODE = "large-read-failed"

    def __init__(self, why: str) -> None:
        super().__init__(f"the process for large requests could not serve it: {why}")


class ErasuresUnknown(QueryError):
    """This server does not know which keys are erased, so it refuses every read. Retry."""

    STATUS = 503
    CODE = "erasures-unknown"

    def __init__(self) -> None:
        super().__init__(
            "reads are refused until this server has read the list of erased keys; try again"
        )


class PartitionUnavailable(QueryError):
    """A partition had no live owner until the deadline. Retry."""

    STATUS = 503
    CODE = "partition-moving"

    def __init__(self, partition: JobPartition, why: str) -> None:
        job, part = partition
        super().__init__(
            f"partition {part} of job `{job}` is not served at the moment: {why}. Try again"
        )


class ViewOutdated(QueryError):
    """The branch version in memory names a job that no longer exists.

    `QueryService` reloads the view and repeats the request once.
    """

    CODE = "view-stale"


class BarrierTimeout(QueryError):
    """Not everything logged was processed before the deadline. Retry."""

    STATUS = 504
    CODE = "barrier-timeout"


class TooManyRows(QueryError):
    """The request has more rows than the setting FENNEL_QUERY_ROWS. Split it."""

    STATUS = 413
    CODE = "too-many-rows"

    def __init__(self, rows: int, limit: int) -> None:
        super().__init__(
            f"{rows} rows are over the limit of {limit} for one request: send them in smaller parts"
        )


class UpstreamUnavailable(QueryError):
    """A server behind the API gateway does not respond. Retry."""

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
    """The query server has no such method and path."""

    STATUS = 404
    CODE = "not-found"

    def __init__(self, method: str, path: str) -> None:
        super().__init__(f"there is no {method} {path}")


class BrokerUnavailable(QueryError):
    """Kafka cannot be reached. Retry."""

    STATUS = 503
    CODE = "kafka-unavailable"


class KafkaAccessDenied(QueryError):
    """Kafka's ACLs do not let this server use a topic. An administrator has to add the right."""

    CODE = "kafka-access"

    def __init__(self, user: str, topic: str) -> None:
        super().__init__(
            f"the Kafka user `{user}` has no right to read or describe the topic `{topic}`: run "
            f"{access_command(topic)}"
        )


class MissingInput(QueryError):
    """An input feature of the query has no column in its data."""

    STATUS = 400
    CODE = "query-input-missing"

    def __init__(self, feature: str) -> None:
        super().__init__(
            f"the input feature `{feature}` has no column in `data`: add it, or take "
            "it out of `inputs`"
        )


class ReleaseMismatch(QueryError):
    """Another release wrote data that this one cannot read."""

    CODE = "other-release"
