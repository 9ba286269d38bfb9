"""What keeps rows for less long than before, whatever shortens it."""

from __future__ import annotations

from fennel_core.blueprints.row_retention import KEYED, RowRetention
from fennel_core.blueprints.shortened_history import ShortenedHistory, loss, shortened
from fennel_core.vocab.ids import DatasetName, TopicName

DAY = 86_400_000_000
TOPIC = TopicName("w.topic.clicks.1")
OF = (DatasetName("Clicks"), DatasetName("Copy"))


def kept(days: int, because: str | None = None) -> dict[TopicName, RowRetention]:
    return {TOPIC: RowRetention(days * DAY, "at", because, OF)}


def test_rows_are_lost_where_they_are_needed_for_less_long() -> None:
    less = [ShortenedHistory(TopicName(TOPIC), OF, 3 * DAY, 2 * DAY)]
    assert shortened(kept(3), kept(2)) == less
    assert shortened(kept(2), kept(2)) == shortened(kept(2), kept(3)) == []
    for_ever = [ShortenedHistory(TOPIC, OF, None, 2 * DAY)]
    assert shortened(kept(1, KEYED), kept(2)) == for_ever
    assert shortened({}, kept(2)) == for_ever, "nothing removed rows that nothing needed"
    assert shortened(kept(3), kept(2, KEYED)) == shortened(kept(3), {}) == []


def test_the_notice_has_the_datasets_the_times_and_the_number() -> None:
    notice = loss(ShortenedHistory(TOPIC, OF, None, 2 * DAY + 1), 7, 0)
    assert (notice.code, notice.entity) == ("history-shortened", "Clicks")
    assert notice.text == (
        "rows of `Clicks`, `Copy` are needed for 3 days instead of for ever: up to 7 rows in "
        "history are older, and begin to leave now, for ever"
    )
    assert "for 1 days instead" in loss(ShortenedHistory(TOPIC, OF, None, 1), 7, 0).text
