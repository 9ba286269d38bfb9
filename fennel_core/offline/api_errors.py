"""Errors of requests for training data: what a client receives as status, stable code and text."""

from __future__ import annotations

from collections.abc import Sequence

from fennel_core.vocab.errors import ClassifiedApiError
from fennel_core.vocab.ids import WorkspaceId
from fennel_core.vocab.problems import Problem


class OfflineApiError(ClassifiedApiError):
    """Base class of these errors. `CODE` is stable and never reused."""

    CODE = "offline"


class OfflineQueryInvalid(OfflineApiError):
    """The request cannot be computed; the text lists everything that is wrong with it."""

    STATUS = 400
    CODE = "offline-query-invalid"

    def __init__(self, problems: Sequence[Problem]) -> None:
        lines = "".join(f"\n- {each.entity}: {each.text}" for each in problems)
        super().__init__(f"the offline query is refused:{lines}", problems)


class OfflineBodyMalformed(OfflineApiError):
    """The body of the request is not what the client sends."""

    STATUS = 400
    CODE = "offline-body"


class OfflineQueryUnknown(OfflineApiError):
    """The workspace has no request with this id."""

    STATUS = 404
    CODE = "offline-query-unknown"

    def __init__(self, id_: str) -> None:
        super().__init__(
            f"there is no offline query `{id_}` in this workspace; "
            "`GET /api/v1/query_offline/list` shows the ids"
        )


class OfflineQueryEnded(OfflineApiError):
    """A request that has ended cannot be cancelled."""

    STATUS = 409
    CODE = "offline-query-ended"

    def __init__(self, id_: str, state: str) -> None:
        super().__init__(f"offline query `{id_}` is {state}, so there is nothing to cancel")


class OfflineResultMissing(OfflineApiError):
    """The request has no such file: it is not done, its result has expired, or it has fewer."""

    STATUS = 404
    CODE = "offline-result-missing"


class OfflineQueueFull(OfflineApiError):
    """The workspace has as many open requests as it may. Send this one again later."""

    STATUS = 429
    CODE = "offline-queue-full"
    retry_after_s = 30

    def __init__(self, workspace: WorkspaceId, limit: int) -> None:
        super().__init__(
            f"workspace `{workspace}` has {limit} offline queries that have not ended "
            "(FENNEL_OFFLINE_QUERIES_QUEUED); wait for one, or cancel one"
        )
