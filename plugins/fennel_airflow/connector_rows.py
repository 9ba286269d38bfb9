"""The sources and sinks of a commit, with state, rows, lag and error, as its page shows them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from fennel_airflow.page_source import PageSource, Row
from fennel_core.blueprints import stored_names
from fennel_core.blueprints.spec import Catalog
from fennel_core.ingest.store import BranchCatalog, Branches
from fennel_core.sinks.orders import SinkView, sink_row, sink_views
from fennel_core.sources.controls import FeedStatus, SourceLimit, SourcePause
from fennel_core.sources.overview import (
    Orders,
    SourceView,
    ended_sources,
    source_row,
    source_views,
)
from fennel_core.vocab.ids import BranchName, CommitId, Identity

STATUSES: Final = """
SELECT a.id, s.failures, s.behind, s.reason, s.retry_at, s.behind_ms, s.reported_at,
    s.row_count AS rows,
    extract(epoch FROM now() - s.reported_at)::float8 AS age_s,
    extract(epoch FROM now() - s.fresh_at)::float8 AS unread_s,
    p.paused_by, p.paused_at, e.ended_at, l.rows_per_s, l.limited_by, l.limited_at
FROM asset_ref f JOIN asset a ON a.id = f.asset_id
    LEFT JOIN source_status s ON s.raw_topic = a.id
    LEFT JOIN source_pause p ON p.raw_topic = a.id LEFT JOIN source_end e ON e.raw_topic = a.id
    LEFT JOIN source_limit l ON l.raw_topic = a.id
WHERE f.commit_id = %(commit)s AND a.kind IN ('raw', 'sink')
"""
SINK_PAUSES: Final = """
SELECT sink, paused_by, paused_at FROM sink_pause WHERE workspace = %(workspace)s
"""
SILENCES: Final = """
SELECT identity, extract(epoch FROM now() - last_rows_at)::float8 AS quiet_s FROM source_clock
WHERE workspace = %(workspace)s AND last_rows_at IS NOT NULL
"""


class ConnectorRows:
    """The rows of the page of one commit; what no version keeps any more is left out."""

    def __init__(self, source: PageSource, commit: Row) -> None:
        catalog = (
            Catalog(commit["workspace"], (), (), (), 0)
            if commit["catalog"] is None
            else stored_names.loads(commit["catalog"], Catalog)
        )
        name, id_ = BranchName(commit["branch"]), CommitId(commit["id"])
        self._branches = Branches("", (BranchCatalog(name, id_, catalog),))
        self._found = {row["id"]: row for row in source.rows(STATUSES, {"commit": id_})}
        workspace = {"workspace": commit["workspace"]}
        self._silences = {
            Identity(row["identity"]): float(row["quiet_s"])
            for row in source.rows(SILENCES, workspace)
        }
        pauses = source.rows(SINK_PAUSES, workspace)
        self._pauses = {
            row["sink"]: SourcePause(row["paused_by"], row["paused_at"]) for row in pauses
        }

    def sources(self) -> list[dict[str, Any]]:
        """Return the sources."""
        return [
            self._source(view, found)
            for view in source_views(self._branches)
            for found in [self._found.get(_raw_topic(view))]
            if found is not None
        ]

    def sinks(self) -> list[dict[str, Any]]:
        """Return the sinks."""
        rows = [
            self._sink(view, found)
            for name, view in sink_views(self._branches).items()
            for found in [self._found.get(name)]
            if found is not None
        ]
        return sorted(rows, key=lambda row: str(row["sink"]))

    def _source(self, view: SourceView, found: Row) -> dict[str, Any]:
        if view.feed is None:
            row = source_row(view, Orders(), {}, ended_sources(view, self._silences))
            quiet = [self._silences[of] for of, _ in view.bindings if of in self._silences]
            return row | {"quiet": _duration(min(quiet)) if quiet else None}
        limit = (
            None
            if found["rows_per_s"] is None
            else SourceLimit(found["rows_per_s"], found["limited_by"], found["limited_at"])
        )
        pause = (
            None
            if found["paused_by"] is None
            else SourcePause(found["paused_by"], found["paused_at"])
        )
        row = source_row(view, Orders(pause, _status(found), found["ended_at"], limit), {})
        return row | {
            "rows": found["rows"],
            "lag": lag(row, row["unread_s"] if view.feed.scheduled else None),
            "reported_at": found["reported_at"],
        }

    def _sink(self, view: SinkView, found: Row) -> dict[str, Any]:
        # The page shows no orders.
        row = sink_row(view, self._pauses.get(view.target.title), _status(found), None, 0)
        return row | {"lag": lag(row), "reported_at": found["reported_at"]}


def lag(row: Row, read_s: float | None = None) -> str:
    """Return how far a source or sink is behind, as people read it; empty if nothing is known.

    `read_s`: how long ago a table was read to its end.
    """
    if row.get("behind_ms") is not None:
        return f"{row['behind_ms'] / 1000:.1f} s"
    if row["behind"] is not None:
        return f"{row['behind']}"
    if read_s is not None:
        return f"read to its end {_duration(read_s)} ago"
    return ""


def _duration(seconds: float) -> timedelta:
    return timedelta(seconds=round(max(0.0, seconds)))


def _raw_topic(view: SourceView) -> str:
    """Return the raw topic of a source, which its bindings have in common."""
    (topic,) = {binding.raw_topic for binding, _ in view.bindings.values()}
    return topic


def _status(found: Row) -> FeedStatus | None:
    if found["reported_at"] is None:
        return None
    names = ("failures", "behind", "reason", "retry_at", "age_s", "behind_ms", "unread_s", "rows")
    return FeedStatus(*(found[name] for name in names))
