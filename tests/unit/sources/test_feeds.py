"""Which streams are read, and what is done about each."""

from dataclasses import replace

import pytest

from fennel_core.blueprints.spec import SourceBinding
from fennel_core.blueprints.streams import stream_of
from fennel_core.sources.controls import FeedStatus
from fennel_core.sources.feeds import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    Broken,
    FeedProgress,
    FeedReport,
    FeedState,
    Reading,
    broken,
    feeds_of,
    fresh_before,
    is_exhausted,
    messages_behind,
    news_of,
    report_of,
    scheduled_report,
    seen,
    started,
    to_start,
    to_stop,
)
from fennel_core.vocab.ids import TopicName, WorkspaceId
from fennel_core.wire.connectors import S3, JsonFormat, KafkaTopic, Login, S3Table
from tests.support.ingest_world import binding, catalog, source
from tests.support.source_world import CONNECTOR, RAW, stream_source

CATALOG = catalog(binding(), stream_source(), stream_source("Others"))
WANTED = feeds_of([CATALOG, CATALOG])
(FEED,) = WANTED.values()
OTHER = TopicName("w.raw.other.9")


def test_a_stream_of_several_datasets_and_branches_is_one_feed() -> None:
    assert list(WANTED) == [RAW]
    assert (FEED.title, FEED.partition(3).number, FEED.partition(3).raw_topic) == (
        "kafka/orders",
        3,
        RAW,
    )


def test_a_wanted_feed_is_started_once() -> None:
    assert to_start(WANTED, {}, 0.0) == [FEED]
    running = {RAW: started(FEED, None, 0.0)}
    assert to_start(WANTED, running, 1e9) == []
    assert to_stop(WANTED, running) == []
    assert to_stop({}, running) == [RAW]


def test_a_changed_connector_restarts_the_feed() -> None:
    other = replace(CONNECTOR, bootstrap_servers="other:9092")
    of = source("Users", table=KafkaTopic(other, "orders", JsonFormat()))
    wanted = feeds_of([catalog(replace(stream_source(), source=of))])
    assert to_stop(wanted, {RAW: started(FEED, None, 0.0)}) == [RAW]
    assert to_stop(wanted, {RAW: broken(FEED, None, "away", 0.0)}) == [RAW]


def test_another_limit_restarts_the_feed_that_has_it() -> None:
    limited = replace(FEED, rows_per_s=5.0)
    states: dict[TopicName, FeedState] = {RAW: started(FEED, None, 0.0)}
    assert to_stop({RAW: limited}, states) == [RAW]
    reading = started(limited, None, 0.0)
    assert to_stop({RAW: limited}, {RAW: reading}) == []
    [report] = report_of({RAW: reading})
    assert report.rows_per_s == 5.0


def test_a_broken_feed_is_tried_again_after_pauses_that_double() -> None:
    state, pauses = None, []
    for _ in range(8):
        state = broken(FEED, state, "away", 100.0)
        pauses.append(state.retry_s - 100.0)
        assert to_start(WANTED, {RAW: state}, state.retry_s - 0.1) == []
        assert to_start(WANTED, {RAW: state}, state.retry_s) == [FEED]
    assert pauses == [FIRST_PAUSE_S * 2**n for n in range(6)] + [LONGEST_PAUSE_S] * 2


def test_a_report_begins_with_what_cannot_be_read() -> None:
    other = replace(FEED, workspace=WorkspaceId("a"))
    states = {TopicName("a"): started(other, None, 0.0), RAW: broken(FEED, None, "away", 0.0)}
    assert report_of(states) == [
        FeedReport(FEED.workspace, "kafka/orders", 1, 1, None, "away"),
        FeedReport(other.workspace, "kafka/orders", 0, 0, None, None),
    ]


def test_a_batch_ends_the_failures_in_a_row_and_not_those_in_all() -> None:
    failed = broken(FEED, broken(FEED, None, "away", 0.0), "away", 1.0)
    reading = started(FEED, failed, 2.0)
    assert (reading.failures, reading.total_failures) == (2, 2)
    assert seen(reading, None, 3.0) == reading
    idle = seen(reading, None, 2.1 + LONGEST_PAUSE_S)
    assert (idle.failures, idle.total_failures, idle.behind) == (0, 2, None)
    batch = seen(reading, FeedProgress(7), 3.0)
    assert (batch.failures, batch.total_failures, batch.behind) == (0, 2, 7)
    again = broken(FEED, batch, "away", 4.0)
    assert (again.failures, again.total_failures) == (1, 3)
    assert report_of({RAW: batch})[0] == FeedReport(FEED.workspace, "kafka/orders", 0, 2, 7, None)


def test_messages_behind_are_those_of_all_partitions() -> None:
    assert messages_behind({"0": 5, "1": 7}, {"0": 9, "1": 7, "2": 3}) == 7
    assert messages_behind({"0": 9}, {"0": 5}) == 0


def test_a_feed_that_fails_soon_after_its_start_keeps_its_pauses() -> None:
    first = broken(FEED, None, "away", 0.0)
    soon = broken(FEED, started(FEED, first, 1.0), "away", 2.0)
    assert soon == Broken(FEED, "away", 2, 2, 4.0)
    later = broken(FEED, started(FEED, first, 1.0), "away", 2.0 + LONGEST_PAUSE_S)
    assert later.failures == 1


def test_a_feed_is_read_as_often_as_any_of_its_datasets_asks() -> None:
    for times, shortest in (((None, 9), 9), ((9, 5, 7), 5), ((5, None), 5), ((None, None), None)):
        bindings = [stream_source(f"D{n}", every_us=us) for n, us in enumerate(times)]
        (feed,) = feeds_of([catalog(*bindings)]).values()
        assert feed.every_us == shortest
        (feed,) = feeds_of([catalog(each) for each in bindings]).values()
        assert feed.every_us == shortest


def test_files_that_are_read_otherwise_are_another_stream() -> None:
    lake = S3Table(
        S3("lake", None, Login(None, None)), "b", "in/", "*", "csv", ",", (), False, None
    )
    tables = (
        lake,
        replace(lake, headers=("a,b",)),
        replace(lake, headers=("a", "b")),
        replace(lake, delimiter=";"),
        replace(lake, format="json"),
        replace(lake, prefix="in/*", suffix=""),
    )
    assert len({stream_of(table).name for table in tables}) == len(tables)
    assert stream_of(replace(lake, delimiter="", presorted=True)) == stream_of(lake)


def bounded(dataset: str = "Users", idleness_us: int = 10_000_000) -> SourceBinding:
    of = stream_source(dataset)
    return replace(of, source=replace(of.source, bounded=True, idleness_us=idleness_us))


def test_a_stream_is_bounded_if_all_who_read_it_say_so_and_the_longest_idleness_counts() -> None:
    def idleness(*bindings: SourceBinding) -> int | None:
        (feed,) = feeds_of([catalog(each) for each in bindings]).values()
        return feed.idleness_us

    assert idleness(bounded(), bounded("Others", 20_000_000), bounded("Third", 5)) == 20_000_000
    assert idleness(bounded(), stream_source("Others"), bounded("Third")) is None
    assert idleness(stream_source(), bounded("Others")) is None


def test_a_stream_is_exhausted_when_a_look_found_nothing_for_its_idleness() -> None:
    (feed,) = feeds_of([catalog(bounded())]).values()
    began = started(feed, None, 100.0)
    assert not is_exhausted(began, None), "it was not asked yet"

    def after(looked_s: float | None) -> Reading:
        return seen(began, FeedProgress(0, looked_s=looked_s), 1000.0)

    assert not is_exhausted(after(110.0), None)
    assert is_exhausted(after(110.1), None), "a source without rows ends, too"
    assert not is_exhausted(after(110.1), 100.2), "rows were found since"
    assert is_exhausted(after(110.3), 100.2)
    assert is_exhausted(after(110.1), 50.0), "rows of an earlier reader"
    assert not is_exhausted(after(None), None)
    endless = replace(after(1e6), feed=FEED)
    assert not is_exhausted(endless, None)


def test_what_is_caught_up() -> None:
    for nothing_left in ((0, None), (None, 0)):
        assert FeedProgress(*nothing_left).is_caught_up
    for left in ((3, None), (None, 3), (None, None)):
        assert not FeedProgress(*left).is_caught_up


def test_a_stream_that_has_ended_is_reported_as_such() -> None:
    (report,) = report_of({}, ended=[FEED])
    assert (report.ended, report.paused, report.reason) == (True, False, None)


def files(spread_us: int | None, since_us: int | None, until_us: int | None) -> SourceBinding:
    table = S3Table(
        S3("lake", None, Login(None, None)), "b", "", "%Y/*", "json", "", (), False, spread_us
    )
    return stream_source(table=table, since_us=since_us, until_us=until_us)


def test_files_are_left_out_that_no_dataset_takes_rows_of() -> None:
    def window(*bindings: SourceBinding) -> tuple[int | None, int | None]:
        (feed,) = feeds_of([catalog(each) for each in bindings]).values()
        return feed.window.since_us, feed.window.until_us

    assert window(files(5, 100, 200)) == (95, 205)
    assert window(files(5, 100, 200), files(10, 150, 300)) == (95, 310)
    assert window(files(5, 100, 200), files(5, None, 300), files(5, 7, 8)) == (None, 305)
    assert window(files(5, 100, 200), files(None, 100, 200)) == (None, None)
    assert window(stream_source(since_us=100)) == (None, None)


def test_a_stream_is_stale_while_something_is_left_unread_whatever_becomes_of_its_reader() -> None:
    def stale(state: FeedState, now_s: float) -> float | None:
        (report,) = report_of({RAW: state}, now_s=now_s, stale_after_s=300)
        return report.stale_s

    behind, read = FeedProgress(3, fresh_s=1e6), FeedProgress(0, fresh_s=150.0)
    state: FeedState = started(FEED, None, 100.0)
    assert stale(state, 400.0) is None
    assert stale(state, 401.0) == 301.0, "it has said nothing since it began"
    state = seen(state, read, 150.0)
    assert stale(state, 450.0) is None
    state = seen(seen(state, behind, 200.0), None, 210.0)
    assert stale(state, 451.0) == 301.0
    state = broken(FEED, broken(FEED, state, "away", 250.0), "away", 300.0)
    assert stale(state, 451.0) == 301.0
    state = seen(started(FEED, state, 500.0), behind, 501.0)
    assert stale(state, 501.0) == 351.0
    assert stale(seen(state, read, 502.0), 502.0) == 352.0, "it hangs, and its report is old"
    assert stale(seen(state, FeedProgress(0), 502.0), 502.0) == 352.0
    assert stale(seen(state, replace(read, fresh_s=502.0), 502.0), 502.0) is None
    assert stale(broken(FEED, None, "away", 100.0), 401.0) == 301.0


@pytest.mark.parametrize(("failures", "says"), [(0, None), (2, "rotate shop")])
def test_a_table_that_is_late_or_lacks_rows_has_not_failed_by_its_credentials(
    failures: int, says: str | None
) -> None:
    status = FeedStatus(failures, None, "it was not read to its end", None, 5.0)
    (report,) = scheduled_report({RAW: FEED}, {RAW: status}, (), remedy=lambda *_: "rotate shop")
    assert (report.reason, report.failures, report.remedy) == (status.reason, failures, says)


def test_a_stream_that_was_not_read_to_its_end_is_as_old_behind_a_restart() -> None:
    (news,) = news_of({RAW: seen(started(FEED, None, 100.0), FeedProgress(3), 150.0)}, 400.0)
    assert news.unread_s == 300.0
    status = FeedStatus(0, 3, None, None, 5.0, unread_s=305.0)
    known = fresh_before({RAW: status, OTHER: status}, {RAW}, 1000.0)
    assert known == {RAW: 695.0}
    assert fresh_before({RAW: replace(status, unread_s=None)}, {RAW}, 1000.0) == {}
    for state in (
        started(FEED, None, 1000.0, known[RAW]),
        broken(FEED, None, "away", 1000.0, known[RAW]),
    ):
        assert state.fresh_s == 695.0
        assert started(FEED, state, 1010.0, 990.0).fresh_s == 695.0, "its own state is newer"
    assert started(FEED, None, 1000.0, 1200.0).fresh_s == 1000.0, "a clock went back"
