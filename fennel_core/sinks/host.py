"""Run the sinks of an installation: a thread for each, in the process of the streaming sources.

A sink that fails, for whatever reason, holds up itself alone: it is tried again after a pause.
Correctness needs no leader: of two processes that write one sink, each fences the other, and no
change is written twice. An idle sink waits for its consumer and asks the database for nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Collection, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar, assert_never

import structlog
from confluent_kafka import KafkaException
from prometheus_client import Gauge

from fennel_core.connections import erasures, postgres, secrets
from fennel_core.connections.errors import ConnectionsError, SystemUnavailable
from fennel_core.connections.external_delta import delta_place
from fennel_core.connections.external_http import HttpEndpoint, opened_http
from fennel_core.connections.external_kafka import opened
from fennel_core.connections.http_addresses import AllowedHosts
from fennel_core.connections.installation import installation_of
from fennel_core.connections.postgres import Pool
from fennel_core.connections.stored_connectors import required
from fennel_core.connectors import postgres as connectors
from fennel_core.history.topic_slices import TopicSlice, plan_slices
from fennel_core.redrive.kafka import KafkaLetterLog
from fennel_core.redrive.sink_replays import SinkReplays
from fennel_core.settings.model import Settings
from fennel_core.sinks.controls import SinkControls
from fennel_core.sinks.debezium import DebeziumForm
from fennel_core.sinks.deliveries import KafkaDeliveryLog, LettersOf
from fennel_core.sinks.delta import DeltaSinkLog
from fennel_core.sinks.delta_rows import DeltaForm
from fennel_core.sinks.errors import (
    SinkEndpointUnavailable,
    SinkErasuresLost,
    SinkError,
    SinkStopped,
)
from fennel_core.sinks.http import IN_FLIGHT, HttpSinkLog, HttpSinkSession
from fennel_core.sinks.kafka import KafkaPositionCopy, KafkaSinkLog
from fennel_core.sinks.letter_replays import LetterReplays
from fennel_core.sinks.positions import SinkPosition, SinkRewind
from fennel_core.sinks.postgres import PostgresSinkControls, PostgresSinkReplays
from fennel_core.sinks.reader import TopicVersions
from fennel_core.sinks.store import PositionCopy, SinkForm, SinkLog
from fennel_core.sinks.targets import SinkReport, SinkTarget, pause_s, targets_of
from fennel_core.sinks.writer import NO_ERASURES, ChangeReader, KeyErasures, SinkWriter
from fennel_core.sources.controls import FeedNews, SourceControls
from fennel_core.sources.postgres import CHANNEL, PostgresSourceControls
from fennel_core.sources.target_catalogs import TargetCatalogs
from fennel_core.telemetry import metrics
from fennel_core.vocab.ids import DatasetName, TopicName, WorkspaceId
from fennel_core.wire.connectors import HttpPath, Kafka, KafkaTopic, S3Table, SealedSecret

T = TypeVar("T")
LOOK_S: Final = 30.0
"""How often catalogs and erasures are read if no notification says that they changed."""
STOPPING_S: Final = 0.2
"""How often they are read while a sink ends, so that its successor starts soon."""
REQUEST_S: Final = 60.0
"""How long a thread waits for the database."""
STOP_S: Final = 5.0
"""How long the end of the process waits for the sinks; what they had open is aborted."""
REASON_CHARS: Final = 500
LETTER_THREADS: Final = 2
"""Threads that settle dead letters, of all sinks."""
DELTA_BATCHES: Final = 5
"""How many times larger the batches of a Delta table are: each is a file and a commit."""
MILLIS: Final = 1000
SINKS = metrics.gauge(
    "fennel_sinks", "Sinks by state: `running`, `broken` or `paused`.", ("state",)
)
EVENTS = metrics.counter(
    "fennel_sink_events", "Changes written to a sink.", ("workspace", "dataset", "sink")
)
BEHIND = metrics.gauge(
    "fennel_sink_behind_messages",
    "Messages of the dataset that were not written at the end of the last step of a sink.",
    ("workspace", "dataset", "sink"),
)
FAILURES = metrics.gauge(
    "fennel_sink_failures",
    "How often in a row a sink could not be written; 0 while it is.",
    ("workspace", "dataset", "sink"),
)
log = structlog.get_logger(__name__)


def no_time() -> None:
    """Return no time: a request that is sent again has the same bytes."""


class SinkHost:
    """Starts and stops the sinks. Use from one event loop."""

    path = "/sinks"

    def __init__(self, settings: Settings, pool: Pool) -> None:
        self._settings, self._pool = settings, pool
        key_file = settings.secrets_key_file
        self._sealer = None if key_file is None else secrets.Sealer.from_file(key_file)
        self._catalogs = TargetCatalogs(pool)
        self._controls: SourceControls = PostgresSourceControls(pool)
        self._orders: SinkControls = PostgresSinkControls(pool)
        self._rewinds: Mapping[TopicName, SinkRewind] = {}
        self._replay_orders: SinkReplays = PostgresSinkReplays(pool)
        self._replays: Mapping[TopicName, int] = {}
        self._pending: Collection[TopicName] = ()
        """The sinks with a rewind that is not carried out yet."""
        self._letter_threads = ThreadPoolExecutor(LETTER_THREADS, "sink-letters")
        self._paused: list[SinkReport] = []
        self._running: dict[TopicName, SinkThread] = {}
        self._newest: Mapping[tuple[WorkspaceId, DatasetName], int] = {}
        self._ending = False
        """A sink was asked to end and has not ended yet."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()

    def report(self) -> list[SinkReport]:
        """Return what is known of each sink, the broken ones first."""
        found = [
            self._with_orders(name, self._report_of(thread))
            for name, thread in self._running.items()
        ]
        found += self._paused
        return sorted(found, key=lambda each: (each.reason is None, each.workspace, each.sink))

    def _with_orders(self, name: TopicName, report: SinkReport) -> SinkReport:
        pending, replays = name in self._pending, self._replays.get(name, 0)
        return replace(report, rewinding=pending, replays=replays)

    def _report_of(self, thread: SinkThread) -> SinkReport:
        report = thread.report
        if report.reason is None:
            if thread.is_alive():
                return report
            return replace(report, reason="its thread has ended; it is started again")
        remedy = self._catalogs.remedy(report.workspace, thread.target.table)
        return replace(report, remedy=remedy)

    async def run(self) -> None:
        """Follow the catalogs and the erasures until cancelled."""
        self._loop = asyncio.get_running_loop()
        changed = self._changed
        waking = asyncio.create_task(self._wake(changed))
        try:
            while True:
                changed.clear()
                try:
                    await self._follow()
                except SystemUnavailable as lost:
                    log.warning("the catalogs could not be read; retrying", reason=str(lost))
                except Exception:  # last line of defence: the sinks that are written go on
                    log.exception("the catalogs could not be read; retrying")
                self._measure()
                pause_s = STOPPING_S if self._ending else LOOK_S
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), pause_s)
        finally:
            waking.cancel()

    def close(self) -> None:
        """Stop every sink; each continues from its position in the next process."""
        for thread in self._running.values():
            thread.stop()
        deadline_s = time.monotonic() + STOP_S
        for thread in self._running.values():
            thread.join(max(0.0, deadline_s - time.monotonic()))

    async def _wake(self, changed: asyncio.Event) -> None:
        """Set `changed` when a catalog or an erasure may have changed."""
        dsn = self._settings.postgres_dsn.get_secret_value()
        channels = ("catalog", erasures.CHANNEL, CHANNEL, connectors.CHANNEL)
        async for _ in postgres.listen(dsn, channels, name="fennel-sinks-wakeups"):
            changed.set()

    async def _follow(self) -> None:
        targets = targets_of(await self._catalogs.read())
        pauses = await self._orders.pauses() if targets else {}
        wanted = {
            name: each
            for name, each in targets.items()
            if (each.workspace, each.title) not in pauses
        }
        if targets:
            self._replays = await self._replay_orders.counts()
            await self._read_pending()
        self._paused = [
            self._with_orders(
                name, SinkReport(each.workspace, each.dataset, each.title, paused=True)
            )
            for name, each in targets.items()
            if name not in wanted
        ]
        if wanted:
            self._rewinds = await self._orders.rewinds()
            self._newest = await erasures.newest(self._pool)
        self._ending = False
        ending = set()
        for name, thread in list(self._running.items()):
            if wanted.get(name) == thread.target and thread.is_alive():
                continue
            thread.stop()
            if thread.is_alive():
                self._ending = True
                ending.add(thread.target.shared)
            else:
                del self._running[name]
                for gauge in (BEHIND, FAILURES):
                    _forget(gauge, thread)
        for name, target in wanted.items():
            # Two sinks that write one topic at once would mix an old content with a new one.
            if name not in self._running and target.shared not in ending:
                self._running[name] = SinkThread(self, target)
                self._running[name].start()
                log.info("sink is written", sink=target.title, workspace=target.workspace)
        if self._running:
            reports = {name: thread.report for name, thread in self._running.items()}
            await self._controls.report(
                [
                    FeedNews(name, each.failures, each.behind, each.reason, None)
                    for name, each in reports.items()
                ]
            )
            await self._controls.count(
                {name: each.events for name, each in reports.items() if each.events is not None}
            )

    async def _read_pending(self) -> None:
        """Read the rewinds that are pending, and note those that were carried out."""
        pending = await self._orders.pending()
        done = {
            name: order.number
            for name, order in pending.items()
            if name in self._running and self._running[name].rewound >= order.number
        }
        if done:
            await self._orders.carried_out(done)
        self._pending = pending.keys() - done.keys()

    def look_again(self) -> None:
        """Let the orders be read again; for threads of sinks."""
        assert self._loop is not None, "sinks start after the loop"
        self._loop.call_soon_threadsafe(self._changed.set)

    def _measure(self) -> None:
        broken = sum(each.reason is not None for each in self.report())
        SINKS.labels("broken").set(broken)
        SINKS.labels("paused").set(len(self._paused))
        SINKS.labels("running").set(len(self._running) - broken)
        for thread in self._running.values():
            FAILURES.labels(*thread.labels).set(thread.report.failures)

    def writer(self, target: SinkTarget, stopping: threading.Event) -> SinkWriter[Any]:
        """Return a writer of a sink; called in its thread. Raises `ConnectionsError`.

        `stopping`: set when the sink has to end.
        """

        form, log, copy = self._log(target, stopping)
        reader = partial(self._reader, target)
        return SinkWriter(target.title, target.schema, form, log, copy, reader)

    def _reader(
        self, target: SinkTarget, following: Mapping[int, int], only: int | None = None
    ) -> ChangeReader:
        """Return a reader of a dataset's topic, or of one partition."""

        def plan() -> Sequence[TopicSlice]:
            found = self.wait(plan_slices(self._settings, self._pool, [target.topic]))
            return [each for each in found[target.topic] if only in (None, each.partition[1])]

        larger = DELTA_BATCHES if isinstance(target.table, S3Table) else 1
        schema, settings = target.schema, self._settings
        return TopicVersions(settings, target.title, schema, plan, following, larger)

    def has_replays(self, target: SinkTarget) -> bool:
        """Return whether dead letters of a sink are to be sent again, as far as is known here."""
        return target.name in self._replays

    def replays(self, target: SinkTarget, stopping: threading.Event) -> LetterReplays:
        """Return what sends dead letters of an HTTP sink again; called in its thread."""

        def all_erasures() -> KeyErasures:
            numbered = erasures.numbered(self._pool, target.workspace, target.dataset)
            found = self.wait(numbered)
            return KeyErasures(found[-1][0] if found else 0, found)

        return LetterReplays(
            LettersOf(target.name, target.title, target.dataset),
            target.schema,
            DebeziumForm(target.source, no_time),
            KafkaLetterLog(self._settings, self._letter_threads),
            self._replay_orders,
            lambda part, first: self._reader(target, {part: first}, part),
            all_erasures,
            self.wait,
            stopping.is_set,
            time.monotonic,
        )

    def _log(
        self, target: SinkTarget, stopping: threading.Event
    ) -> tuple[SinkForm[Any], SinkLog[Any], PositionCopy | None]:
        """Return the form of what a sink writes, where to, and the copy of its position."""
        installation = self.wait(installation_of(self._pool))
        copy = KafkaPositionCopy(self._settings, target.name, target.topic)
        open_secret = partial(self._open, target.workspace)
        form: SinkForm[Any]
        match target.table:
            case KafkaTopic(db=db, topic=topic):
                kafka = opened(
                    required(Kafka, db), lambda sealed: self._open(target.workspace, sealed)
                )
                log = KafkaSinkLog(kafka, topic, installation, target.name, target.topic)
                form = DebeziumForm(target.source, lambda: int(time.time() * MILLIS))
                return form, log, copy
            case HttpPath():
                form = DebeziumForm(target.source, no_time)
                return form, self._http_log(target, target.table, installation, stopping), None
            case S3Table():
                place = delta_place(target.table, self._settings, open_secret)
                names = (installation, target.name, target.topic)
                return DeltaForm(target.schema), DeltaSinkLog(place, target.schema, *names), copy
            case unreachable:
                assert_never(unreachable)

    def _http_log(
        self, target: SinkTarget, table: HttpPath, installation: str, stopping: threading.Event
    ) -> HttpSinkLog:
        settings = self._settings
        allowed = AllowedHosts.of(settings)
        external = opened_http(
            table, target.title, lambda sealed: self._open(target.workspace, sealed)
        )
        assert target.dead_letters is not None, "earlier versions had no sinks of HTTP"
        return HttpSinkLog(
            target.title,
            f"{installation}-{target.name}",
            external.url,
            lambda: HttpEndpoint(external, allowed, connections=IN_FLIGHT),
            KafkaDeliveryLog(
                settings,
                target.name,
                target.topic,
                (
                    LettersOf(target.name, target.title, target.dataset),
                    target.dead_letters,
                    target.partitions,
                ),
                self.wait,
            ),
            limit=table.limit,
            sleep=stopping.wait,
        )

    def erasures_of(self, target: SinkTarget, known: KeyErasures, erased: int) -> KeyErasures:
        """Return the erasures of a sink's dataset; those that are `known` unless there are more.

        `erased`: the last that the sink knows of. Raises `SinkErasuresLost`.
        """
        newest = self.newest_erasure(target)
        if max(newest, erased) <= known.newest:
            return known
        found = self.wait(erasures.numbered(self._pool, target.workspace, target.dataset))
        last = found[-1][0] if found else 0
        if last < erased:
            raise SinkErasuresLost(target.title, erased, last)
        return KeyErasures(last, found)

    def newest_erasure(self, target: SinkTarget) -> int:
        """Return the number of the last erasure of a sink's dataset that is known here."""
        return self._newest.get((target.workspace, target.dataset), 0)

    def rewind_of(self, target: SinkTarget) -> SinkRewind | None:
        """Return the last rewind that was ordered for a sink, carried out or not."""
        return self._rewinds.get(target.name)

    def wait(self, work: Coroutine[None, None, T]) -> T:
        """Return what `work` returns on the event loop; for threads of sinks."""
        assert self._loop is not None, "sinks start after the loop"
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(REQUEST_S)

    def _open(self, workspace: WorkspaceId, secret: SealedSecret) -> str:
        return secrets.opened_credential(self._sealer, workspace, secret.token)


class SinkThread(threading.Thread):
    """Writes one sink until it is stopped; parks it after a failure."""

    def __init__(self, host: SinkHost, target: SinkTarget) -> None:
        super().__init__(name=f"sink {target.title}", daemon=True)
        self._host, self.target = host, target
        self._stopping = threading.Event()
        self.labels = (str(target.workspace), str(target.dataset), target.title)
        self.report = SinkReport(target.workspace, target.dataset, target.title)
        """Replaced as a whole, so other threads may read it."""
        self.rewound = 0
        """The number of the last rewind that is known to be carried out."""

    def stop(self) -> None:
        """Ask the thread to end; it does within the longest step."""
        self._stopping.set()

    def run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            writer: SinkWriter[Any] | None = None
            try:
                writer = self._host.writer(self.target, self._stopping)
                for _ in self._steps(writer):
                    failures = 0
            except SinkStopped:
                return
            except (ConnectionsError, SinkError, KafkaException) as failed:
                failures += 1
                self._park(failed, failures)
            # The last line of defence parks one sink only. Panics of libraries are BaseException.
            except BaseException as unexpected:
                log.exception("unexpected error of a sink", sink=self.target.title)
                failures += 1
                self._park(unexpected, failures)
            finally:
                if writer is not None:
                    self._close(writer)

    def _close(self, writer: SinkWriter[Any]) -> None:
        try:
            writer.close()
        except BaseException:  # last line of defence: the next session ends what is left
            log.exception("a sink could not be closed", sink=self.target.title)

    def _steps(self, writer: SinkWriter[Any]) -> Iterator[None]:
        """Write step after step until the thread is stopped."""
        labels, known = self.labels, NO_ERASURES
        while not self._stopping.is_set():
            erased = 0 if writer.position is None else writer.position.erased
            known = self._host.erasures_of(self.target, known, erased)
            rewind = self._host.rewind_of(self.target)
            step = writer.step(known, rewind)
            EVENTS.labels(*labels).inc(step.events)
            BEHIND.labels(*labels).set(step.behind)
            position = writer.position
            self.report = replace(
                self.report,
                failures=0,
                events=None if position is None else position.events,
                behind=step.behind,
                reason=None,
            )
            if position is not None and position.rewound > self.rewound:
                self.rewound = position.rewound
                self._host.look_again()
            if position is not None and self._host.has_replays(self.target):
                self._replay(writer, position)
            yield
            if not step.full:
                self._rest(known, rewind)

    def _replay(self, writer: SinkWriter[Any], position: SinkPosition) -> None:
        """Send dead letters again, as was ordered."""
        session = writer.session
        assert isinstance(session, HttpSinkSession), "only sinks of HTTP write dead letters"
        self._host.replays(self.target, self._stopping).run(session, position.next)

    def _rest(self, known: KeyErasures, rewind: SinkRewind | None) -> None:
        """Wait until the sink is written again, or there are new erasures or a new rewind."""
        until_s = time.monotonic() + self.target.rest_s
        while (left_s := until_s - time.monotonic()) > 0 and not self._stopping.is_set():
            if self._host.newest_erasure(self.target) > known.newest:
                return
            if self._host.rewind_of(self.target) != rewind:
                return
            self._stopping.wait(min(left_s, 1.0))

    def _park(self, failed: BaseException, failures: int) -> None:
        reason = " ".join(str(failed).split())[:REASON_CHARS] or type(failed).__name__
        self.report = replace(self.report, failures=failures, behind=None, reason=reason)
        _forget(BEHIND, self)
        log.error(
            "sink is broken; it is tried again",
            sink=self.target.title,
            workspace=self.target.workspace,
            dataset=self.target.dataset,
            error=type(failed).__name__,
            reason=reason,
            failures=failures,
        )
        asked_s = failed.retry_after_s if isinstance(failed, SinkEndpointUnavailable) else 0.0
        self._stopping.wait(max(pause_s(failures), asked_s))


def _forget(gauge: Gauge, thread: SinkThread) -> None:
    """Remove a gauge of a sink of which it is not known, if it was."""
    with contextlib.suppress(KeyError):
        gauge.remove(*thread.labels)
