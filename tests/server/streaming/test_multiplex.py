"""Many streams in one body: exact positions in every id (INV-M1), and turns (INV-M2)."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.server.stream_client import LIMIT, ask, frames, get
from tests.server.stream_server import serving

from legation.clock import SystemClock
from legation.errors import InvalidParams
from legation.server.streaming.hub import KEEP_ALIVE, Hub
from legation.server.streaming.multiplex import MOST_STREAMS, WantedStream, open_streams, read_wanted
from legation.store.codec import MemoryBackend
from legation.store.log import EventLog
from legation.store.sqlite import SqliteBackend
from legation.testing.clock import FakeClock
from legation.wire.events import Draft

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[EventLog]:
    async with EventLog(SqliteBackend(tmp_path / "log.db")) as log:
        yield log


@pytest.fixture
def hub(log: EventLog) -> Hub:
    return Hub(log, SystemClock())


@pytest.fixture
async def port(log: EventLog, hub: Hub) -> AsyncIterator[int]:
    async with serving(log, hub) as port:
        yield port


async def put(log: EventLog, name: str, count: int, size: int = 1, workspace: str = "local") -> None:
    stream = await log.stream(name, workspace)
    await stream.append([Draft("x", b'{"n":"%b"}' % (b"y" * size)) for _ in range(count)])


def target(*names: str) -> str:
    """The names are encoded for the list, the list for the query."""
    return "/v1/stream?streams=" + quote(",".join(names), safe="")


class Tab:
    """A browser's tab: keeps the last id and the events of each stream, and comes again with it."""

    def __init__(self, port: int, address: str) -> None:
        self._port, self._address = port, address
        self.last_id = ""
        self.seen: dict[str, list[int]] = {}
        self.notices: list[tuple[str, Any]] = []

    async def read(self, events: int) -> None:
        """Reads that many more events and goes away; None of them: to the end of the body."""
        headers = {"last-event-id": self.last_id} if self.last_id else {}
        async with asyncio.timeout(LIMIT):
            reader, writer, status, _ = await get(self._port, self._address, headers)
            assert status == 200
            async for frame in frames(reader):
                self._take(frame)
                events -= "id" in frame
                if events == 0:
                    break
            writer.close()

    def _take(self, frame: dict[str, str]) -> None:
        if "event" in frame:
            self.notices.append((frame["event"], json.loads(frame["data"])))
        elif "id" in frame:
            self.last_id = frame["id"]
            found = json.loads(frame["data"])
            self.seen.setdefault(found["stream"], []).append(found["event"]["seq"])
            assert found.keys() == {"stream", "event"}


async def test_the_id_holds_the_position_in_every_stream_in_the_order_of_the_request(
    log: EventLog, port: int
) -> None:
    await put(log, "a", 13)
    await put(log, "b", 2)
    tab = Tab(port, target("b", "a@12"))
    await tab.read(3)
    assert tab.seen == {"b": [1, 2], "a": [13]}
    assert tab.last_id == "2.13"


async def test_a_tab_that_comes_again_after_any_event_goes_on_exactly(log: EventLog, port: int) -> None:
    for name in ("a", "b", "c"):
        await put(log, name, 5)
    tab = Tab(port, target("a", "b", "c"))
    for _ in range(15):
        await tab.read(1)
    assert tab.seen == {name: [1, 2, 3, 4, 5] for name in ("a", "b", "c")}
    assert tab.last_id == "5.5.5"


async def test_names_may_hold_whatever_the_list_uses(log: EventLog, port: int) -> None:
    odd = "a,b@1/ %ä\"'"
    await put(log, odd, 2)
    tab = Tab(port, target(quote(odd, safe="") + "@1"))
    await tab.read(1)
    assert tab.seen == {odd: [2]}


async def test_a_busy_stream_does_not_keep_the_others_waiting(log: EventLog, hub: Hub) -> None:
    await put(log, "busy", 100, size=100_000)
    await put(log, "quiet", 1)
    with await open_streams(hub, "local", "busy,quiet", None) as reader:
        found = await reader.next() + await reader.next()
    assert b'"stream":"quiet"' in found
    assert found.count(b'"stream":"busy"') < 10


async def test_one_write_holds_what_is_new_in_all_streams(log: EventLog, hub: Hub) -> None:
    names = [f"s{number}" for number in range(50)]
    for name in names:
        await put(log, name, 1)
    with await open_streams(hub, "local", ",".join(names), None) as reader:
        found = await reader.next()
    assert found.count(b"\nid: ") + found.startswith(b"id: ") == 50


async def test_a_deleted_stream_ends_while_the_others_go_on(log: EventLog, port: int) -> None:
    await put(log, "a", 1)
    await put(log, "b", 1)
    tab = Tab(port, target("a", "b"))
    await tab.read(2)
    reading = asyncio.create_task(tab.read(1))
    await (await log.stream("a")).delete()
    await put(log, "b", 1)
    await reading
    assert ("end", {"stream": "a", "reason": "deleted"}) in tab.notices
    assert tab.seen["b"] == [1, 2]
    await put(log, "b", 1)
    tab.notices.clear()
    await tab.read(1)  # the browser asks for both again, as it must
    assert tab.notices == [("end", {"stream": "a", "reason": "deleted"})]
    assert tab.seen["b"] == [1, 2, 3]
    await (await log.stream("b")).delete()
    status, _ = await ask(port, target("a", "b"), {"last-event-id": tab.last_id})
    assert status == 404


async def test_the_body_is_over_when_all_streams_are_deleted(log: EventLog, port: int) -> None:
    await put(log, "a", 1)
    tab = Tab(port, target("a"))
    reading = asyncio.create_task(tab.read(-1))
    async with asyncio.timeout(LIMIT):
        while not tab.seen:
            await asyncio.sleep(0.001)
        await (await log.stream("a")).delete()
        await reading
    assert tab.notices == [("end", {"stream": "a", "reason": "deleted"})]


async def test_shutdown_says_bye(log: EventLog, hub: Hub, port: int) -> None:
    await put(log, "a", 1)
    tab = Tab(port, target("a"))
    reading = asyncio.create_task(tab.read(-1))
    async with asyncio.timeout(LIMIT):
        while not tab.seen:
            await asyncio.sleep(0.001)
        hub.close()
        await reading
    assert tab.notices == [("bye", {"reason": "shutdown"})]


async def test_silence_is_broken_here_too() -> None:
    clock = FakeClock()
    async with EventLog(MemoryBackend()) as log:
        held = [await log.stream(name) for name in ("a", "b")]
        with await open_streams(Hub(log, clock), "local", "a,b", None) as reader:
            waiting = asyncio.create_task(reader.next())
            await asyncio.sleep(0)
            await clock.until_sleeping()
            clock.advance(KEEP_ALIVE)
            assert await waiting == b": ping\n\n"
        assert len(held) == 2


@pytest.mark.parametrize(
    ("streams", "last_id", "status"),
    [
        ("a,absent", "", 404),
        ("a,theirs", "", 404),
        ("absent", "1", 404),
        ("a@9", "", 409),
        ("a", "9", 409),
        ("a,b", "1", 400),
        ("a", "x", 400),
        ("a@x", "", 400),
        ("a@-1", "", 400),
        ("a,a@1", "", 400),
        ("", "", 400),
        (",".join(f"s{number}" for number in range(MOST_STREAMS + 1)), "", 400),
    ],
)
async def test_what_cannot_be_followed_is_a_problem(
    log: EventLog, port: int, streams: str, last_id: str, status: int
) -> None:
    await put(log, "a", 3)
    await put(log, "b", 3)
    await put(log, "theirs", 1, workspace="another")
    found, body = await ask(port, target(streams), {"last-event-id": last_id} if last_id else {})
    assert found == status
    detail = json.loads(body)["detail"]
    if status == 404:
        assert streams.split(",")[-1] in detail
    if status == 409:
        assert json.loads(body)["data"] == {"stream": "a", "head": 3}


def test_the_positions_of_a_last_event_id_win() -> None:
    assert read_wanted("a@5,b", "7.8") == [WantedStream("a", 7, "a"), WantedStream("b", 8, "b")]
    with pytest.raises(InvalidParams):
        read_wanted("a@5,b", "7.8.9")


async def test_every_stream_arrives_whole_from_the_store_and_live(log: EventLog, port: int) -> None:
    """More than fits into memory's tail or one chunk, with events coming in meanwhile."""
    names = ("a", "b", "c")
    for name in names:
        await put(log, name, 300, size=3000)
    tab = Tab(port, target(*names))
    reading = asyncio.create_task(tab.read(1200))
    for _ in range(10):
        for name in names:
            await put(log, name, 10, size=3000)
    await reading
    assert tab.seen == {name: list(range(1, 401)) for name in names}
