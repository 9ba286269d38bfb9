"""Errors of the ledgers.

`LedgerError` is the root of internal failures. `LedgerApiError` is the root of the errors that a
client of the API sees: the class fixes the HTTP status and the stable code, the instance carries
the text. A commit stores code and text in its row; `definition/errors.py` finds the status again
from the code.

Failures of Postgres and Kafka are not defined here, see `connections/errors.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from fennel_core.vocab.errors import ClassifiedApiError
from fennel_core.vocab.ids import BranchName, CommitId, WorkspaceId


class LedgerError(Exception):
    """Root of the internal failures of the ledgers. `code` is stable and never reused."""

    code: ClassVar[str] = "ledger"


class ForbiddenTransition(LedgerError):
    """Raised when a life-cycle table has no transition for an event in the current state.

    It is a bug: the caller acted on a state that it had not read under the lock. Do not retry.
    """

    code = "ledger-forbidden-transition"


class TransactionalIdsCollide(LedgerError):
    """The jobs of a workspace have transactional ids that begin like those of ingest."""

    code = "ledger-transactional-ids-collide"

    def __init__(self, workspace: WorkspaceId) -> None:
        super().__init__(
            f"workspace `{workspace}` can have no rules of its own: the transactional ids of its "
            "jobs begin like those of the ingest server, which could stop them. "
            "Create the workspace under another name"
        )


class QueryLogNotCreated(LedgerError):
    """The topic of a workspace's query log could not be created.

    It is tried again; the text has Kafka's reason.
    """

    code = "query-log-not-created"

    def __init__(self, workspace: WorkspaceId, reason: str) -> None:
        super().__init__(f"the query log of workspace `{workspace}` could not be created: {reason}")


class LedgerApiError(ClassifiedApiError):
    """Root of the errors that a client of the API sees."""

    CODE = "ledger"


class WorkspaceDeleted(LedgerApiError):
    """Stored in a commit whose workspace was deleted before the commit was finished."""

    STATUS = 404
    CODE = "workspace-not-found"

    def __init__(self, workspace: WorkspaceId) -> None:
        super().__init__(f"workspace `{workspace}` was deleted while the commit was running")


class BranchNotFound(LedgerApiError):
    """Raised when a branch does not exist. The client's tests pin status 500 and the text."""

    CODE = "branch-not-found"

    def __init__(self, branch: BranchName) -> None:
        super().__init__(f"branch `{branch}` does not exist")


class CloneSourceNotFound(LedgerApiError):
    """Raised when the branch to clone does not exist. The client's tests pin the text."""

    CODE = "branch-not-found"

    def __init__(self, source: BranchName) -> None:
        super().__init__(f"can not clone from branch `{source}`: does not exist")


class BranchExists(LedgerApiError):
    """Raised when the name of a new branch is taken. The client's tests pin the text."""

    CODE = "branch-exists"

    def __init__(self, branch: BranchName) -> None:
        super().__init__(f"can not create branch `{branch}`: already exists")


class MainBranchNotDeletable(LedgerApiError):
    """Raised when a client asks to delete `main`. The text is the client's own."""

    STATUS = 400
    CODE = "branch-main"

    def __init__(self) -> None:
        super().__init__("Cannot delete the main branch.")


class CommitNotFound(LedgerApiError):
    """Raised when no commit has the id."""

    STATUS = 404
    CODE = "commit-not-found"

    def __init__(self, commit: CommitId) -> None:
        super().__init__(f"commit `{commit}` does not exist")


class CommitConflict(LedgerApiError):
    """Raised when the commit would lose or misread what another commit changed while it ran.

    The branch is unchanged by this commit. Update the definitions and commit again.
    """

    STATUS = 409
    CODE = "commit-conflict"

    def __init__(self, branch: BranchName, conflicts: Sequence[str] = ()) -> None:
        reasons = "; ".join(conflicts) or "the branch was deleted and created again"
        super().__init__(
            f"branch `{branch}` changed while this commit was running, and nothing of the commit "
            f"was done: {reasons}. Update your definitions to those of the branch and commit again"
        )


class BranchOccupied(LedgerApiError):
    """Raised when another commit of the branch did not pass T2 or fail for a long time.

    Wait until that commit is finished or rolled back, then commit again.
    """

    STATUS = 409
    CODE = "branch-occupied"

    def __init__(self, branch: BranchName, other: CommitId, seconds: float) -> None:
        super().__init__(
            f"commit `{other}` of branch `{branch}` has not been finished for {seconds:g} s, and "
            "nothing changed. Commit again when it is finished or rolled back"
        )


class CommitOutOfOrder(LedgerApiError):
    """Raised when T2 is requested before the commit was compiled and its assets were created."""

    STATUS = 409
    CODE = "commit-out-of-order"

    def __init__(self, commit: CommitId, state: str) -> None:
        super().__init__(
            f"commit `{commit}` is {state} and cannot be switched. Run compile and create first"
        )


class BackfillNeeded(LedgerApiError):
    """Raised when a commit with `backfill=False` would recompute from existing data."""

    STATUS = 400
    CODE = "backfill-needed"

    def __init__(self, titles: tuple[str, ...]) -> None:
        names = ", ".join(f"`{title}`" for title in titles)
        super().__init__(
            f"the commit has backfill=False but must recompute {names} from existing data. "
            "Commit with backfill=True, or leave these definitions unchanged"
        )


class DataLossNotConfirmed(LedgerApiError):
    """Raised when a commit or a purge would destroy accepted rows without a confirmation.

    `lines`: one line per asset whose rows would be lost. `what` would destroy them, `otherwise` is
    what to do to keep them.
    """

    STATUS = 409
    CODE = "data-loss-not-confirmed"

    def __init__(
        self,
        lines: Sequence[str],
        what: str = "the commit",
        otherwise: str = "keep a source on the endpoint",
    ) -> None:
        plan = "\n".join(lines)
        super().__init__(
            f"{what} would destroy accepted rows, so nothing changed:\n{plan}\n"
            f"Send it with allow_data_loss=true to confirm, or {otherwise}"
        )


class AssetNotCreated(LedgerApiError):
    """Raised when Kafka rejects a topic of the commit. The text contains the broker's reason."""

    CODE = "asset-not-created"


class KafkaUnavailable(LedgerApiError):
    """Raised when no attempt to create topics succeeded. Commit again later."""

    STATUS = 503
    CODE = "kafka-unavailable"


class CommitStepFailed(LedgerApiError):
    """Stored in a commit that was rolled back because of a bug or a lost connection.

    The text has the class and the message of the failure. Report a bug; committing again after a
    lost connection is safe.
    """

    CODE = "commit-step-failed"

    def __init__(self, commit: CommitId, step: str, failure: BaseException, text: str) -> None:
        super().__init__(
            f"step {step} of commit `{commit}` failed and nothing changed: "
            f"{type(failure).__name__}: {text}"
        )


class CommitUndone(LedgerApiError):
    """Stored in a commit that was rolled back because one of its steps failed."""

    CODE = "commit-undone"

    def __init__(self, commit: CommitId) -> None:
        super().__init__(
            f"commit `{commit}` was rolled back because one of its steps failed; nothing changed"
        )


class CommitAbandoned(LedgerApiError):
    """Stored in a commit whose process died before T2. Commit again."""

    STATUS = 503
    CODE = "commit-abandoned"

    def __init__(self) -> None:
        super().__init__(
            "the process that ran the commit stopped before it was finished; nothing changed. "
            "Commit again"
        )
