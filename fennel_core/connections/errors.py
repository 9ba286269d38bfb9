"""Failures of the systems that the platform depends on, under one name each.

Postgres, Kafka, S3 and the slots fail in the same three ways, and a caller must react in the same
three ways, whichever system it was:

- `SystemUnavailable`: nothing happened; try again later.
- `TransactionAborted`: the transaction was rolled back as a whole; it is safe to run it again.
- `TransactionOutcomeUnknown`: the transaction was committed or rolled back and the system did not
  say which. Learn the outcome before you run it again.

Packages above this one raise and catch these classes instead of defining their own.
"""

from __future__ import annotations

from typing import ClassVar


class ConnectionsError(Exception):
    """Base class of every failure of a connected system. `code` is stable and never reused."""

    code: ClassVar[str] = "connection-failed"


class SystemUnavailable(ConnectionsError):
    """The system could not be reached or did not respond in time; nothing was changed."""

    code = "system-unavailable"


class TopicAccessDenied(ConnectionsError):
    """Kafka's ACLs do not let this process read a topic. An administrator has to add the right."""

    code = "topic-access-denied"


class ObjectStoreUnavailable(SystemUnavailable):
    """The bucket could not be used. A job partition that must restore a snapshot cannot start."""

    code = "object-store-unavailable"


class JvmExited(ConnectionsError):
    """Spark's JVM has exited. End the process, so that its supervisor starts a new one."""

    code = "jvm-exited"


class TransactionAborted(ConnectionsError):
    """The transaction was rolled back as a whole; it can be run again."""

    code = "transaction-aborted"


class TransactionOutcomeUnknown(ConnectionsError):
    """The response to the commit was lost and the outcome could not be learnt."""

    code = "transaction-outcome-unknown"
