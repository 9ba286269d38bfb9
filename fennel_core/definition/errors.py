"""Errors of the definition server.

The client's tests pin status 500 for invalid definitions and for unknown branches; other errors use
the status that RFC 9110 suggests.
"""

from __future__ import annotations

from fennel_core.vocab.errors import ClassifiedApiError
from fennel_core.vocab.ids import BranchName, CommitId


class DefinitionError(ClassifiedApiError):
    """Root of the definition server's errors. The class fixes status and code."""

    CODE = "definition"


# --- commits --------------------------------------------------------------------------------------


class CommitMalformed(DefinitionError):
    """Raised when the body of a commit is not a SyncRequest. Send the client's bytes unchanged."""

    STATUS = 400
    CODE = "commit-malformed"


class CommitUnsupported(DefinitionError):
    """Raised when a commit uses a feature of the client that the platform does not support."""

    STATUS = 400
    CODE = "commit-unsupported"


class WindowSpecsUnavailable(DefinitionError):
    """Raised when running a pipeline function to learn its window aggregations fails."""

    STATUS = 400
    CODE = "window-aggregations"


class CommitCodeNotRun(DefinitionError):
    """Raised when no executor runs the code of a commit. Send the commit again."""

    STATUS = 503
    CODE = "executor-unavailable"


class CommitStillRunning(DefinitionError):
    """Raised when a commit has not reached T2 within the time that a client waits for it.

    It goes on without the request: reconcile leaves it alone while the orchestrator has a run of
    it. Send the same commit again to wait for it.
    """

    STATUS = 504
    CODE = "commit-under-way"

    def __init__(self, commit: CommitId, state: str, seconds: float) -> None:
        super().__init__(
            f"commit `{commit}` is still running ({state}) after {seconds:g} s and goes on without "
            "this request. Send the same commit again to wait for its outcome"
        )


class OrchestratorUnavailable(DefinitionError):
    """Raised when the orchestrator did not accept a commit, which is then rejected."""

    STATUS = 503
    CODE = "orchestrator-unavailable"


class OrchestratorNotAllowed(DefinitionError):
    """Raised when a request selects an orchestrator that this platform does not offer."""

    STATUS = 400
    CODE = "orchestrator"

    def __init__(self, header: str, value: str) -> None:
        super().__init__(
            f"header `{header}: {value}` is not allowed. Omit it, or send `inline` to a platform "
            "in development mode"
        )


# --- requests -------------------------------------------------------------------------------------


class JsonMalformed(DefinitionError):
    """Raised when a request body is not the JSON object that the route takes."""

    STATUS = 400
    CODE = "json-malformed"


class ValueNotStorable(DefinitionError):
    """Raised when Postgres cannot store a value of the request, such as a text with a zero byte."""

    STATUS = 400
    CODE = "value-unusable"


class BranchNameInvalid(DefinitionError):
    """Raised when the name of a new branch has characters that are not allowed."""

    STATUS = 400
    CODE = "branch-name"

    def __init__(self, branch: BranchName) -> None:
        super().__init__(
            f"branch name `{branch}` is invalid. Use 1 to 200 letters, digits and the characters "
            "`_`, `.`, `-` and `/`"
        )


class SecretsNotConfigured(DefinitionError):
    """Raised when the platform has no key file for secrets."""

    STATUS = 503
    CODE = "secrets-unavailable"

    def __init__(self) -> None:
        super().__init__(
            "secrets are not configured on this platform. Set FENNEL_SECRETS_KEY_FILE to a key "
            "file and restart the servers"
        )


class SecretUndefined(DefinitionError):
    """Raised when a secret to read does not exist. The client's tests pin status and text."""

    CODE = "secret-not-found"

    def __init__(self, name: str) -> None:
        super().__init__(f"Failed to get user secret mapping: secret `{name}` does not exist")


class SecretNotFound(DefinitionError):
    """Raised when a secret to update or to delete does not exist."""

    STATUS = 404
    CODE = "secret-not-found"

    def __init__(self, name: str) -> None:
        super().__init__(f"secret `{name}` does not exist. Add it first")


class SecretSealed(DefinitionError):
    """Raised when a stored secret cannot be decrypted with the configured key."""

    CODE = "secret-sealed"


class SecretInvalid(DefinitionError):
    """Raised when a secret has an empty name or a value that is too long."""

    STATUS = 400
    CODE = "secret-unusable"
