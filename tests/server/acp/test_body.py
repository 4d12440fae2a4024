"""A reader of a connection that is far behind: from the store, each byte of it read once."""

import asyncio
import re
from contextlib import nullcontext
from pathlib import Path

import pytest

from legation.clock import SystemClock
from legation.server.acp.log import MESSAGE, ConnectionSource, MessageReader
from legation.server.streaming.hub import Hub
from legation.store.log import READ_BYTES, EventLog
from legation.store.sqlite import SqliteBackend
from legation.store.stream import TAIL_BYTES
from legation.wire.events import Draft, Event

pytestmark = pytest.mark.heavy

LIMIT = 60.0  # seconds for some megabytes on a loaded machine
SIZE = 4000
COUNT = 2 * TAIL_BYTES // SIZE


class CountingBackend(SqliteBackend):
    reads = 0

    def read(self, stream: str, after: int, up_to_bytes: int) -> list[Event]:
        self.reads += 1
        return super().read(stream, after, up_to_bytes)


async def test_one_who_is_behind_gets_everything_and_nothing_is_read_twice(tmp_path: Path) -> None:
    backend = CountingBackend(tmp_path / "log.db")
    async with EventLog(backend) as log, asyncio.timeout(LIMIT):
        stream = await log.stream("acp:x")
        for _ in range(COUNT // 100):
            await stream.append([Draft(MESSAGE, b'"%b"' % (b"x" * SIZE))] * 100)
        hub, found = Hub(log, SystemClock()), list[int]()
        source = ConnectionSource(log, stream, messages=True)
        with MessageReader(hub, source, 0, None, nullcontext()) as reader:
            while not found or found[-1] < stream.head:
                found += map(int, re.findall(rb"(?m)^id: (\d+)$", await reader.next()))
            reader.leave()
        assert found == list(range(1, stream.head + 1))
        assert 0 < backend.reads <= COUNT * SIZE // READ_BYTES + 2
        hub.close()
