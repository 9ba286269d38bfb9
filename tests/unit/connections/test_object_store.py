"""Which objects of a bucket are orphans."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from fennel_core.connections.object_store import StoredObject, orphans

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def test_only_old_objects_without_a_reference_are_orphans() -> None:
    stored = [
        StoredObject("referenced", NOW - 9 * HOUR),
        StoredObject("old", NOW - 2 * HOUR),
        StoredObject("being written", NOW - HOUR / 2),
    ]
    assert orphans(stored, {"referenced"}, HOUR, NOW) == ["old"]
