"""Failures of the command line and of the local platform. Every message names the next action."""

from typing import ClassVar


class AppsError(Exception):
    """Root of the package's exceptions; catch it to report any of them as one sentence.

    `code` is stable and never shown to users of the API: these errors end a command, not a request.
    """

    code: ClassVar[str]


class SetupFailed(AppsError):
    """Raised when this machine lacks a requirement, or a setup step of a service fails.

    The text names the problem and the next action; print it and end the command.
    """

    code: ClassVar[str] = "setup-failed"


class UnknownService(AppsError):
    """Raised when a command names a service or group that is not in the service table.

    The text lists the valid names.
    """

    code: ClassVar[str] = "unknown-service"


class PlatformLocked(AppsError):
    """Raised when another process is starting or stopping services and the caller does not wait.

    Try again after that process has finished.
    """

    code: ClassVar[str] = "platform-locked"


class DemoFailed(AppsError):
    """Raised when the example project of `fennel-core demo` ends with an error.

    The text holds the last lines that the example printed; see `fennel-core status` and `logs`.
    """

    code: ClassVar[str] = "demo-failed"


class BackupFailed(AppsError):
    """Raised when no backup can be taken; what is in the target is not one.

    The text names the reason and the next action.
    """

    code: ClassVar[str] = "backup-failed"


class BackupUnusable(AppsError):
    """Raised when a backup, its place or its passphrase cannot be used. Nothing was changed.

    The text names the problem and the next action.
    """

    code: ClassVar[str] = "backup-unusable"


class RestoreFailed(AppsError):
    """Raised when a backup cannot be restored into this installation, which is empty as before.

    The text names the problem and the next action.
    """

    code: ClassVar[str] = "restore-failed"


class RestoreUnfinished(AppsError):
    """Raised when a restore failed and what it wrote is still there, in whole or in part.

    The text names what is there and how to go on.
    """

    code: ClassVar[str] = "restore-unfinished"
