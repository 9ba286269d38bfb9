"""Failures of a job partition and of the log it reads and writes.

`EngineError` is the root. Kafka or Postgres being away is not an engine error: those are
`connections.errors.SystemUnavailable`, `TransactionAborted` and `TransactionOutcomeUnknown`. The
supervisor reacts to a failed runner by class:

- `ProducerFenced`, `EpochSuperseded`: ownership is lost; drop the job partition.
- `StateUnusable`: discard the state, restore an older snapshot or replay, and park the job
  partition with the reason until that has succeeded.
- `OutputTooLarge`, `OutputTopicMissing` and other classes: park the job partition with the error;
  try again with back-off.
"""

from __future__ import annotations

from typing import ClassVar

from fennel_core.connections.errors import TransactionAborted
from fennel_core.vocab.ids import Offset, TopicName


class EngineError(Exception):
    """Base class of every failure of the engine. `code` is stable and never reused."""

    code: ClassVar[str] = "engine-failed"


class BrokerError(EngineError):
    """Base class of what the log refuses. Start the runner again; the log itself is reachable."""

    code = "broker-refused"


class ProducerFenced(BrokerError):
    """A newer producer with this transactional id was opened. Stop: you are not the owner."""

    code = "producer-fenced"


class OutputTooLarge(EngineError):
    """A record exceeds what Kafka accepts. The job parks: it would emit the same record again."""

    code = "output-too-large"


class OutputTopicMissing(EngineError, TransactionAborted):
    """A topic that the job writes does not exist; nothing was written. The job parks."""

    code = "output-topic-missing"


class OffsetTruncated(BrokerError):
    """The requested records were deleted from the log; a retry does not bring them back.

    Restore a snapshot with a later position, or stop. Never continue at the log's new beginning.
    """

    code = "offset-truncated"

    def __init__(self, source: tuple[TopicName, int], first: Offset, start: Offset) -> None:
        super().__init__(
            f"{source[0]}[{source[1]}] begins at {start}: its records from {first} "
            f"to {start - 1} are deleted"
        )
        self.source, self.first, self.start = source, first, start


class OffsetBeyondEnd(BrokerError):
    """A position is beyond the log's end, so it belongs to another log. Discard the state."""

    code = "offset-beyond-end"

    def __init__(self, source: tuple[TopicName, int], position: Offset, end: Offset) -> None:
        super().__init__(f"{source[0]}[{source[1]}] ends at {end}, before position {position}")


class EpochSuperseded(EngineError):
    """State or replaylog contain a higher epoch than ours. Stop: a newer owner exists."""

    code = "epoch-superseded"


class LogTruncated(EngineError):
    """The log no longer has records that this state needs.

    The job partition can neither continue nor skip them. Backfill it from history, or commit its
    dataset under a new version.
    """

    code = "log-truncated"


class StateFormatError(EngineError):
    """The state was written in a format that this version cannot read. Use another snapshot."""

    code = "state-format"


class StateUnusable(EngineError):
    """Base class: never run on this state again. Restore an older snapshot or replay the log."""

    code = "state-unusable"


class ReplayMismatch(StateUnusable):
    """Replay produced other mutations than the marker records: state or code differ from then."""

    code = "replay-mismatch"


class StateAheadOfLog(StateUnusable):
    """The state has applied offsets that the log does not have: it belongs to another log."""

    code = "state-ahead-of-log"


class StateDiscarded(StateUnusable):
    """A reader found the state damaged while the runner was using it."""

    code = "state-discarded"


class RebuildRequested(StateDiscarded):
    """An operator requested a rebuild. Snapshots that were skipped earlier may be used again."""

    code = "rebuild-requested"

    def __init__(self, why: str, before: int | None = None, *, trust_outputs: bool = False) -> None:
        """`before`: restore only snapshots with lower numbers than this; None: any snapshot.

        `trust_outputs`: do not compare what replay computes with what was committed.
        """
        super().__init__(why)
        self.before, self.trust_outputs = before, trust_outputs
