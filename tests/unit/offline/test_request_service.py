"""Requests for training data between the API, their runs, and the deletion of their objects."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from fennel_core.connections.errors import SystemUnavailable, TopicAccessDenied
from fennel_core.connections.garbage import DeletionLimit, DeletionRefused, MemoryGarbageMarks
from fennel_core.connections.object_store import MemoryObjectStore
from fennel_core.offline import request_row
from fennel_core.offline.api_errors import (
    OfflineQueryEnded,
    OfflineQueryInvalid,
    OfflineQueryUnknown,
    OfflineQueueFull,
    OfflineResultMissing,
)
from fennel_core.offline.buckets import BucketRefused
from fennel_core.offline.errors import HistoryIncomplete
from fennel_core.offline.planned_query import PlannedQuery
from fennel_core.offline.request_body import CheckedOfflineQuery
from fennel_core.offline.request_files import request_folder, result_prefix
from fennel_core.offline.request_removal import RemovalRules, RequestRemoval
from fennel_core.offline.request_row import (
    AFTER_REFUSAL,
    MAX_STARTS,
    RUN_LEASE,
    START_LEASE,
    FailedRow,
    OfflineRequest,
    ReadEstimate,
    RequestFailure,
    RequestResult,
    RunLimits,
    RunProgress,
    StoredFile,
    run_name,
)
from fennel_core.offline.request_runs import OfflineRunLoop, RunNotStarted
from fennel_core.offline.request_service import FormRun, OfflineRequests, RequestLimits
from fennel_core.offline.request_states import RequestState
from fennel_core.offline.request_status import ResultPlaces
from fennel_core.offline.request_store import MemoryRequests
from fennel_core.offline.s3_places import PlaceKeys, PlaceRules
from fennel_core.query.errors import ViewOutdated
from fennel_core.query.view import BranchKey, ServingVersion, View
from fennel_core.vocab.ids import MAIN_BRANCH, CommitId, Micros, WorkspaceId
from tests.support.offline_requests import GOOD, view

SHOP, OTHER = WorkspaceId("shop"), WorkspaceId("other")
KEY = (SHOP, MAIN_BRANCH)
KEPT = timedelta(days=7)
LISTED = timedelta(days=30)


class Objects(MemoryObjectStore):
    async def root(self) -> str:
        return "root/"


class Serving:
    async def read_serving(
        self, key: BranchKey, known: CommitId | None
    ) -> ServingVersion | CommitId | None:
        return None


@dataclass
class Starter:
    """An orchestrator. `alive_ids`: runs that it has."""

    started: list[tuple[str, str]] = field(default_factory=list)
    refuses: bool = False
    has_runs: bool = False
    asked: list[str] = field(default_factory=list)

    async def start(self, id_: str, name: str) -> None:
        if self.refuses:
            raise RunNotStarted("full")
        self.started.append((id_, name))

    async def alive(self, name: str) -> bool:
        self.asked.append(name)
        return self.has_runs


class World:
    """Everything in memory, with a clock."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.store = MemoryRequests(lambda: self.now)
        self.objects = Objects(lambda: self.now)
        self.starter = Starter()
        self.loop = OfflineRunLoop(self.store, self.starter, RunLimits(2))
        ids = (f"q{n}" for n in itertools.count(1))
        limits = RequestLimits(3, lambda root: ResultPlaces("bucket", root, KEPT))
        self.to_read: ReadEstimate | Exception = ReadEstimate(10, 400, 2)
        self.requests = OfflineRequests(
            *(self.store, Serving(), self.objects, limits),
            *(lambda: next(ids), self.loop.wake, self.estimate),
        )
        rules = RemovalRules(KEPT, LISTED, timedelta(hours=1), DeletionLimit(1, 0))
        marks = MemoryGarbageMarks(lambda: self.now)
        self.removal = RequestRemoval(self.store, self.objects, marks, rules)

    async def submit(
        self, key: BranchKey = KEY, form: FormRun | None = None, **changes: Any
    ) -> dict[str, Any]:
        return await self.requests.submit(key, "ann", msgspec.json.encode(GOOD | changes), form)

    async def estimate(self, planned: PlannedQuery, latest: Micros | None) -> ReadEstimate:
        assert len(planned.plan.outputs) == 1
        assert latest in {1_000_000, None}, "None: of rows in files"
        if isinstance(self.to_read, Exception):
            raise self.to_read
        return self.to_read

    async def finish(self, id_: str) -> None:
        """Do what a run does."""
        row = await self.store.change(id_, request_row.claimed)
        assert row is not None
        prefix = result_prefix(row.workspace, id_, row.epoch)
        for name in ("a", "failed/a"):
            await self.objects.put(f"{prefix}/{name}", name.encode())
        await self.objects.put(f"{prefix}/columns.json", b'{"F.v":[1,null]}')
        file = StoredFile(f"{prefix}/a", f"{prefix}/failed/a", 2, 1)
        result = RequestResult(
            prefix, (file,), (FailedRow(1, "raised"),), f"{prefix}/columns.json", ("late",)
        )
        await self.store.change(id_, lambda r, now: request_row.finished(r, 1, result, now))

    async def keys(self) -> list[str]:
        return [each.key for each in await self.objects.list_objects("")]


def named(id_: str, number: int = 1) -> tuple[str, str]:
    return id_, run_name(id_, number)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(View, "of", classmethod(lambda cls, serving: view()))
    return World()


async def test_a_request_is_queued_then_done_with_its_features_and_failed_rows(
    world: World,
) -> None:
    asked = await world.submit(num_dpus=3)
    assert (asked["request_id"], asked["state"], asked["rows"]) == ("q1", "queued", 2)
    assert (asked["completion_rate"], asked["failure_rate"]) == (0.0, None)
    assert asked["output_prefix"] == "root/offline/shop/q1/result"
    [stored] = await world.keys()
    assert stored.startswith(f"{request_folder(SHOP, 'q1')}input/")
    await world.finish("q1")
    status = await world.requests.status(SHOP, "q1")
    assert (status["state"], status["failure_rate"], status["failed_rows"]) == ("done", 0.5, 1)
    assert msgspec.json.decode(msgspec.json.encode(status))["data"] == {"F.v": [1, None]}
    assert status["failures"] == [{"row": 1, "reason": "raised"}]
    assert [each.split()[0] for each in status["warnings"]] == ["`num_dpus`", "late"]
    for failed, content in ((False, b"a"), (True, b"failed/a")):
        pieces = await world.requests.file(SHOP, "q1", 0, failed)
        assert [piece async for piece in pieces] == [content]
    listed = await world.requests.newest(SHOP, 10)
    assert [each["request_id"] for each in listed["requests"]] == ["q1"]


async def test_a_request_of_another_workspace_does_not_exist(world: World) -> None:
    await world.submit()
    for call in (
        world.requests.status(OTHER, "q1"),
        world.requests.cancel(OTHER, "q1"),
        world.requests.file(OTHER, "q1", 0, failed=False),
        world.requests.status(SHOP, "\0"),
    ):
        with pytest.raises(OfflineQueryUnknown):
            await call
    assert (await world.requests.newest(OTHER, 10))["requests"] == []


async def test_a_workspace_has_a_bounded_queue(world: World) -> None:
    for _ in range(3):
        await world.submit()
    with pytest.raises(OfflineQueueFull, match="3 offline queries"):
        await world.submit()
    await world.submit((OTHER, MAIN_BRANCH))
    await world.requests.cancel(SHOP, "q1")
    await world.submit()


async def test_a_cancelled_request_is_not_started_and_leaves_nothing(world: World) -> None:
    await world.submit()
    status = await world.requests.cancel(SHOP, "q1")
    assert (status["state"], status["completion_rate"], status["failure_rate"]) == (
        "cancelled",
        1.0,
        1.0,
    )
    assert (await world.requests.cancel(SHOP, "q1"))["state"] == "cancelled"
    await world.loop.start_due()
    assert world.starter.started == []
    await world.removal.remove_due()
    assert await world.keys() == []
    with pytest.raises(OfflineResultMissing, match="is cancelled"):
        await world.requests.file(SHOP, "q1", 0, failed=False)


async def test_a_request_that_is_done_cannot_be_cancelled_and_expires(world: World) -> None:
    await world.submit()
    await world.finish("q1")
    with pytest.raises(OfflineQueryEnded, match="is done"):
        await world.requests.cancel(SHOP, "q1")
    with pytest.raises(OfflineResultMissing, match="1 files"):
        await world.requests.file(SHOP, "q1", 1, failed=False)
    await world.removal.remove_due()
    assert len(await world.keys()) == 4
    world.now += KEPT
    await world.removal.remove_due()
    assert await world.keys() == []
    status = await world.requests.status(SHOP, "q1")
    assert (status["state"], status["files"], "data" in status) == ("done", [], False)
    with pytest.raises(OfflineResultMissing, match="has expired"):
        await world.requests.file(SHOP, "q1", 0, failed=False)


async def test_runs_start_in_order_and_again_when_they_are_lost(world: World) -> None:
    for _ in range(3):
        await world.submit()
    await world.loop.start_due()
    await world.loop.start_due()
    assert world.starter.started == [named("q1"), named("q2")]
    await world.finish("q1")
    await world.loop.start_due()
    assert world.starter.started[2:] == [named("q3")]
    world.now += START_LEASE
    world.starter.has_runs = True
    await world.loop.start_due()
    assert len(world.starter.started) == 3, "the orchestrator still has the runs"
    world.starter.has_runs = False
    for _ in range(MAX_STARTS):
        world.now += START_LEASE
        await world.loop.start_due()
    again = [named("q2", 2), named("q3", 2), named("q2", 3), named("q3", 3)]
    assert world.starter.started[3:] == again
    status = await world.requests.status(SHOP, "q2")
    assert (status["state"], status["error"]["code"]) == (RequestState.FAILED, "offline-run-lost")


async def test_an_orchestrator_that_refuses_is_asked_again(world: World) -> None:
    await world.submit()
    world.starter.refuses = True
    await world.loop.start_due()
    world.starter.refuses = False
    await world.loop.start_due()
    assert world.starter.started == [], "after a pause"
    world.now += START_LEASE
    await world.loop.start_due()
    assert world.starter.started == [named("q1")]


async def test_a_refusal_that_cannot_be_stored_is_stored_as_soon_as_it_can(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.submit()

    async def refusing(id_: str, name: str) -> None:
        monkeypatch.setattr(world.store, "change", away)
        raise RunNotStarted("its database is away")

    async def away(*_: object) -> None:
        raise SystemUnavailable("Postgres is away")

    change = world.store.change
    with monkeypatch.context() as patch:
        patch.setattr(world.starter, "start", refusing)
        for _ in range(3):
            with pytest.raises(SystemUnavailable):
                await world.loop.start_due()
    monkeypatch.setattr(world.store, "change", change)
    await world.loop.start_due()
    assert world.starter.started == [], "after a pause"
    world.now += AFTER_REFUSAL
    await world.loop.start_due()
    assert world.starter.started == [named("q1")], "not after the lease of a run that began"


async def test_a_failed_request_names_its_reason_and_leaves_nothing(world: World) -> None:
    await world.submit()
    row = await world.store.change("q1", request_row.claimed)
    assert row is not None
    await world.objects.put(f"{result_prefix(SHOP, 'q1', 1)}/a", b"half")
    failure = RequestFailure("history-incomplete", "gone")
    await world.store.change("q1", lambda r, now: request_row.failed(r, 1, failure, now))
    world.now += RUN_LEASE
    await world.removal.remove_due()
    assert await world.keys() == []
    status = await world.requests.status(SHOP, "q1")
    assert status["error"] == {"code": "history-incomplete", "text": "gone"}


async def test_objects_without_a_request_are_deleted_after_a_grace_period_within_a_limit(
    world: World,
) -> None:
    await world.submit()
    for id_ in ("x1", "x2"):
        await world.objects.put(f"{request_folder(OTHER, id_)}input.parquet", b"")
    await world.removal.remove_orphans()
    world.now += timedelta(hours=2)
    with pytest.raises(DeletionRefused):
        await world.removal.remove_orphans()
    await world.objects.delete([f"{request_folder(OTHER, 'x2')}input.parquet"])
    await world.removal.remove_orphans()
    assert [key.split("/")[:3] for key in await world.keys()] == [["offline", "shop", "q1"]]


async def test_an_ended_request_is_forgotten_also_while_orphans_may_not_be_deleted(
    world: World,
) -> None:
    await world.submit()
    await world.requests.cancel(SHOP, "q1")
    for id_ in ("x1", "x2"):
        await world.objects.put(f"{request_folder(OTHER, id_)}input.parquet", b"")
    await world.removal.remove_old()
    world.now += LISTED
    with pytest.raises(DeletionRefused):
        await world.removal.remove_old()
    assert await world.store.read("q1") is not None, "its objects are still there"
    await world.removal.remove_due()
    with pytest.raises(DeletionRefused):
        await world.removal.remove_old()
    assert await world.store.read("q1") is None


async def test_objects_that_a_late_run_writes_are_deleted(world: World) -> None:
    await world.submit()
    await world.store.change("q1", request_row.claimed)
    await world.requests.cancel(SHOP, "q1")
    world.now += RUN_LEASE
    await world.removal.remove_due()
    for name in ("a", "b"):  # it was frozen, and more than the limit of unknown objects
        await world.objects.put(f"{result_prefix(SHOP, 'q1', 1)}/{name}", b"late")
    await world.removal.remove_orphans()
    assert await world.keys() == []


async def test_a_form_that_is_submitted_again_stores_one_request_with_its_own_run(
    world: World,
) -> None:
    form = FormRun("manual__1", world.now)
    stored = await world.submit(form=form)
    [key] = await world.keys()
    world.now += timedelta(seconds=3)
    assert (await world.submit(form=form, output_features=["gone"])) == stored
    assert await world.keys() == [key]
    later = await world.submit(form=FormRun("manual__1", world.now))
    assert later["request_id"] != stored["request_id"], "the first run was deleted in Airflow"
    await world.requests.cancel(SHOP, later["request_id"])
    await world.loop.start_due()
    world.now += START_LEASE
    world.starter.has_runs = True
    await world.loop.start_due()
    assert world.starter.started == [], "the form's run waits for a slot of its pool"
    assert world.starter.asked == ["manual__1"]


async def test_what_a_request_reads_is_estimated_before_it_is_stored(world: World) -> None:
    asked = await world.submit()
    assert asked["estimate"] == {"versions": 10, "bytes": 400, "tail_records": 2}
    listed = await world.requests.newest(SHOP, 1)
    assert listed["requests"][0]["estimate"] == asked["estimate"]
    for away in (SystemUnavailable("Kafka"), TopicAccessDenied("topic"), ViewOutdated("moved")):
        world.to_read = away
        asked = await world.submit()
        assert asked["estimate"] is None, "its run names what is wrong, or finds it well"
        await world.requests.cancel(SHOP, asked["request_id"])
    world.to_read = HistoryIncomplete("records were deleted before they were in history")
    with pytest.raises(OfflineQueryInvalid, match="records were deleted"):
        await world.submit()
    assert len(await world.keys()) == 4, "a request that is refused leaves nothing"


async def test_a_running_request_shows_the_rows_that_have_failed_so_far(world: World) -> None:
    await world.submit()
    await world.store.change("q1", request_row.claimed)
    progress = RunProgress(0.25, 1)
    await world.store.change("q1", lambda row, now: request_row.reported(row, 1, progress, now))
    status = await world.requests.status(SHOP, "q1")
    assert (status["state"], status["completion_rate"]) == ("running", 0.25)
    assert (status["failed_rows"], status["failure_rate"]) == (1, 0.5)


class Places:
    """Users' buckets that are always there."""

    rules = PlaceRules("own", sealable=True)

    def __init__(self) -> None:
        self.withdrawn: list[tuple[str, bytes | None]] = []
        self.refuses = False

    def withdraw(self, row: OfflineRequest, sealed: bytes | None) -> None:
        self.withdrawn.append((row.id, sealed))
        if self.refuses:
            raise BucketRefused("the keys were revoked")

    def check(self, asked: CheckedOfflineQuery, id_: str) -> None:
        assert asked.source is not None, f"`{id_}` has its rows in a bucket"

    def sealed(self, workspace: WorkspaceId, id_: str, keys: PlaceKeys) -> bytes:
        assert keys.source is not None
        assert keys.source.secret_key.get_secret_value() == "hidden"
        return f"sealed for {workspace} {id_}".encode()


async def test_keys_of_a_bucket_are_in_no_row_and_no_status(world: World) -> None:
    world.requests = replace(world.requests, places=Places())
    account = {"S3": {"creds": {"access_key": "someone", "secret_key": "hidden"}, "role_arn": None}}
    table = {"bucket": "theirs", "path_prefix": "in", "format": "parquet"}
    table |= {"db": {"name": "extract_historical_s3_input", "db": account}}
    status = await world.submit(input={"S3": {"s3_table": table, "compression": "None"}})
    row = await world.store.read(status["request_id"])
    assert row is not None
    assert (status["rows"], status["failure_rate"]) == (None, None)
    assert row.definition.source is not None
    assert await world.keys() == [row.definition.keys_key], "no rows are stored yet"
    assert await world.objects.get(row.definition.keys_key) == b"sealed for shop q1"
    assert "hidden" not in f"{msgspec.json.encode(row.definition)!r} {status} {row}"


@pytest.mark.parametrize("refuses", [False, True])
async def test_what_a_request_without_a_result_has_copied_is_deleted_with_its_keys(
    world: World, refuses: bool
) -> None:
    places = Places()
    places.refuses = refuses
    world.requests = replace(world.requests, places=places)
    world.removal = replace(world.removal, places=places)
    account = {"S3": {"creds": {"access_key": "someone", "secret_key": "hidden"}, "role_arn": None}}
    to = {"bucket": "theirs", "path_prefix": "out", "format": "parquet"}
    to |= {"db": {"name": "out", "db": account}}
    source = to | {"db": {"name": "in", "db": account}}
    asked = {"input": {"S3": {"s3_table": source, "compression": "None"}}, "s3_output": to}
    for _ in range(2):
        await world.submit(**asked)
    await world.finish("q1")
    await world.requests.cancel(SHOP, "q2")
    world.now += KEPT
    await world.removal.remove_due()
    assert places.withdrawn == [("q2", b"sealed for shop q2")], "a result is its user's"
    assert await world.keys() == [], "the keys are gone, whatever the bucket says"
