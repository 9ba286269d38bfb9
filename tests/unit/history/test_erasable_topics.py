"""Which topics lose rows of erased keys, and which keep them."""

from __future__ import annotations

from dataclasses import replace

from fennel_core.blueprints.spec import Catalog, DatasetView, Job, Output
from fennel_core.history.erasable_topics import (
    OTHER_KEYS,
    REQUESTS,
    RETRACTED,
    SHARED,
    erasable_topics,
)
from fennel_core.operators.spec import (
    AggregateSpec,
    ChangelogSpec,
    MapSpec,
    SourceReplaySpec,
    StepSpec,
)
from fennel_core.vocab.dtypes import Field, Str
from fennel_core.vocab.ids import DatasetName, JobId, TopicName
from tests.support import ingest_world
from tests.support.ingest_world import KEYED, KEYLESS, WORKSPACE

SOURCE, SHUFFLED, DERIVED = (TopicName(f"w.topic.{name}.1") for name in ("s", "shuffled", "d"))
MAP = MapSpec((KEYED,), ((),), KEYED)
CHANGES = ChangelogSpec(KEYED, "is_delete", False, KEYLESS)
AGGREGATE = AggregateSpec(KEYLESS, ("user",), (), None, True, KEYED)
REPLAY = SourceReplaySpec(DatasetName("Users"), ingest_world.source(), KEYED)


def view(name: str, topic: TopicName | None, served_by: str | None = None) -> DatasetView:
    job = None if served_by is None else JobId(served_by)
    return DatasetView(
        DatasetName(name), 1, KEYED, topic, job, True, True, ("user",), topic == SOURCE
    )


def catalog(*views: DatasetView) -> Catalog:
    return replace(ingest_world.catalog(), datasets=views)


def job(name: str, step: StepSpec, inputs: list[TopicName], output: TopicName | None = None) -> Job:
    outputs = () if output is None else (Output(output, ()),)
    unused = TopicName("unused")
    return Job(JobId(name), WORKSPACE, tuple(inputs), outputs, step, unused, unused, 1, name)


def kept(catalogs: list[Catalog], *jobs: Job) -> dict[tuple[str, str], str | None]:
    return {
        (each.topic, each.dataset): each.kept_because for each in erasable_topics(catalogs, jobs)
    }


def test_rows_that_ingest_and_stateless_jobs_write_are_removed() -> None:
    both = catalog(view("Users", SOURCE), view("Copy", DERIVED))
    mapped = job("m", MAP, [SOURCE], DERIVED)
    replay = job("r", REPLAY, [TopicName("w.raw.e.1")], SOURCE)
    expected = {(SOURCE, "Users"): None, (DERIVED, "Copy"): None}
    assert kept([both], mapped) == kept([both, both], mapped, replay) == expected


def test_rows_that_may_be_retracted_are_kept() -> None:
    both = catalog(view("Users", SOURCE), view("Changes", DERIVED))
    changes = job("c", CHANGES, [SOURCE], SHUFFLED)
    expected = {(SOURCE, "Users"): None, (DERIVED, "Changes"): RETRACTED}
    assert kept([both], job("c", CHANGES, [SOURCE], DERIVED)) == expected
    assert kept([both], changes, job("m", MAP, [SHUFFLED], DERIVED)) == expected
    two = job("m", MAP, [SOURCE], DERIVED), job("c", CHANGES, [SOURCE], DERIVED)
    assert kept([both], *two) == expected
    assert kept([both]) == expected, "a job that is not known wrote it"


def test_a_topic_of_several_datasets_is_kept() -> None:
    found = kept([catalog(view("Users", SOURCE)), catalog(view("Others", SOURCE))])
    assert found == {(SOURCE, "Users"): SHARED, (SOURCE, "Others"): SHARED}


def test_the_input_of_a_terminal_aggregate_is_its_own_if_nothing_else_reads_it() -> None:
    both = catalog(view("Users", SOURCE), view("Totals", None, "a"))
    mapped, total = job("m", MAP, [SOURCE], SHUFFLED), job("a", AGGREGATE, [SHUFFLED])
    users = {(SOURCE, "Users"): None}
    assert kept([both], mapped, total) == users | {(SHUFFLED, "Totals"): None}
    assert kept([both], job("a", AGGREGATE, [SOURCE])) == users, "it is the topic of Users"
    for other in (job("b", AGGREGATE, [SHUFFLED]), job("b", CHANGES, [SHUFFLED], DERIVED)):
        assert kept([both], mapped, total, other) == users | {(SHUFFLED, "Totals"): SHARED}


def test_rows_that_reads_of_a_version_with_another_key_show_are_kept() -> None:
    two = replace(KEYED, keys=(*KEYED.keys, Field("shop", Str())))
    both = replace(view("Users", SOURCE), schema=two)
    for catalogs in ([catalog(both)], [catalog(both), catalog(view("Users", SOURCE))]):
        (topic,) = erasable_topics(catalogs, [])
        one = topic.with_erasures_by([("user",)])
        assert (topic.kept_because, one.kept_because) == (None, None), "each key has the column"
        for others in ([("amount",)], [("user",), ("user", "amount")]):
            assert topic.with_erasures_by(others).kept_because == OTHER_KEYS
        with_shop = topic.with_erasures_by([("shop", "user")])
        assert with_shop.kept_because == (None if len(catalogs) == 1 else OTHER_KEYS)


def test_two_datasets_that_one_job_serves_share_its_input() -> None:
    both = catalog(view("Totals", None, "a"), view("Sums", None, "a"))
    found = kept([both], job("m", MAP, [SOURCE], SHUFFLED), job("a", AGGREGATE, [SHUFFLED]))
    assert found == {(SHUFFLED, "Sums"): SHARED, (SHUFFLED, "Totals"): SHARED}


def test_requests_are_kept_as_they_were_sent() -> None:
    source = ingest_world.binding()
    found = kept([ingest_world.catalog(source)])
    assert found == {(source.raw_topic, "Users"): REQUESTS}
