"""Every request gets a response, a caller that stops waiting stops its operation, and a frozen
remote process is noticed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fennel_core.connections import frames
from fennel_core.connections.frames import Channel, RemoteError, serve
from tests.support.polling import eventually

HANG_S = 60
"""Far longer than a test may take: what waits that long hangs."""


class Slow:
    """A handler that waits until released, and records what was cancelled."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.running = 0
        self.cancelled: list[str] = []

    async def __call__(self, op: str, argument: Any) -> object:
        match op:
            case "bug":
                raise KeyError("no such field")
            case "object":
                return object()
            case "bytes":
                return bytes(argument)
            case "echo":
                return argument
            case "pieces":
                return frames.WithBytes(op, bytes(range(256)) * argument)
        self.running += 1
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled.append(op)
            raise
        finally:
            self.running -= 1
        return op


@asynccontextmanager
async def channel_to(
    folder: Path, handler: frames.Handler, silence_limit_s: float | None = None
) -> AsyncIterator[Channel]:
    server = await serve(str(folder / "s.sock"), handler)
    channel = await Channel.open(str(folder / "s.sock"), silence_limit_s)
    async with asyncio.timeout(HANG_S / 2):
        yield channel
    await channel.close()
    server.close()


@pytest.mark.parametrize(
    ("op", "argument", "code"),
    [
        ("bug", None, frames.FAILED),
        ("object", None, frames.FAILED),
        ("bytes", 2000, frames.RESULT_TOO_LARGE),
    ],
)
async def test_a_defect_and_a_result_that_is_too_large_have_a_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, op: str, argument: Any, code: str
) -> None:
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 1000)
    async with channel_to(tmp_path, Slow()) as channel:
        with pytest.raises(RemoteError) as refused:
            await channel.call(op, argument)
        assert refused.value.remote_code == code
        assert await channel.call("echo", 1) == 1, "the connection goes on"


async def test_long_bytes_come_in_pieces_between_other_responses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "PART_BYTES", 1000)
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 1100)
    async with channel_to(tmp_path, Slow()) as channel:
        first, second, other = await asyncio.gather(
            channel.call_for_bytes("pieces", 9),
            channel.call_for_bytes("pieces", 10),
            channel.call("echo", "other"),
        )
        for (result, pieces), times in ((first, 9), (second, 10)):
            assert (result, b"".join(pieces)) == ("pieces", bytes(range(256)) * times)
            assert [len(piece) for piece in pieces[:-1]] == [1000, 1000]
        assert other == "other"
        assert await channel.call_for_bytes("echo", 1) == (1, [])


async def test_a_caller_that_stops_waiting_stops_its_operation_only(tmp_path: Path) -> None:
    slow = Slow()
    async with channel_to(tmp_path, slow) as channel:
        first = asyncio.create_task(channel.call("first", None))
        second = asyncio.create_task(channel.call("second", None))
        await eventually(lambda: slow.running == 2)
        first.cancel()
        await eventually(lambda: slow.cancelled == ["first"])
        slow.release.set()
        assert await second == "second"


async def test_requests_over_the_bound_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "MAX_IN_FLIGHT", 2)
    slow = Slow()
    async with channel_to(tmp_path, slow) as channel:
        calls = [asyncio.create_task(channel.call(str(n), None)) for n in range(2)]
        await eventually(lambda: slow.running == 2)
        with pytest.raises(RemoteError, match="in flight") as refused:
            await channel.call("2", None)
        assert refused.value.remote_code == frames.OVERLOADED
        calls[0].cancel()
        await eventually(lambda: slow.cancelled == ["0"])
        slow.release.set()
        assert await channel.call("echo", 1) == 1
        assert await calls[1] == "1"


async def test_a_frozen_process_is_noticed_and_a_busy_one_is_waited_for(tmp_path: Path) -> None:
    slow = Slow()
    async with channel_to(tmp_path, slow, silence_limit_s=0.05) as channel:
        call = asyncio.create_task(channel.call("long", None))
        await eventually(lambda: channel._received >= 3)
        slow.release.set()
        assert await call == "long", "its pings were responded to"

    async def frozen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(HANG_S)  # it accepts and never responds

    server = await asyncio.start_unix_server(frozen, str(tmp_path / "f.sock"))
    channel = await Channel.open(str(tmp_path / "f.sock"), silence_limit_s=0.05)
    with pytest.raises(ConnectionError, match="no response"):
        await channel.call("any", None)
    assert channel.closed
    server.close()
