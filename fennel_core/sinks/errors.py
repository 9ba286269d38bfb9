"""Errors of sinks: why the changes of a dataset cannot be written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar


class SinkError(Exception):
    """Base class. `code` is stable and never reused."""

    code: ClassVar[str] = "sink"


class SinkTopicReplaced(SinkError):
    """The connector leads to another topic than the one that has what was written so far."""

    code: ClassVar[str] = "sink-topic-replaced"

    def __init__(self, title: str, before: str, now: str) -> None:
        super().__init__(
            f"sink {title} wrote to `{before}`, and that is `{now}` now, because "
            "the topic was created again or the connector has another address; give the connector "
            "its earlier address, or write everything again with "
            "`fennel-core sink rewind NAME --to earliest`"
        )


class SinkPositionsLost(SinkError):
    """The cluster knows less than what it had acknowledged."""

    code: ClassVar[str] = "sink-positions-lost"

    def __init__(self, title: str, lost: Mapping[int, tuple[int, int]]) -> None:
        (partition, (stored, known)), *_ = sorted(lost.items())
        super().__init__(
            f"sink {title}: its cluster has position {stored} of partition {partition}, but had "
            f"{known} before, so its positions were deleted or restored; going on would write "
            "changes twice. Restore the topic of positions, or write everything again with "
            "`fennel-core sink rewind NAME --to earliest`"
        )


class SinkAhead(SinkError):
    """The sink has changes that the dataset's topic lacks."""

    code: ClassVar[str] = "sink-ahead"

    def __init__(self, title: str, partition: int, position: int, end: int) -> None:
        super().__init__(
            f"sink {title} has changes up to offset {position} of partition {partition}, but the "
            f"dataset ends at {end}: the platform was restored to an earlier time. Write "
            "everything again with `fennel-core sink rewind NAME --to earliest`"
        )


class SinkEndpointUnavailable(SinkError):
    """An HTTP endpoint accepts nothing for now. `retry_after_s`: how long it asks to wait."""

    code: ClassVar[str] = "sink-endpoint-unavailable"

    def __init__(self, title: str, reason: str, retry_after_s: float = 0.0) -> None:
        super().__init__(f"sink {title}: {reason}; what was not accepted is sent again")
        self.retry_after_s = retry_after_s


class SinkStopped(SinkError):
    """The sink was asked to end within a step; what was sent is in its position."""

    code: ClassVar[str] = "sink-stopped"


class LettersTaken(SinkError):
    """Another order settles the dead letters that are sent again; a later step does the rest."""

    code: ClassVar[str] = "sink-letters-taken"

    def __init__(self, title: str) -> None:
        super().__init__(f"dead letters of sink {title} are settled by another order")


class SinkErasuresLost(SinkError):
    """The sink deleted keys for an erasure that the platform does not know."""

    code: ClassVar[str] = "sink-erasures-lost"

    def __init__(self, title: str, erased: int, newest: int) -> None:
        super().__init__(
            f"sink {title} has deleted the keys of erasures up to {erased}, but the last that the "
            f"dataset has is {newest}: the platform was restored to an earlier time. Erase the "
            "keys again, and give the connector another name (a table: another path) to write "
            "everything again"
        )


class SinkTableGone(SinkError):
    """The table was deleted, and the sink had written it."""

    code: ClassVar[str] = "sink-table-gone"

    def __init__(self, title: str) -> None:
        super().__init__(
            f"{title} does not exist any more, and has the position of the sink; restore it, or "
            "write everything again with `fennel-core sink rewind NAME --to earliest`"
        )


class SinkTableTaken(SinkError):
    """The table exists and another sink, or another program, has made it."""

    code: ClassVar[str] = "sink-table-taken"

    def __init__(self, title: str, owner: str | None) -> None:
        maker = "another program" if owner is None else f"another sink, `{owner}`,"
        super().__init__(
            f"{title} was made by {maker} and a table has the changes of one sink, which could not "
            "be separated otherwise (another version of the dataset, or of what it is computed "
            "from, is another sink); give the sink another path, or delete the table"
        )


class SinkTableChanged(SinkError):
    """The table does not have the columns that the sink writes."""

    code: ClassVar[str] = "sink-table-changed"

    def __init__(self, title: str, columns: Sequence[str]) -> None:
        super().__init__(
            f"{title} has other columns than the sink writes, or of other types: "
            f"{', '.join(columns)}; change them back, or give the sink another path"
        )


class SinkMessageTooLarge(SinkError):
    """A change is larger than what the topic takes."""

    code: ClassVar[str] = "sink-message-too-large"

    def __init__(self, topic: str, size_bytes: int) -> None:
        super().__init__(
            f"a change for topic `{topic}` has {size_bytes} bytes, which is more than the topic "
            "takes, or than the 32 MiB that a sink writes; set `max.message.bytes` of the topic "
            "to more than that, or take large columns out of the dataset"
        )


class SinkRowsLost(SinkError):
    """Changes that were not written are in neither history nor Kafka.

    `following`: the first record behind them.
    """

    code: ClassVar[str] = "sink-rows-lost"

    def __init__(self, title: str, partition: int, first: int, following: int) -> None:
        self.following = following
        super().__init__(
            f"sink {title}: the records {first} to {following - 1} of partition {partition} are "
            "neither in history nor in Kafka, so their changes cannot be written. Restore them "
            "from a backup, or give the dataset a new version"
        )
