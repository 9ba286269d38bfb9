"""The export sends every event in order and sends again what was not acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio

from fennel_core.connections.audit_events import Action, AuditEvent, audited
from fennel_core.connections.errors import SystemUnavailable
from fennel_core.connections.postgres import Pool, pool
from fennel_core.definition import audit_export
from fennel_core.definition.audit_export import export_once


class Sink:
    def __init__(self) -> None:
        self.sent: list[int] = []
        self.fails = False

    def send(self, events: Sequence[AuditEvent]) -> None:
        self.sent += [event.id for event in events]
        if self.fails:
            raise SystemUnavailable("no acknowledgement")


@pytest_asyncio.fixture
async def opened(database: str) -> AsyncIterator[Pool]:
    async with pool(database, name="test", size=4) as made:
        for number in range(5):
            async with audited(made, "a", Action.COMMIT, f"branch {number}", None):
                pass
        yield made


async def test_events_are_sent_in_order_and_once(
    opened: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_export, "BATCH_ROWS", 4)
    sink = Sink()
    assert [await export_once(opened, sink) for _ in range(4)] == [6, 2, 0, 0]
    assert sink.sent == sorted(set(sink.sent))
    assert len(sink.sent) == 10


async def test_events_that_were_not_acknowledged_are_sent_again(opened: Pool) -> None:
    sink = Sink()
    sink.fails = True
    with pytest.raises(SystemUnavailable):
        await export_once(opened, sink)
    sink.fails, first = False, list(sink.sent)
    assert await export_once(opened, sink) == 0
    assert sink.sent == first + first


async def test_one_process_exports_at_a_time(opened: Pool) -> None:
    sinks = [Sink(), Sink()]
    await asyncio.gather(*(export_once(opened, sink) for sink in sinks))
    assert len(sinks[0].sent + sinks[1].sent) == 10
