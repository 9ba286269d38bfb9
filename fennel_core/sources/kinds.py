"""What the host needs of a kind of stream: a function that starts to read one.

Each kind has a module with its `start`, and a case in `host.start_feed`. What `start` returns reads
until it is stopped or fails; nothing else of it is known to the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
from pyspark.sql import SparkSession

from fennel_core.settings.model import Settings
from fennel_core.sources.feeds import Feed, FeedProgress
from fennel_core.vocab.ids import WorkspaceId
from fennel_core.wire.connectors import SealedSecret


class RunningFeed(Protocol):
    """A feed that is being read. The calls block."""

    def progress(self) -> FeedProgress | None:
        """Return what was reported at the end of the last batch; None before the first."""
        ...

    def failure(self) -> str | None:
        """Return why the reading has ended; None while it goes on."""
        ...

    def owed_s(self) -> float:
        """Return how long the limit of the feed holds it up behind what it read before it failed.

        Without a limit, 0.
        """
        ...

    def stop(self) -> None:
        """Stop the reading; what a batch still writes is fenced by the next reader."""
        ...


@dataclass(frozen=True, slots=True)
class StartedBy:
    """Where a feed is read, and how. `count_rows` gets what became of the rows of each batch."""

    spark: SparkSession
    settings: Settings
    feed: Feed
    open_secret: Callable[[WorkspaceId, SealedSecret], str]
    count_rows: Callable[[pa.Table], None]
    slot: str = ""
    """Of changes: how the names of the slots begin that are kept for the feed."""
