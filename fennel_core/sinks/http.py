"""Sinks of HTTP: requests that are the same whenever they are sent, and what became of them.

Theory. A receiver has no transaction with the platform, so a request whose response was lost is
sent again: a change is delivered at least once. A request is a function of one message of the
dataset's topic and of its place there, and so is its idempotency key:

    <sink>-<partition>-<offset>-<number of its first event>-<digest of the body>

A receiver that remembers keys has each change once. No time is in a body. What erased the rows of a
key also changes the body, and so the key: a shorter request never passes for the longer one.

Requests of a partition are sent one after the other, because a key is in one partition, and its
changes are to arrive in order; partitions are sent side by side. The position follows in steps of
some seconds, also within a large message. A session that was silent asks first whether a later one
was opened: what a frozen process still sends afterwards is one request for each partition.

A request that is refused for good is halved until the rows are alone that are at fault: they become
dead letters, and the others go on.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from typing import Final, Protocol, assert_never

from msgspec.structs import replace

from fennel_core.connections.external_http import Accepted, NotSetUp, Outcome, Refused, TryAgain
from fennel_core.sinks.debezium import SinkRecord
from fennel_core.sinks.deliveries import DeliveryLog, DeliverySession, RefusedEvent
from fennel_core.sinks.errors import SinkEndpointUnavailable, SinkStopped
from fennel_core.sinks.positions import SinkPosition

IN_FLIGHT: Final = 4
"""Requests of one sink at once."""
ROWS: Final = 100
"""Changes of a request, unless the definition has a limit."""
REQUEST_BYTES: Final = 4 * 1024 * 1024
"""A request with more has one change."""
PAUSES_S: Final = (0.2, 0.5, 1.0, 2.0)
"""Pauses between the attempts of a request; after them the sink is broken for a while."""
LONGEST_WAIT_S: Final = 10.0
"""What a request waits for `Retry-After`; a sink that has to wait for longer is broken."""
COMMIT_EVERY_S: Final = 2.0
"""How long requests are sent before the position follows: what is sent again after a kill."""
OWNED_S: Final = 5.0
"""A session that was silent for this long asks whether it is the newest."""
DIGEST_CHARS: Final = 16


class Endpoint(Protocol):
    """Where requests go (`connections.external_http.HttpEndpoint`)."""

    def send(self, body: bytes, key: str) -> Outcome: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class SinkRequest:
    """Changes of one message, in order; `first`: the number of the first one in the message."""

    part: int
    offset: int | None
    first: int
    events: tuple[bytes, ...]

    @property
    def body(self) -> bytes:
        return b"[" + b",".join(self.events) + b"]"

    def key(self, sink: str) -> str:
        """Return the idempotency key; `sink`: its name, unique among installations."""
        digest = hashlib.sha256(self.body).hexdigest()[:DIGEST_CHARS]
        place = "erasure" if self.offset is None else f"{self.part}-{self.offset}"
        return f"{sink}-{place}-{self.first}-{digest}"

    def halves(self) -> tuple[SinkRequest, SinkRequest]:
        """Return two requests with half of the changes each."""
        half = len(self.events) // 2
        return (
            SinkRequest(self.part, self.offset, self.first, self.events[:half]),
            SinkRequest(self.part, self.offset, self.first + half, self.events[half:]),
        )


def requests_of(
    records: Iterable[SinkRecord], limit: int, begun: Mapping[int, tuple[int, int]]
) -> dict[int, list[SinkRequest]]:
    """Return the requests of records, by partition and in order.

    Records are in order of messages. `begun`: see `SinkPosition`. What follows an erasure for
    compaction (no value) is no change, and is left out.
    """
    found: dict[int, list[SinkRequest]] = {}
    changes = (each for each in records if each.value is not None)
    for (part, offset), group in groupby(changes, lambda each: (each.part, each.offset)):
        events = [each.value for each in group if each.value is not None]
        at, done = begun.get(part, (None, 0))
        first = done if at == offset else 0
        for size in _sizes(events[first:], limit):
            cut = tuple(events[first : first + size])
            found.setdefault(part, []).append(SinkRequest(part, offset, first, cut))
            first += size
    return found


def _sizes(events: Sequence[bytes], limit: int) -> Iterator[int]:
    """Yield how many events each request has."""
    count = length = 0
    for event in events:
        if count and (count == limit or length + len(event) > REQUEST_BYTES):
            yield count
            count = length = 0
        count += 1
        length += len(event) + 1
    if count:
        yield count


@dataclass(frozen=True, slots=True)
class Lane:
    """What became of a partition's requests: so many were answered, with these refusals."""

    sent: int
    refused: tuple[RefusedEvent, ...] = ()
    failed: Exception | None = None


class HttpSinkLog:
    """See `store.SinkLog`.

    `name`: of the sink, unique among installations; `origin`: the URL; `sleep`: waits for seconds,
    and returns True if the sink has to end.
    """

    def __init__(
        self,
        title: str,
        name: str,
        origin: str,
        endpoint: Callable[[], Endpoint],
        deliveries: DeliveryLog,
        *,
        limit: int | None = None,
        sleep: Callable[[float], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.title, self.name, self.origin, self.clock = title, name, origin, clock
        self.limit = limit or ROWS
        self.sleep = threading.Event().wait if sleep is None else sleep
        self._endpoint, self._deliveries = endpoint, deliveries

    def open(self, *, first: bool = True) -> HttpSinkSession:
        del first  # the endpoint is the user's
        endpoint = self._endpoint()
        try:
            return HttpSinkSession(self, endpoint, self._deliveries.open())
        except BaseException:
            endpoint.close()
            raise


class HttpSinkSession:
    """See `store.SinkSession`."""

    def __init__(self, log: HttpSinkLog, endpoint: Endpoint, delivery: DeliverySession) -> None:
        self._log, self._endpoint, self._delivery = log, endpoint, delivery
        self._threads = ThreadPoolExecutor(IN_FLIGHT, "sink-requests")
        self._owned_s = log.clock()
        self._over = False
        self.origin = log.origin

    @property
    def position(self) -> SinkPosition | None:
        return self._delivery.position

    def commit(self, batch: Sequence[SinkRecord] | None, position: SinkPosition) -> None:
        records = batch or ()
        assert not self._over, "a session that failed is over"
        self._over = True
        before = self.position or SinkPosition(
            self.origin, erased=position.erased, rewound=position.rewound
        )
        left = requests_of(records, self._log.limit, before.begun)
        if self._log.clock() - self._owned_s > OWNED_S:
            self._delivery.claim()
            self._owned_s = self._log.clock()
        # Changes of a message that is begun are counted already.
        sending = sum(len(each.events) for requests in left.values() for each in requests)
        changes = sum(each.value is not None for each in records)
        position = replace(position, events=position.events - changes + sending)
        refused: list[RefusedEvent] = []
        while left:
            until_s = self._log.clock() + COMMIT_EVERY_S
            lanes = self._send_all(left, until_s)
            refused += [each for lane in lanes.values() for each in lane.refused]
            failed = [lane.failed for lane in lanes.values() if lane.failed is not None]
            sent = {part: left[part][: lane.sent] for part, lane in lanes.items()}
            left = {part: rest for part, all_ in left.items() if (rest := all_[len(sent[part]) :])}
            if left and (moved := partly(before, sent, left)) != before:
                before = moved
                self._commit(before, refused)
                refused = []
            if failed:
                raise max(failed, key=_asked_s)
        self._commit(position, refused)
        self._over = False

    def send_again(self, change: SinkRequest) -> RefusedEvent | None:
        """Send one change that was refused, under the key that it had; return it if it is refused.

        Asks first whether a later session was opened, always: that one may have sent a later change
        of the key. Raises as `commit`, and the session is over after it, too.
        """
        assert not self._over, "a session that failed is over"
        assert len(change.events) == 1, "each change has an outcome of its own"
        self._over = True
        self._delivery.claim()
        self._owned_s = self._log.clock()
        refused = self._send(change)
        self._over = False
        return refused[0] if refused else None

    def _commit(self, position: SinkPosition, refused: Sequence[RefusedEvent]) -> None:
        self._delivery.commit(position, refused)
        self._owned_s = self._log.clock()

    def _send_all(
        self, left: Mapping[int, Sequence[SinkRequest]], until_s: float
    ) -> dict[int, Lane]:
        """Send requests of all partitions until a time, at least one each unless one fails because
        the endpoint asks to wait.
        """
        waiting = threading.Event()
        running = {
            part: self._threads.submit(self._send_lane, requests, until_s, waiting)
            for part, requests in left.items()
        }
        return {part: each.result() for part, each in running.items()}

    def _send_lane(
        self, requests: Sequence[SinkRequest], until_s: float, waiting: threading.Event
    ) -> Lane:
        """Send requests of a partition; `waiting`: set when the endpoint asks to wait."""
        refused: list[RefusedEvent] = []
        for number, request in enumerate(requests):
            if waiting.is_set() or (number and self._log.clock() >= until_s):
                return Lane(number, tuple(refused))
            try:
                refused += self._send(request)
            except Exception as failed:  # noqa: BLE001 - raised again when the others have ended
                if _asked_s(failed):
                    waiting.set()
                return Lane(number, tuple(refused), failed)
        return Lane(len(requests), tuple(refused))

    def _send(self, request: SinkRequest) -> list[RefusedEvent]:
        """Send a request until it is accepted; return the changes that were refused instead."""
        key = request.key(self._log.name)
        for pause_s in (*PAUSES_S, None):
            if self._log.sleep(0):
                raise SinkStopped("the sink ends")
            outcome = self._endpoint.send(request.body, key)
            match outcome:
                case Accepted():
                    return []
                case Refused(reason):
                    if len(request.events) > 1:
                        first, second = request.halves()
                        return [*self._send(first), *self._send(second)]
                    (event,) = request.events
                    return [
                        RefusedEvent(event, request.part, request.offset, reason, request.first)
                    ]
                case NotSetUp(reason):
                    raise SinkEndpointUnavailable(self._log.title, reason)
                case TryAgain(reason, after_s):
                    if pause_s is None or after_s > LONGEST_WAIT_S:
                        break
                    self._log.sleep(max(pause_s, after_s))
                case unreachable:
                    assert_never(unreachable)
        raise SinkEndpointUnavailable(self._log.title, reason, after_s)

    def close(self) -> None:
        self._over = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._endpoint.close()
        self._delivery.close()


def _asked_s(failed: Exception) -> float:
    """Return how long an endpoint that made a request fail asks to wait."""
    return failed.retry_after_s if isinstance(failed, SinkEndpointUnavailable) else 0.0


def partly(
    before: SinkPosition,
    sent: Mapping[int, Sequence[SinkRequest]],
    left: Mapping[int, Sequence[SinkRequest]],
) -> SinkPosition:
    """Return the position after the requests `sent`, before those that are `left`.

    An erasure has no place within: it is sent again as a whole.
    """
    following, begun = dict(before.next), dict(before.begun)
    events = before.events
    for part, requests in sent.items():
        changes = [each for each in requests if each.offset is not None]
        if not changes:
            continue
        events += sum(len(each.events) for each in changes)
        begun.pop(part, None)
        last = changes[-1]
        assert last.offset is not None, "the others are left out"
        rest = left.get(part)
        if rest is None:
            following[part] = last.offset + 1
        else:
            at = rest[0].offset
            assert at is not None, "a step has changes or erasures"
            following[part] = at
            if rest[0].first:
                begun[part] = (at, rest[0].first)
    return replace(before, next=following, events=events, begun=begun)
