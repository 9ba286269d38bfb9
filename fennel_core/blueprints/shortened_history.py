"""Which rows of history a commit lets go sooner than the versions before it do. Pure.

Theory. What keeps a row is the longest need of all versions and jobs (`row_retention`), so not only
a shorter `history` shortens it: a longer reader may leave, or a sink. Whatever it is, the needs
with the commit are compared with those before. Rows that are gone do not come back, so this is a
loss like that of an endpoint: the plan has the number, and the commit needs `allow_data_loss`.

Example. Clicks keep 30 days, and a `forever` aggregate reads them. The commit without the aggregate
keeps rows for 30 days instead of for ever, and loses those of files that have older ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fennel_core.blueprints.notices import DAY_US
from fennel_core.blueprints.plan_entries import Notice
from fennel_core.blueprints.plan_text import duration_text
from fennel_core.blueprints.row_retention import RowRetention
from fennel_core.vocab.ids import DatasetName, TopicName

CODE: Final = "history-shortened"
CONFIRMED: Final = Notice(
    "history-confirmed",
    "",
    "the workspace is older than retention: from the end of the grace period on, rows older than "
    "`history` leave history by their age",
)
"""In the plan of the commit that confirms it, whether or not there are such rows now."""


@dataclass(frozen=True, slots=True)
class ShortenedHistory:
    """The rows of a topic, which are needed for `after_us` instead of `before_us` (None: for ever).

    `datasets`: those with these rows.
    """

    topic: TopicName
    datasets: tuple[DatasetName, ...]
    before_us: int | None
    after_us: int

    @property
    def entity(self) -> str:
        """The dataset that the plan names."""
        return self.datasets[0] if self.datasets else self.topic


def shortened(
    before: Mapping[TopicName, RowRetention], after: Mapping[TopicName, RowRetention]
) -> list[ShortenedHistory]:
    """Return the topics whose rows leave sooner, in order.

    A topic that nothing needed before (a revived one) kept its rows.
    """
    found = []
    for topic, now in sorted(after.items()):
        was = before.get(topic)
        was_us = None if was is None or was.kept_because is not None else was.kept_us
        if now.kept_because is None and (was_us is None or was_us > now.kept_us):
            found.append(ShortenedHistory(topic, now.datasets, was_us, now.kept_us))
    return found


def loss(history: ShortenedHistory, rows: int, grace_ms: int) -> Notice:
    """Return the notice about rows that leave history."""
    names = ", ".join(f"`{name}`" for name in history.datasets)
    before = "for ever" if history.before_us is None else f"for {_days(history.before_us)}"
    when = f"in {duration_text(grace_ms)}" if grace_ms else "now"
    text = (
        f"rows of {names} are needed for {_days(history.after_us)} instead of {before}: "
        f"up to {rows} rows in history are older, and begin to leave {when}, for ever"
    )
    return Notice(CODE, history.entity, text)


def held_back(history: ShortenedHistory, rows: int) -> Notice:
    """Return the notice about rows that stay because the workspace is older than retention."""
    names = ", ".join(f"`{name}`" for name in history.datasets)
    text = (
        f"rows of {names} are needed for {_days(history.after_us)}: up to {rows} rows in history "
        "are older, and stay until their loss is confirmed: commit with allow_data_loss"
    )
    return Notice("history-not-applied", history.entity, text)


def _days(span_us: int) -> str:
    return f"{-(-span_us // DAY_US)} days"
