"""When a commit has to recompute a source from the requests of its endpoint."""

from fennel_core.blueprints.compile import compile_datasets
from fennel_core.blueprints.compiler_input import DatasetInput
from fennel_core.blueprints.logical import AssetKey, AssetKind, Compiled
from fennel_core.blueprints.source_replays import all_keys, with_needed_replays
from fennel_core.ledger.readiness import jobs_with_backlog
from tests.support.compiler_inputs import schema, sourced, webhook

USERS = schema("user", "city:str")


def users(version: int = 1, endpoint: str = "e", name: str = "Users") -> DatasetInput:
    return sourced(name, USERS, version=version, source=webhook(endpoint), online=True)


def compiled(*datasets: DatasetInput) -> Compiled:
    return compile_datasets(datasets, 4)


def keys(version: Compiled) -> set[AssetKey]:
    return {b.key for b in version.blueprints}


def replays(version: Compiled) -> list[str]:
    return [job.title for job in version.jobs if "recompute" in job.title]


def test_a_first_commit_recomputes_nothing():
    assert replays(with_needed_replays(compiled(users()), ())) == []


def test_a_new_version_and_a_new_dataset_are_recomputed_from_their_endpoint():
    before = keys(with_needed_replays(compiled(users()), ()))
    bumped = with_needed_replays(compiled(users(2)), before)
    assert replays(bumped) == ["Users: recompute from hook/e"]
    other = sourced("Others", schema("", "user:str"), source=webhook("e"))
    added = with_needed_replays(compiled(users(), other), before)
    assert replays(added) == ["Others: recompute from hook/e"]


def test_a_dataset_over_a_new_endpoint_is_not_recomputed():
    before = keys(with_needed_replays(compiled(users()), ()))
    assert replays(with_needed_replays(compiled(users(2, "another")), before)) == []


def test_a_source_of_a_dataset_that_exists_takes_requests_from_now_on():
    both = compiled(users(), users(name="Others", endpoint="o"))
    before = keys(with_needed_replays(both, ()))
    (replay,) = [r.job for r in compiled(users(2, "o")).replays]
    assert replay.inputs[0] in before
    exists = before | {replay.outputs[0].topic}
    assert replays(with_needed_replays(compiled(users(2, "o")), exists)) == []


def test_a_replay_that_exists_is_kept_with_its_replaylog():
    before = keys(with_needed_replays(compiled(users()), ()))
    bumped = with_needed_replays(compiled(users(2)), before)
    again = with_needed_replays(compiled(users(2)), keys(bumped))
    assert keys(again) == keys(bumped)
    assert keys(bumped) <= set(all_keys(compiled(users(2))))


def test_reads_wait_for_a_replay_and_for_what_is_computed_from_it():
    before = keys(with_needed_replays(compiled(users()), ()))
    bumped = with_needed_replays(compiled(users(2)), before)
    required = jobs_with_backlog(bumped.jobs, keys(bumped) - before)
    assert {job.title for job in bumped.jobs if job.key in required} == {
        "Users: recompute from hook/e",
        "Users: table",
    }


def test_producers_come_before_consumers():
    before = keys(with_needed_replays(compiled(users()), ()))
    bumped = with_needed_replays(compiled(users(2)), before)
    seen: set[AssetKey] = set()
    for job in bumped.jobs:
        written = {o.topic for other in bumped.jobs for o in other.outputs}
        assert all(i in seen for i in job.inputs if i in written)
        seen |= {o.topic for o in job.outputs}
    assert {t.key.kind for t in bumped.topics} >= {AssetKind.RAW, AssetKind.REPLAYLOG}
