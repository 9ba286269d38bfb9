"""Views: kept, read again, and shared."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from fennel_core.connections.api_errors import DatabaseUnavailable
from fennel_core.plans.absent_keys import NULL
from fennel_core.query.errors import QueryRejected, UnknownBranch
from fennel_core.query.notifications import branch_key
from fennel_core.query.view import BranchKey, ServingVersion, View, Views
from fennel_core.query.view_refresh import ViewRefresher
from fennel_core.vocab.dtypes import Int
from fennel_core.vocab.ids import CommitId
from fennel_core.wire import entities as wire
from tests.support.featuresets import USERS, extractor, request
from tests.support.polling import eventually
from tests.support.query_world import FakePlatform, branch, table_view

MAIN = branch("main")
ALIAS = [extractor("A.y", wire.Alias(None), "A.x")]


def platform(commit: str = "c1") -> FakePlatform:
    made = FakePlatform()
    made.serve(
        request({"A.x": Int(), "A.y": Int()}, ALIAS, [USERS]), [table_view(USERS)], commit=commit
    )
    return made


async def test_a_program_is_made_once() -> None:
    view = await Views(platform()).get(MAIN)
    assert view.program((("A.x",), ("A.y",))) is view.program((("A.x",), ("A.y",)))
    assert view.tables[USERS.name].absent == (NULL, NULL)


async def test_a_refused_question_is_not_remembered() -> None:
    view = await Views(platform()).get(MAIN)
    for _ in range(2):
        with pytest.raises(QueryRejected):
            view.program(((), ("A.y",)))


async def test_a_reload_of_the_same_commit_keeps_the_view_and_its_programs() -> None:
    views = Views(platform())
    assert await views.get(MAIN) is await views.reload(MAIN)


async def test_a_branch_without_commit_has_an_empty_view() -> None:
    source = FakePlatform()
    source.branches["main"] = None
    view = await Views(source).get(MAIN)
    assert (view.commit, view.catalog, dict(view.tables)) == (None, None, {})
    assert View.of(None).commit is None


async def test_an_unknown_branch_is_refused_and_found_once_it_is_there() -> None:
    source = platform()
    views = Views(source)
    with pytest.raises(UnknownBranch, match="branch `dev` does not exist"):
        await views.get(branch("dev"))
    source.branches["dev"] = source.branches["main"]
    assert (await views.get(branch("dev"))).commit == "c1"


async def test_the_branch_that_was_used_least_recently_is_evicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fennel_core.query.view.VIEWS_KEPT", 2)
    source = platform()
    for name in ("dev", "test"):
        source.branches[name] = source.branches["main"]
    views = Views(source)
    for key in (MAIN, branch("dev"), MAIN, branch("test")):
        await views.get(key)
    assert set(views.known()) == {MAIN, branch("test")}


class Slow(FakePlatform):
    """Responds when the test allows it; records how many reads ran at once."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    async def read_serving(
        self, key: BranchKey, known: CommitId | None
    ) -> ServingVersion | CommitId | None:
        answer = await super().read_serving(key, known)
        await self.gate.wait()
        return answer


async def test_a_reload_never_joins_a_reading_that_began_before_it() -> None:
    source = Slow()
    source.branches = dict(platform("c1").branches)
    views = Views(source)
    first = asyncio.create_task(views.get(MAIN))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    source.branches = dict(platform("c2").branches)
    reloads = [asyncio.create_task(views.reload(MAIN)) for _ in range(5)]
    await asyncio.sleep(0)
    source.gate.set()
    assert (await first).commit == "c1"
    assert {(await reload).commit for reload in reloads} == {"c2"}
    assert source.serving_reads == 2


async def test_only_cached_branches_are_refreshed() -> None:
    source = platform()
    views = Views(source)
    await views.refresh(MAIN)
    assert source.serving_reads == 0
    await views.get(MAIN)
    await views.refresh(MAIN)
    assert source.serving_reads == 2


async def test_a_deleted_branch_is_forgotten_and_the_others_are_still_refreshed() -> None:
    source = platform()
    source.branches["dev"] = source.branches["main"]
    views = Views(source)
    await asyncio.gather(views.get(MAIN), views.get(branch("dev")))
    del source.branches["dev"]
    source.branches |= platform("c2").branches
    refresher = ViewRefresher(views)
    running = asyncio.create_task(refresher.run())
    refresher.request_all()
    await eventually(lambda: refresher.oldest_s() == 0)
    running.cancel()
    assert {key[1]: view.commit for key, view in views.known().items()} == {"main": "c2"}


async def test_a_failed_reload_is_repeated_until_it_succeeds_and_stops_no_other_branch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fennel_core.query.view_refresh.FIRST_PAUSE_S", 0.01)
    source = platform()
    source.branches["dev"] = source.branches["main"]
    views = Views(source)
    await asyncio.gather(views.get(MAIN), views.get(branch("dev")))
    source.branches |= platform("c2").branches
    source.branches["dev"] = source.branches["main"]
    read = source.read_serving

    async def failing(key: BranchKey, known: CommitId | None) -> ServingVersion | CommitId | None:
        if key == MAIN:
            source.serving_reads += 1
            raise DatabaseUnavailable("no connection became free")
        return await read(key, known)

    monkeypatch.setattr(source, "read_serving", failing)
    refresher = ViewRefresher(views)
    running = asyncio.create_task(refresher.run())
    refresher.request(MAIN)
    before = source.serving_reads
    await eventually(lambda: source.serving_reads >= before + 2)
    refresher.request(branch("dev"))
    await eventually(lambda: views.known()[branch("dev")].commit == "c2")
    assert views.known()[MAIN].commit == "c1", "the old view stays in use"
    assert refresher.oldest_s() > 0
    monkeypatch.setattr(source, "read_serving", read)
    await eventually(lambda: views.known()[MAIN].commit == "c2")
    await eventually(lambda: refresher.oldest_s() == 0)
    running.cancel()


@pytest.mark.parametrize(
    ("payload", "key"), [("w/main", ("w", "main")), ("w/feature/x", ("w", "feature/x"))]
)
def test_a_notification_names_its_branch(payload: str, key: Sequence[str]) -> None:
    assert branch_key(payload) == tuple(key)
