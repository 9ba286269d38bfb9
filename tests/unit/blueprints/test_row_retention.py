"""For how long the rows of each topic are needed, and why some are kept for ever."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fennel_core.blueprints.row_retention import (
    DELIVERED,
    KEYED,
    KEYS,
    MOVED,
    RETAINED,
    RETRACTED,
    STATEFUL,
    TIMES,
    UNKNOWN,
    UNSERVED,
    KeptDataset,
    KeptJob,
    RowRetention,
    longest_window_us,
    reach_us,
    row_retention,
)
from fennel_core.operators.spec import (
    AggregateSpec,
    ChangelogSpec,
    FirstLatestSpec,
    MapSpec,
    SourceReplaySpec,
    StepSpec,
    TableSpec,
    UserCodeSpec,
)
from fennel_core.vocab.ids import DatasetName
from fennel_core.wire import operators as wire
from fennel_core.wire.pycode import PyCode
from tests.support import ingest_world
from tests.support.ingest_world import KEYED as USERS
from tests.support.ingest_world import KEYLESS as CLICKS

DAY = 86_400_000_000
SECOND = 1_000_000
MAP = MapSpec((CLICKS,), ((),), CLICKS)
LATEST = FirstLatestSpec(CLICKS, ("user",), False, USERS)
REPLAY = SourceReplaySpec(DatasetName("Clicks"), ingest_world.source(), CLICKS)
WEEK = wire.Sliding(7 * DAY)


def clicks(
    history: int = 30, topic: str | None = "clicks", name: str = "Clicks", **other: object
) -> KeptDataset[str]:
    found: KeptDataset[str] = KeptDataset(
        DatasetName(name), CLICKS, topic, None, topic == "clicks", history * DAY
    )
    return replace(found, **other)  # type: ignore[arg-type]  # its fields


def counts(*windows: wire.Window, along: str | None = None) -> AggregateSpec:
    specs = tuple(
        wire.Count(f"n{n}", window, None, False, False, False) for n, window in enumerate(windows)
    )
    return AggregateSpec(CLICKS, ("user",), specs, along, True, USERS)


def job(
    name: str, step: StepSpec, reads: str | None = "clicks", writes: str | None = None
) -> KeptJob[str]:
    return KeptJob(name, step, [reads] if reads else [], [writes] if writes else [])


def kept(datasets: list[KeptDataset[str]], *jobs: KeptJob[str]) -> dict[str, int | str]:
    """Return the days and seconds, or the reason, of each topic."""
    found = row_retention(datasets, jobs)
    return {topic: each.kept_because or each.kept_us for topic, each in found.items()}


def total(history: int, name: str = "a") -> KeptDataset[str]:
    return clicks(history, None, "Totals", served_by=name)


def test_rows_of_a_keyless_dataset_are_needed_for_the_longest_history() -> None:
    (found,) = row_retention([clicks(30), clicks(90)], []).values()
    assert found == RowRetention(90 * DAY, CLICKS.timestamp, None, (DatasetName("Clicks"),))
    assert kept([clicks(30)], job("r", REPLAY, "raw", "clicks")) == {"clicks": 30 * DAY}


def test_a_history_that_is_not_known_is_no_limit() -> None:
    assert kept([clicks(30), clicks(0)]) == {"clicks": UNKNOWN}


def test_a_keyed_dataset_needs_all_but_replaced_versions_for_its_history() -> None:
    table = job("t", TableSpec(USERS))
    users = clicks(30, schema=USERS, served_by="t")
    (found,) = row_retention([users, replace(users, history_us=60 * DAY)], [table]).values()
    expected = 60 * DAY, USERS.timestamp, None, (DatasetName("Clicks"),), USERS.key_names
    assert found == RowRetention(*expected)
    assert kept([replace(users, history_us=0)], table) == {"clicks": UNKNOWN}
    found = row_retention([users], [table], {"clicks"})["clicks"]
    assert found.kept_because == DELIVERED


@pytest.mark.parametrize(
    "step",
    [
        MAP,
        UserCodeSpec("filter", PyCode("", "", "", "", "", (), ()), None, USERS, USERS),
        ChangelogSpec(USERS, "is_delete", False, CLICKS),
        LATEST,
        counts(WEEK),
    ],
)
def test_a_keyed_dataset_that_a_job_reads_keeps_all(step: StepSpec) -> None:
    """Also a stateless one: where it fails on a version, its result is that of the one before."""
    datasets = [clicks(schema=USERS, served_by="t"), clicks(30, "copy", "Copy", schema=USERS)]
    found = kept(datasets, job("t", TableSpec(USERS)), job("m", step, writes="copy"))
    assert found["clicks"] == KEYED


def test_a_keyed_dataset_that_a_stateless_job_writes_loses_replaced_versions() -> None:
    copy = clicks(30, "copy", "Copy", schema=USERS)
    assert kept([copy, clicks(30)], job("m", MAP, writes="copy"))["copy"] == 30 * DAY
    assert kept([copy, clicks(30)], job("l", LATEST, writes="copy"))["copy"] == RETRACTED


def test_datasets_with_different_keys_keep_all() -> None:
    assert kept([clicks(), clicks(schema=USERS)]) == {"clicks": KEYS}


def test_a_lookup_reaches_back_to_the_last_version_or_twice_a_window() -> None:
    assert reach_us(TableSpec(USERS)) == 0
    assert reach_us(counts(WEEK)) == 14 * DAY + 2 * SECOND
    assert reach_us(counts(wire.Forever())) is None


def test_datasets_with_different_times_keep_all() -> None:
    other = replace(CLICKS, timestamp="other")
    assert kept([clicks(), clicks(schema=other)]) == {"clicks": TIMES}


def test_an_aggregate_needs_its_history_and_its_longest_window_twice() -> None:
    both = [clicks(30), total(60)]
    step = counts(wire.Sliding(DAY), WEEK)
    expected = (60 + 14) * DAY + 2 * SECOND
    assert kept(both, job("a", step)) == {"clicks": expected}
    assert longest_window_us(step) == 7 * DAY + SECOND
    longer = [clicks(365), total(60)]
    assert kept(longer, job("a", step)) == {"clicks": 365 * DAY}


@pytest.mark.parametrize(
    "step",
    [
        counts(wire.Forever()),
        counts(WEEK, wire.ForeverHopping(DAY, 0)),
        counts(wire.Tumbling(DAY, 0)),
        counts(wire.Hopping(7 * DAY, DAY, 5)),
        counts(WEEK, along="other"),
        replace(counts(WEEK), terminal=False),
        LATEST,
    ],
)
def test_a_reader_that_needs_old_rows_keeps_all(step: StepSpec) -> None:
    assert kept([clicks(), total(60)], job("a", step, writes="t"))["clicks"] == STATEFUL


def test_an_aggregate_that_no_version_has_may_be_revived() -> None:
    assert kept([clicks()], job("a", counts(WEEK))) == {"clicks": UNSERVED}
    unknown = [clicks(), total(60), total(0)]
    assert kept(unknown, job("a", counts(WEEK))) == {"clicks": UNKNOWN}


def test_what_is_made_of_rows_by_a_stateless_job_needs_them_as_long_as_its_own() -> None:
    copy = clicks(90, "copy", "Copy")
    mapped = job("m", MAP, writes="copy")
    assert kept([clicks(30), copy], mapped) == {"clicks": 90 * DAY, "copy": 90 * DAY}
    latest = job("l", LATEST, "copy", "l")
    assert kept([clicks(30), copy], mapped, latest) == {"clicks": STATEFUL, "copy": STATEFUL}


@pytest.mark.parametrize(
    ("kind", "expected"), [("transform", MOVED), ("assign", 90 * DAY), ("filter", 90 * DAY)]
)
def test_a_transform_may_move_rows_to_other_times(kind: str, expected: int | str) -> None:
    step = UserCodeSpec(kind, PyCode("", "", "", "", "", (), ()), None, CLICKS, CLICKS)
    code, copy = job("t", step, writes="copy"), clicks(90, "copy", "Copy")
    assert kept([clicks(30), copy], code) == {"clicks": expected, "copy": 90 * DAY}


def test_a_dataset_that_may_be_revived_keeps_what_it_is_computed_from() -> None:
    assert kept([clicks(30)], job("m", MAP, writes="copy")) == {"clicks": RETAINED}


def test_the_input_of_an_aggregate_that_is_no_dataset_is_kept_by_its_readers() -> None:
    jobs = job("m", MAP, writes="shuffled"), job("a", counts(WEEK), "shuffled")
    needed = (60 + 14) * DAY + 2 * SECOND
    found = row_retention([clicks(30), total(60)], jobs)
    assert {topic: each.kept_us for topic, each in found.items()} == {
        "clicks": needed,
        "shuffled": needed,
    }
    assert found["shuffled"].datasets == ("Totals",)


def test_a_topic_that_a_sink_delivers_keeps_all_and_so_does_what_it_is_made_of() -> None:
    copy, mapped = clicks(90, "copy", "Copy"), job("m", MAP, writes="copy")
    found = row_retention([clicks(30), copy], [mapped], {"copy"})
    assert {each.kept_because for each in found.values()} == {DELIVERED}


def test_rows_of_an_unknown_writer_stay() -> None:
    found = kept([total(60)], job("a", counts(WEEK), "shuffled"))
    assert found == {"shuffled": RETRACTED}


def test_rows_that_may_be_retracted_stay() -> None:
    changes = job("c", ChangelogSpec(USERS, "is_delete", False, CLICKS), "users", "changes")
    both = [clicks(schema=USERS, topic="users"), clicks(30, "changes", "Changes")]
    assert kept(both, changes)["changes"] == RETRACTED
    assert kept([clicks(30, "changes")]) == {"changes": RETRACTED}, "an unknown job writes it"
