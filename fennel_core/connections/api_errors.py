"""Errors of requests that every server refuses in the same way: tokens, workspaces, bodies.

`ConnectionsApiError` is the root; the class fixes the HTTP status and the stable code.
"""

from __future__ import annotations

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
        super().__init__("this call needs the administrator's token (setting FENNEL_ADMIN_TOKEN)")


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
