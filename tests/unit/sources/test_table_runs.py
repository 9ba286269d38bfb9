"""When a source on a schedule is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from threading import Event
from types import SimpleNamespace
from typing import cast
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from fennel_core.blueprints.spec import SourceBinding
from fennel_core.connections.postgres import Pool
from fennel_core.definition.orchestrator import CommitOrchestrator
from fennel_core.settings.model import Settings
from fennel_core.sources.controls import MemorySourceControls, SourceEnd
from fennel_core.sources.errors import SourceError
from fennel_core.sources.overview import source_views
from fennel_core.sources.table_job import RunEnd, RunStopped, TableJob
from fennel_core.sources.table_runs import (
    FIRST_PAUSE,
    LEASE,
    LOST,
    START_LEASE,
    MemoryTableRuns,
    RunState,
    TableProgress,
    TableRun,
    claimed,
    completed,
    due,
    failed,
    gave_way,
    is_exhausted,
    next_at,
    overdue,
    reported,
    state_of,
    stopped,
)
from fennel_core.sources.table_schedule import (
    AGE,
    RunsNotStarted,
    ScheduledTables,
    TableSchedule,
    claim,
    ended_sources,
    news_of_runs,
    scheduled_feeds,
)
from fennel_core.vocab.ids import TopicName
from fennel_core.wire.connectors import (
    Login,
    MySQL,
    MySQLTable,
    PlainSecret,
    Postgres,
    PostgresTable,
)
from tests.support.ingest_world import branches, catalog
from tests.support.source_world import RAW, stream_source

NOW = datetime(2026, 1, 1, tzinfo=UTC)
EVERY = timedelta(minutes=30)
TOPIC = TopicName("w.raw.t.1")
RUN = claimed(None, "r1", EVERY, NOW)
READ = TableProgress(3, "7")


def test_a_source_without_a_run_is_due_at_once() -> None:
    assert due({TOPIC: EVERY}, {}, (), NOW, 9) == [TOPIC]
    assert due({TOPIC: EVERY}, {}, {TOPIC}, NOW, 9) == []


def test_a_run_has_time_to_start_and_less_between_reports() -> None:
    assert state_of(RUN, NOW + START_LEASE - LEASE / 60) is RunState.RUNNING
    assert state_of(RUN, NOW + START_LEASE) is RunState.LOST
    going = reported(RUN, READ, NOW)
    assert (going.rows_read, going.cursor) == (3, "7")
    assert state_of(going, NOW + LEASE) is RunState.LOST


def test_a_complete_run_is_followed_by_one_every_after_it_started() -> None:
    done = completed(RUN, READ, NOW + timedelta(minutes=10))
    assert state_of(done, NOW) is RunState.COMPLETE
    assert next_at(done, EVERY, NOW) == NOW + EVERY
    assert due({TOPIC: EVERY}, {TOPIC: done}, (), NOW + EVERY, 9) == [TOPIC]
    assert due({TOPIC: EVERY}, {TOPIC: done}, (), NOW + EVERY - LEASE, 9) == []


def test_pauses_after_failures_double_up_to_every_and_a_success_ends_them() -> None:
    row, pauses = RUN, []
    for _ in range(12):
        row = failed(row, "down", EVERY, NOW)
        assert row.retry_at is not None
        pauses.append(row.retry_at - NOW)
        row = claimed(row, "next", EVERY, NOW)
    assert pauses[:3] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert pauses[-1] == EVERY
    assert row.failures == 12
    assert completed(row, READ, NOW).failures == 0
    assert completed(row, READ, NOW).reason is None


def test_a_lost_run_counts_as_failed_and_a_stopped_one_does_not() -> None:
    again = claimed(RUN, "r2", EVERY, NOW + START_LEASE)
    assert (again.failures, again.reason, again.run) == (1, LOST, "r2")
    order = stopped(RUN, "paused", NOW)
    assert (order.failures, next_at(order, EVERY, NOW)) == (0, NOW)


def test_a_source_that_did_not_complete_a_run_for_long_is_overdue() -> None:
    assert overdue(RUN, EVERY, NOW + 3 * EVERY) is None
    assert overdue(RUN, EVERY, NOW + 4 * EVERY) == 4 * EVERY
    failing = failed(replace(RUN, completed_at=NOW + EVERY), "down", EVERY, NOW + 2 * EVERY)
    assert overdue(failing, EVERY, NOW + 4 * EVERY) is None
    assert overdue(failing, EVERY, NOW + 5 * EVERY) == 4 * EVERY


STEPS = st.tuples(st.sampled_from(["report", "complete", "fail", "look"]), st.integers(0, 4000))


@given(st.lists(STEPS))
def test_one_run_at_a_time_while_it_reports(steps: list[tuple[str, int]]) -> None:
    row: TableRun | None = None
    now = NOW
    for step, seconds in steps:
        now += timedelta(seconds=seconds)
        if due({TOPIC: EVERY}, {} if row is None else {TOPIC: row}, (), now, 9):
            assert row is None or state_of(row, now) is not RunState.RUNNING
            row = claimed(row, f"at {now}", EVERY, now)
            assert due({TOPIC: EVERY}, {TOPIC: row}, (), now, 9) == []
        if row is not None and row.lease_until is not None and now < row.lease_until:
            if step == "report":
                row = reported(row, READ, now)
            elif step == "complete":
                row = completed(row, READ, now)
            elif step == "fail":
                row = failed(row, "down", EVERY, now)


def table_source(dataset: str = "Users", **changes: object):
    connector = Postgres("pg", "db", 5432, "shop", None, Login(PlainSecret("u"), None))
    given = {"table": PostgresTable(connector, "users", None), "cursor": "id", "every_us": 10**7}
    return stream_source(dataset, **(given | changes))


class Targets:
    def __init__(self, *sources) -> None:
        self.catalogs = [catalog(*sources)]

    async def read(self):
        return self.catalogs


class Starter:
    def __init__(self) -> None:
        self.started: list[tuple[str, list[TopicName]]] = []
        self.refuses = False

    async def start(self, run, topics) -> None:
        if self.refuses:
            raise RunsNotStarted("Airflow is unreachable")
        self.started.append((run, list(topics)))


async def test_the_loop_starts_what_is_due_once_and_reports_failures() -> None:
    runs, starter = MemoryTableRuns(NOW, {RAW}), Starter()
    controls = MemorySourceControls(lambda: runs.now, {RAW})
    loop = TableSchedule(Targets(table_source()), runs, controls, starter, 9)
    await loop.look()
    await loop.look()
    ((run, topics),) = starter.started
    assert topics == [RAW]
    assert runs.rows[RAW].run == run
    runs.rows[RAW] = failed(runs.rows[RAW], "no such table", timedelta(seconds=10), NOW)
    await loop.look()
    assert (await controls.statuses())[RAW].reason == "no such table"
    await controls.pause([RAW], "ann")
    runs.now = NOW + timedelta(hours=1)
    await loop.look()
    assert len(starter.started) == 1
    await controls.resume([RAW])
    starter.refuses = True
    await loop.look()
    assert runs.rows[RAW].reason == "its run was not started: Airflow is unreachable"
    assert runs.rows[RAW].failures == 2


async def test_two_servers_claim_a_run_once() -> None:
    runs, feeds = MemoryTableRuns(NOW, {RAW}), scheduled_feeds([catalog(table_source())])
    assert await claim(runs, feeds, (), "a", 9) == [RAW]
    assert await claim(runs, feeds, (), "b", 9) == []
    assert runs.rows[RAW].run == "a"


@pytest.mark.parametrize(("hours", "late"), [(0, False), (2, True)])
def test_a_source_that_is_not_fresh_says_so_without_an_error(hours: int, late: bool) -> None:
    feeds = scheduled_feeds([catalog(table_source(every_us=10**9))])
    row = completed(RUN, READ, NOW)
    (news,) = news_of_runs(feeds, {RAW: row}, NOW + timedelta(hours=hours))
    assert (news.reason is not None) is late
    assert news.unread_s == hours * 3600
    (unread,) = news_of_runs(feeds, {RAW: RUN}, NOW)
    assert unread.unread_s is None, "no run has read it to its end"


def test_the_shortest_interval_of_a_table_counts_and_topics_are_not_scheduled() -> None:
    often = table_source("Others", every_us=10**6)
    (found,) = scheduled_feeds([catalog(table_source(), often)]).values()
    assert found.every == timedelta(seconds=1)
    assert scheduled_feeds([catalog(stream_source())]) == {}


async def test_a_server_starts_as_many_runs_as_may_run() -> None:
    unused = cast(Pool, None), cast(CommitOrchestrator, None)
    tables = ScheduledTables.of(Settings(source_runs_at_once=3), *unused)
    assert tables.loop._at_once == 3
    await tables.close()


def test_a_run_that_gave_way_is_due_behind_those_that_wait() -> None:
    row = gave_way(replace(RUN, failures=2), READ, NOW + LEASE)
    assert (state_of(row, NOW), row.failures, row.rows_read) == (RunState.PARTIAL, 0, 3)
    assert (row.completed_at, row.reason) == (None, None)
    others = [TopicName(f"w.raw.{n}.1") for n in range(3)]
    waiting = {other: completed(RUN, READ, NOW) for other in others}
    every = dict.fromkeys([TOPIC, *others], timedelta(seconds=10))
    assert due(every, {TOPIC: row, **waiting}, (), NOW + LEASE, 9) == [*others, TOPIC]


def test_a_complete_run_may_say_what_it_could_not_read() -> None:
    row = completed(RUN, READ, NOW, "2 rows have no `at`")
    assert (state_of(row, NOW), row.failures) == (RunState.COMPLETE, 0)
    assert next_at(row, EVERY, NOW) == NOW + EVERY
    (news,) = news_of_runs(scheduled_feeds([catalog(table_source())]), {RAW: row}, NOW)
    assert news.reason == "2 rows have no `at`"


def test_no_more_runs_are_claimed_than_may_run() -> None:
    topics = [TopicName(f"w.raw.{n}.1") for n in range(4)]
    every = dict.fromkeys(topics, EVERY)
    assert due(every, {}, (), NOW, 2) == topics[:2]
    running = {topic: claimed(None, "a", EVERY, NOW) for topic in topics[:2]}
    assert due(every, running, (), NOW, 2) == []
    assert due(every, running, (), NOW, 3) == topics[2:3]
    assert due({topics[3]: EVERY}, running, (), NOW, 2) == [], "a worker is a worker"
    assert due(every, running, (), NOW, 1) == []
    lost = NOW + START_LEASE
    assert due(every, running, (), lost, 3) == [*topics[2:], topics[0]], "their workers are free"


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(0, 4000)), min_size=1, max_size=8),
    st.integers(1, 3),
)
def test_every_source_has_its_turn_whatever_long_reads_there_are(
    sources: list[tuple[int, int]], at_once: int
) -> None:
    """`sources`: every so many seconds, and so many seconds of work at first; then one."""
    turn_s, step_s = 300, 10
    topics = [TopicName(f"w.raw.{n}.1") for n in range(len(sources))]
    every = {t: timedelta(seconds=each) for t, (each, _) in zip(topics, sources, strict=True)}
    left = {t: work for t, (_, work) in zip(topics, sources, strict=True)}
    rows: dict[TopicName, TableRun] = {}
    began: dict[TopicName, datetime] = {}
    seen = dict.fromkeys(topics, NOW)
    # Each of the others has a turn at most, in each of the places.
    longest = timedelta(seconds=len(sources) * (turn_s + 2 * step_s) + 60)
    for now in (NOW + timedelta(seconds=s) for s in range(0, 6000, step_s)):
        for topic, since in list(began.items()):
            spent_s = (now - since).total_seconds()
            if spent_s >= min(left[topic], turn_s):
                done = spent_s >= left[topic]
                left[topic] = 1 if done else left[topic] - turn_s
                end = completed if done else gave_way
                rows[topic] = end(rows[topic], READ, now)
                del began[topic]
            else:
                rows[topic] = reported(rows[topic], READ, now)
        for topic in due(every, rows, (), now, at_once):
            rows[topic] = claimed(rows.get(topic), f"{now}", every[topic], now)
            assert rows[topic].failures == 0, "no run is taken for lost: each has a place"
            began[topic] = now
            seen[topic] = now
        assert len(began) <= at_once
        assert all(now - at <= longest for at in seen.values())


class ReportedBetween(MemoryTableRuns):
    """A report comes between the first read and what follows it."""

    refused = 0

    async def put(self, topic: TopicName, before: TableRun | None, after: TableRun) -> bool:
        if not self.refused:
            self.rows[topic] = reported(RUN, READ, NOW)
        done = await MemoryTableRuns.put(self, topic, before, after)
        self.refused += not done
        return done


async def test_the_end_of_a_run_and_a_report_may_meet() -> None:
    runs = ReportedBetween(NOW, {RAW}, {RAW: RUN})
    (view,) = source_views(branches(main=catalog(table_source())))
    await TableJob(Settings(), view, runs, "r1")._store(lambda row, now: completed(row, READ, now))
    assert runs.refused == 1
    assert state_of(runs.rows[RAW], NOW) is RunState.COMPLETE
    with pytest.raises(RunStopped, match="another run has begun"):
        await TableJob(Settings(), view, runs, "r2")._store(lambda row, now: row)


async def test_a_run_that_was_paused_between_its_claim_and_its_begin_reads_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TableJob, "_read", lambda _: RunEnd.COMPLETE)
    runs = MemoryTableRuns(NOW, {RAW}, {RAW: RUN})
    (view,) = source_views(branches(main=catalog(table_source())))

    async def is_paused() -> bool:
        return True

    assert await TableJob(Settings(), view, runs, "r1").run(is_paused) is RunEnd.STOPPED
    assert "was paused" in (runs.rows[RAW].reason or "")


def with_password(word: str) -> SourceBinding:
    connector = Postgres("pg", "db", 5432, "shop", None, Login(PlainSecret("u"), PlainSecret(word)))
    return table_source(table=PostgresTable(connector, "users", None))


async def test_a_broken_source_is_due_when_its_connector_has_changed() -> None:
    runs, starter, targets = MemoryTableRuns(NOW, {RAW}), Starter(), Targets(with_password("a"))
    controls = MemorySourceControls(lambda: runs.now, {RAW})
    loop = TableSchedule(targets, runs, controls, starter, 9)
    await loop.look()
    runs.rows[RAW] = failed(runs.rows[RAW], "refused", timedelta(seconds=10), NOW)
    await loop.look()
    assert len(starter.started) == 1, "its pause is not over"
    targets.catalogs = [catalog(with_password("b"))]
    await loop.look()
    assert len(starter.started) == 2
    runs.rows[RAW] = completed(runs.rows[RAW], READ, NOW)
    targets.catalogs = [catalog(with_password("c"))]
    await loop.look()
    assert len(starter.started) == 2, "what works is read when it is due"


async def test_the_age_of_the_last_table_goes_with_it() -> None:
    runs, targets = MemoryTableRuns(NOW, {RAW}), Targets(with_password("a"))
    controls = MemorySourceControls(lambda: runs.now, {RAW})
    loop = TableSchedule(targets, runs, controls, Starter(), 9)

    def is_measured() -> bool:
        [found] = AGE.collect()
        return any(each.labels["source"] == "pg/users" for each in found.samples)

    await loop.look()
    assert is_measured()
    targets.catalogs = []
    await loop.look()
    assert not is_measured()


NONE = TableProgress(0, "7")
IDLE = timedelta(minutes=10)


def test_a_bounded_table_has_ended_when_a_run_found_nothing_long_after_the_last_row() -> None:
    first = completed(RUN, READ, NOW + timedelta(minutes=5))
    assert not is_exhausted(first, IDLE, NOW + 9 * IDLE), "it found rows"

    def run(minutes: int, progress: TableProgress = NONE) -> TableRun:
        begun = claimed(first, "next", EVERY, NOW + timedelta(minutes=minutes))
        assert not is_exhausted(begun, IDLE, begun.started_at), "it has not ended"
        return completed(begun, progress, begun.started_at)

    assert not is_exhausted(run(15), IDLE, NOW + 9 * IDLE)
    assert is_exhausted(run(16), IDLE, NOW + 9 * IDLE)
    assert not is_exhausted(run(16, READ), IDLE, NOW + 9 * IDLE)
    assert not is_exhausted(run(16, replace(NONE, held_by=1)), IDLE, NOW + 9 * IDLE)
    reopened = NOW + timedelta(minutes=16)
    assert not is_exhausted(run(26), IDLE, NOW + 9 * IDLE, reopened)
    assert is_exhausted(run(27), IDLE, NOW + 9 * IDLE, reopened)


def test_the_rows_of_a_run_that_gave_way_count() -> None:
    part = gave_way(RUN, READ, NOW + timedelta(minutes=5))
    rest = claimed(part, "next", EVERY, NOW + timedelta(minutes=15))
    assert not is_exhausted(completed(rest, NONE, NOW + IDLE), IDLE, NOW + 9 * IDLE)


def test_the_rows_of_a_run_that_failed_or_was_lost_count() -> None:
    first = completed(RUN, NONE, NOW)
    late, end = NOW + timedelta(minutes=9), NOW + IDLE + timedelta(minutes=1)
    going = reported(claimed(first, "next", EVERY, late), READ, late)
    for broken in (failed(going, "down", EVERY, late), stopped(going, "paused", late)):
        rest = claimed(broken, "last", EVERY, end)
        assert not is_exhausted(completed(rest, NONE, end), IDLE, NOW + 9 * IDLE)
    unseen = claimed(first, "next", EVERY, late)  # rows that it has read were not reported
    rest = claimed(unseen, "last", EVERY, late + START_LEASE)
    assert not is_exhausted(completed(rest, NONE, end), IDLE, NOW + 9 * IDLE)


async def test_a_limited_run_that_fails_reports_its_rows_and_owes_a_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(job: TableJob) -> RunEnd:
        job._progress = READ
        raise SourceError("the database went away")

    monkeypatch.setattr(TableJob, "_read", broken)
    runs = MemoryTableRuns(NOW, {RAW}, {RAW: RUN})
    (view,) = source_views(branches(main=catalog(table_source())))

    async def is_paused() -> bool:
        return False

    assert await TableJob(Settings(), view, runs, "r1", 0.01).run(is_paused) is RunEnd.FAILED
    row = runs.rows[RAW]
    assert (row.rows_read, row.last_rows_at) == (READ.rows_read, NOW)
    assert row.retry_at == NOW + timedelta(seconds=100), "a page of one row takes so long"
    runs.rows[RAW] = RUN
    assert await TableJob(Settings(), view, runs, "r1").run(is_paused) is RunEnd.FAILED
    assert runs.rows[RAW].retry_at == NOW + FIRST_PAUSE


def test_a_page_of_a_server_that_does_not_answer_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its worker waits without limit; Spark ends it with the jobs."""
    monkeypatch.setattr("fennel_core.sources.table_job.PAGE_LATE_S", 0.01)
    (view,) = source_views(branches(main=catalog(table_source())))
    job, cancelled = TableJob(Settings(), view, MemoryTableRuns(NOW, {RAW}), "r1"), Event()
    context = SimpleNamespace(cancelAllJobs=cancelled.set)
    job._spark = cast("SparkSession", SimpleNamespace(sparkContext=context))

    def page() -> None:
        with job._bounded():
            assert cancelled.wait(30)
            raise PySparkException("the job was cancelled")

    with pytest.raises(SourceError, match="see whether the server answers"):
        page()


async def test_a_table_that_is_resumed_while_its_end_is_noticed_is_read_on() -> None:
    runs = MemoryTableRuns(NOW, {RAW})
    controls = MemorySourceControls(lambda: runs.now, {RAW})
    feeds = scheduled_feeds([catalog(table_source(bounded=True, idleness_us=600_000_000))])
    hour = timedelta(hours=1)
    first = completed(claimed(None, "r1", EVERY, NOW), NONE, NOW)
    runs.now += hour
    runs.rows[RAW] = replace(first, started_at=runs.now)
    ends = controls.ends

    async def resumed_behind() -> Mapping[TopicName, SourceEnd]:
        """Return the ends as they were before a user resumes the source."""
        before = await ends()
        await controls.resume([RAW])
        return before

    with patch.object(MemorySourceControls, "ends", lambda _: resumed_behind()):
        assert await ended_sources(runs, feeds, controls) == set()
    assert await ended_sources(runs, feeds, controls) == set(), "its idleness begins again"
    runs.now += hour
    runs.rows[RAW] = replace(first, started_at=runs.now)
    assert await ended_sources(runs, feeds, controls) == {RAW}


async def test_a_table_of_mysql_ends_later_by_the_age_of_its_newest_rows() -> None:
    """Rows enter a minute after they were written: a run that finds none says nothing of later."""
    mysql = MySQLTable(MySQL("shop", "db", 3306, "shop", None, Login(None, None)), "users")
    source = table_source(bounded=True, idleness_us=30_000_000, table=mysql)
    feeds = scheduled_feeds([catalog(source)])
    first = completed(claimed(None, "r1", EVERY, NOW), NONE, NOW)
    runs = MemoryTableRuns(NOW + timedelta(minutes=5), {RAW})
    controls = MemorySourceControls(lambda: runs.now, {RAW})
    runs.rows[RAW] = replace(first, started_at=NOW + timedelta(seconds=80))
    assert await ended_sources(runs, feeds, controls) == set()
    runs.rows[RAW] = replace(first, started_at=NOW + timedelta(seconds=91))
    assert await ended_sources(runs, feeds, controls) == {RAW}


async def test_a_table_that_has_ended_is_read_again_when_it_is_resumed_or_has_no_end() -> None:
    runs, starter = MemoryTableRuns(NOW, {RAW}), Starter()
    controls = MemorySourceControls(lambda: runs.now, {RAW})
    bounded = table_source(bounded=True, idleness_us=600_000_000, every_us=60_000_000)
    targets = Targets(bounded)
    loop = TableSchedule(targets, runs, controls, starter, 9)

    async def look(minutes: int, progress: TableProgress = NONE) -> int:
        """Let the run that goes on complete, and look so many minutes later; count the runs."""
        await loop.look()
        row = runs.rows[RAW]
        if state_of(row, runs.now) is RunState.RUNNING:
            runs.rows[RAW] = completed(row, progress, runs.now)
        runs.now += timedelta(minutes=minutes)
        await loop.look()
        return len(starter.started)

    assert await look(11, READ) == 2
    assert await look(60) == 2, "it found nothing for 11 minutes"
    assert (await controls.ends())[RAW].ended_at is not None
    assert await look(60) == 2
    await controls.resume([RAW])
    assert await look(1) == 4, "its idleness counts from then"
    assert await look(10) == 5
    assert await look(1) == 5
    targets.catalogs = [catalog(table_source(every_us=60_000_000))]
    assert await look(1) == 7
    assert (await controls.ends())[RAW].ended_at is None


async def test_a_run_that_began_with_old_credentials_and_fails_is_followed_at_once() -> None:
    runs, starter, targets = MemoryTableRuns(NOW, {RAW}), Starter(), Targets(with_password("a"))
    controls = MemorySourceControls(lambda: runs.now, {RAW})
    loop = TableSchedule(targets, runs, controls, starter, 9)
    await loop.look()
    targets.catalogs = [catalog(with_password("b"))]
    await loop.look()
    assert len(starter.started) == 1, "the run goes on"
    await loop.look()
    runs.rows[RAW] = failed(runs.rows[RAW], "refused", timedelta(hours=1), NOW)
    await loop.look()
    assert len(starter.started) == 2, "it had the old ones"
    runs.rows[RAW] = failed(runs.rows[RAW], "refused", timedelta(hours=1), NOW)
    await loop.look()
    assert len(starter.started) == 2, "it had the new ones"


async def test_a_run_of_another_server_with_new_credentials_waits_after_it_failed() -> None:
    runs, starter, targets = MemoryTableRuns(NOW, {RAW}), Starter(), Targets(with_password("a"))
    controls = MemorySourceControls(lambda: runs.now, {RAW})
    loop = TableSchedule(targets, runs, controls, starter, 9)
    await loop.look()
    targets.catalogs = [catalog(with_password("b"))]
    await loop.look()
    other = replace(runs.rows[RAW], run="of another server")
    runs.rows[RAW] = failed(other, "refused", timedelta(hours=1), NOW)
    await loop.look()
    assert len(starter.started) == 1
