"""Errors of requests that every server refuses in the same way: tokens, workspaces, bodies.

`ConnectionsApiError` is the root; the class fixes the HTTP status and the stable code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fennel_core.vocab.errors import ClassifiedApiError
from fennel_core.vocab.ids import WorkspaceId


class ConnectionsApiError(ClassifiedApiError):
    """Base class of the errors below. `CODE` is stable and never reused."""

    CODE = "connections"


class TokenMissing(ConnectionsApiError):
    """The request has no bearer token."""

    STATUS = 401
    CODE = "unauthenticated"

    def __init__(self) -> None:
        super().__init__("no token: send the header `Authorization: Bearer <token>`")


class TokenUnknown(ConnectionsApiError):
    """The token opens no workspace, or its workspace is being deleted."""

    STATUS = 401
    CODE = "token-unknown"


class NotAdministrator(ConnectionsApiError):
    """The call requires the administrator's token."""

    STATUS = 401
    CODE = "not-administrator"

    def __init__(self) -> None:
        super().__init__(
            "this call needs the administrator's token (setting FENNEL_ADMIN_TOKEN), or a token "
            "with the role `operator`"
        )


class TokenExpired(ConnectionsApiError):
    """The token was valid until the time that the text names. Ask for a new one."""

    STATUS = 401
    CODE = "token-expired"

    def __init__(self, actor: str) -> None:
        super().__init__(
            f"{actor} has expired; ask an administrator of its workspace for a new one"
        )


class RoleInsufficient(ConnectionsApiError):
    """The role of the token does not allow the call."""

    STATUS = 403
    CODE = "role-insufficient"

    def __init__(self, actor: str, role: str, valid: Sequence[str]) -> None:
        needed = " or ".join(f"`{each}`" for each in valid)
        super().__init__(
            f"{actor} has the role `{role}`, and this call needs {needed}; use a token with such "
            "a role"
        )


class AirflowUserRefused(ConnectionsApiError):
    """A user of Airflow triggered a DAG for a workspace in which the user has no such role."""

    STATUS = 403
    CODE = "airflow-user-refused"

    def __init__(self, user: str, workspace: str, role: str | None, valid: Sequence[str]) -> None:
        has = "no role" if role is None else f"the role `{role}`"
        needed = " or ".join(f"`{each}`" for each in valid)
        super().__init__(
            f"user `{user}` of Airflow has {has} in workspace `{workspace}`, and this run needs "
            f"{needed}; an operator gives roles with FENNEL_AIRFLOW_WORKSPACES, for example "
            f"`{user}:{workspace}={valid[0]}`"
        )


class TokenNotFound(ConnectionsApiError):
    """There is no token with this id, or it belongs to another workspace."""

    STATUS = 404
    CODE = "token-not-found"

    def __init__(self, id_: str) -> None:
        super().__init__(f"there is no token `{id_}`; the list of tokens shows the ids")


class TokenRequestInvalid(ConnectionsApiError):
    """A new token cannot have this name, role or lifetime."""

    STATUS = 400
    CODE = "token-invalid"


class WorkspaceNameInvalid(ConnectionsApiError):
    """The name cannot be part of topic, object and folder names."""

    STATUS = 400
    CODE = "workspace-name"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"workspace `{name}`: a name is 1 to 63 of the characters a-z, 0-9 and `-`"
        )


class WorkspaceExists(ConnectionsApiError):
    """A workspace of this name exists already."""

    STATUS = 409
    CODE = "workspace-exists"

    def __init__(self, workspace: WorkspaceId) -> None:
        super().__init__(
            f"workspace `{workspace}` exists; choose another name, or add a token to it"
        )


class WorkspaceNotFound(ConnectionsApiError):
    """The workspace does not exist or is being deleted. Create it first."""

    STATUS = 404
    CODE = "workspace-not-found"

    def __init__(self, workspace: WorkspaceId) -> None:
        super().__init__(f"workspace `{workspace}` does not exist or is being deleted")


class DatabaseUnavailable(ConnectionsApiError):
    """The platform's database cannot be reached; nothing was changed. Retry."""

    STATUS = 503
    CODE = "database-unavailable"


class CallOutcomeUnknown(ConnectionsApiError):
    """The connection to the database was lost during its COMMIT: the call may have been done."""

    STATUS = 503
    CODE = "call-outcome-unknown"

    def __init__(self, lost: Exception) -> None:
        super().__init__(
            f"the platform's database did not report whether the call was done ({lost}); read what "
            "it changes before you send it again"
        )


class ContentLengthMalformed(ConnectionsApiError):
    """The `Content-Length` header is not a decimal number of bytes."""

    STATUS = 400
    CODE = "content-length"

    def __init__(self, value: str) -> None:
        super().__init__(f"`Content-Length: {value}` is not a number of bytes")


class BodyTooLarge(ConnectionsApiError):
    """The request body exceeds the setting FENNEL_BODY_LIMIT_BYTES."""

    STATUS = 413
    CODE = "body-too-large"

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(
            f"the request body exceeds the limit of {limit_bytes} bytes "
            "(FENNEL_BODY_LIMIT_BYTES); send it in smaller parts"
        )


class HostNotAllowed(ConnectionsApiError):
    """The `Host` header does not name this server. List the name in FENNEL_ALLOWED_HOSTS."""

    STATUS = 403
    CODE = "host-not-allowed"

    def __init__(self, host: str) -> None:
        super().__init__(
            f"`{host}` is not a name of this server; call it by its address, or list the name in "
            "FENNEL_ALLOWED_HOSTS"
        )


class OriginNotAllowed(ConnectionsApiError):
    """A web page of another origin sent the request. Call the API from a program."""

    STATUS = 403
    CODE = "origin-not-allowed"

    def __init__(self, origin: str) -> None:
        super().__init__(
            f"pages of {origin} may not call this server; call it from a server of yours"
        )


class DevelopmentTokenHost(ConnectionsApiError):
    """A development token came with a `Host` that is not this machine."""

    STATUS = 401
    CODE = "development-token-host"

    def __init__(self, host: str) -> None:
        super().__init__(
            f"tokens dev-<name> work at localhost and 127.0.0.1 only, not at `{host}`; use a token "
            "of `fennel-core workspace create`"
        )


class ServerBusy(ConnectionsApiError):
    """The process serves as many requests as it may. Retry after the time in `Retry-After`."""

    STATUS = 503
    CODE = "server-busy"

    def __init__(self, limit: str) -> None:
        super().__init__(f"the server is at its limit of {limit}; try again")


class WorkspaceBusy(ConnectionsApiError):
    """The workspace has as many requests under way as it may. Send fewer at a time."""

    STATUS = 429
    CODE = "workspace-busy"
    retry_after_s = 1

    def __init__(self, workspace: WorkspaceId, limit: int) -> None:
        super().__init__(
            f"workspace `{workspace}` has {limit} requests under way "
            "(FENNEL_WORKSPACE_REQUESTS_AT_ONCE); send fewer at a time"
        )


class WorkspaceTooFast(ConnectionsApiError):
    """The workspace sends more requests per second than it may. Send fewer, with more rows each."""

    STATUS = 429
    CODE = "workspace-too-fast"

    def __init__(self, workspace: WorkspaceId, per_s: float, wait_s: float) -> None:
        super().__init__(
            f"workspace `{workspace}` sends more than {per_s:g} requests per second "
            "(FENNEL_WORKSPACE_REQUESTS_PER_S); send fewer, with more rows each"
        )
        self.retry_after_s = math.ceil(wait_s)
