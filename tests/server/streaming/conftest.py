from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.server.streaming.events_server import (
    SESSION,
    Server,
    serving,
)

from legation.store import stream as stream_module
from legation.store.log import EventLog
from legation.store.sqlite import SqliteBackend
from legation.store.stream import Stream


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[EventLog]:
    async with EventLog(SqliteBackend(tmp_path / "log.db")) as log:
        yield log


@pytest.fixture
async def stream(log: EventLog) -> Stream:
    return await log.stream(SESSION)


@pytest.fixture
async def server(log: EventLog, stream: Stream) -> AsyncIterator[Server]:
    async with serving(log) as server:
        yield server


@pytest.fixture
def short_tails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little is kept in memory, so that what is read comes from the store."""
    monkeypatch.setattr(stream_module, "TAIL_EVENTS", 8)
