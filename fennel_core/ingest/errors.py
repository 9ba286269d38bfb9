"""Errors of the ingest server: what a client receives as status, stable code and text.

`IngestError` is the root. An unreachable Kafka or Postgres is not an ingest error: producers and
stores raise `connections.errors`, and `log_service` translates those for the client.
"""

from __future__ import annotations

from fennel_core.vocab.errors import ClassifiedApiError


class IngestError(ClassifiedApiError):
    """Base class of every error of ingest. `CODE` is stable and never reused."""

    CODE = "ingest"


class UnknownPath(IngestError):
    """The ingest server has no such path."""

    STATUS = 404
    CODE = "not-found"


class MethodNotAllowed(IngestError):
    """The path exists, but takes another HTTP method."""

    STATUS = 405
    CODE = "method-not-allowed"


class EraseBodyMalformed(IngestError):
    """The body of `erase` is not JSON of the expected form. Fix the request."""

    STATUS = 400
    CODE = "erase-malformed"


class EndpointNotFound(IngestError):
    """No branch of the workspace has a source on this webhook endpoint."""

    STATUS = 404
    CODE = "endpoint-unknown"


class DatasetNotFound(IngestError):
    """The branch has no dataset of this name."""

    STATUS = 404
    CODE = "dataset-unknown"


class EraseKeysRejected(IngestError):
    """The keys to erase are not exactly the dataset's erase keys."""

    CODE = "erase-refused"


class IngestUnavailable(IngestError):
    """Kafka or Postgres could not be reached; nothing was changed. Retry."""

    STATUS = 503
    CODE = "ingest-unavailable"


class LogNotWritten(IngestError):
    """Kafka aborted the transaction of the request; nothing was written. Retry."""

    STATUS = 503
    CODE = "log-not-written"


class LogOutcomeUnknown(IngestError):
    """The response to the commit was lost: all rows were written, or none.

    A retry is safe for keyed datasets; it may duplicate the rows of keyless ones.
    """

    STATUS = 503
    CODE = "log-outcome-unknown"


class DefinitionsChanging(IngestError):
    """The definitions changed during every attempt to prepare the request. Retry."""

    STATUS = 503
    CODE = "definitions-moving"


class CatalogChanged(IngestError):
    """The request was prepared under definitions that are no longer current; prepare it again.

    Internal to ingest: `LogService` catches it and never sends it to a client.
    """

    STATUS = 503
    CODE = "catalog-changed"
