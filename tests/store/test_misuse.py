"""What a caller does at the wrong time, in the wrong order, or gives up on: refused or harmless, never a hang."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.store.backends import ALL, DURABLE, make_backend

from legation.errors import Conflict, InvalidParams, SessionClosed, StorageFailed
from legation.store import stream as stream_module
from legation.store.jsonl import JsonlBackend
from legation.store.log import EventLog
from legation.store.sqlite import SqliteBackend
from legation.wire.events import Draft

BOUND = 20.0  # seconds until a wait that does not end is a failure

Open = Callable[[], EventLog]


def numbered(count: int) -> list[Draft]:
    return [Draft("x", b"%d" % number) for number in range(1, count + 1)]


@pytest.fixture(params=ALL)
def open_log(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    return lambda: EventLog(make_backend(request.param, tmp_path))


@pytest.fixture(params=DURABLE)
def open_durable(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    return lambda: EventLog(make_backend(request.param, tmp_path))


class Gate:
    """Holds a backend's call, in its thread, until it is opened."""

    def __init__(self, call: Callable[..., None]) -> None:
        self._call = call
        self._opened = threading.Event()
        self.entered = threading.Event()

    def __call__(self, *args: object) -> None:
        self.entered.set()
        assert self._opened.wait(BOUND)
        self._call(*args)

    def open(self) -> None:
        self._opened.set()

    async def reached(self) -> None:
        assert await asyncio.to_thread(self.entered.wait, BOUND)


async def test_a_closed_log_refuses_everything_and_nobody_waits(open_log: Open) -> None:
    async with open_log() as log:
        stream = await log.stream("ses_a")
        await stream.append(numbered(1))
    async with asyncio.timeout(BOUND):
        with pytest.raises(Conflict, match="closed"):
            stream.append(numbered(1))
        for refused in (stream.close(), stream.delete(), stream.replace(numbered(1))):
            with pytest.raises(Conflict, match="closed"):
                await refused
        with pytest.raises(Conflict, match="closed"):
            await stream.set_meta(b"{}")
        with pytest.raises(Conflict, match="closed"):
            await log.stream("ses_b")
        with pytest.raises(Conflict, match="closed"):
            await log.streams()
    assert stream.info().head == 1


async def test_a_deleted_stream_cannot_be_closed_back_to_life(open_log: Open) -> None:
    async with open_log() as log:
        stream = await log.stream("ses_a")
        await stream.append(numbered(2))
        await stream.delete()
        await stream.delete()  # as good as once
        for refused in (stream.close(), stream.replace(numbered(1))):
            with pytest.raises(SessionClosed, match="deleted"):
                await refused
        assert stream.info().state == "deleted"


@pytest.mark.parametrize("meta", [b"", b"{", b'{"a":1}\n', b"[" * 100_000])
async def test_meta_that_would_spoil_the_state_is_refused(open_durable: Open, meta: bytes) -> None:
    async with open_durable() as log:
        stream = await log.stream("ses_a")
        with pytest.raises(InvalidParams, match="one line of JSON"):
            await stream.set_meta(meta)
        assert [info.name for info in await log.streams()] == ["ses_a"]


@pytest.mark.parametrize(
    "name", ["", "\ud800", "x" * 301, "é" * 151], ids=["empty", "half", "long", "encoded"]
)
async def test_a_name_that_some_store_could_not_hold_is_refused(open_log: Open, name: str) -> None:
    async with open_log() as log:
        with pytest.raises(InvalidParams, match="cannot name a stream"):
            await log.stream(name)


@pytest.mark.parametrize("name", ["x" * 201, "é" * 34])
async def test_a_name_that_is_a_files_is_shorter(tmp_path: Path, name: str) -> None:
    async with EventLog(JsonlBackend(tmp_path)) as log:
        with pytest.raises(InvalidParams, match="cannot name a stream"):
            await log.stream(name)
    async with EventLog(SqliteBackend(tmp_path / "events.db")) as log:
        await (await log.stream(name)).append(numbered(1))
    async with EventLog(SqliteBackend(tmp_path / "events.db")) as log:
        assert [info.name for info in await log.streams()] == [name]


async def test_a_reader_left_behind_by_the_end_of_the_log_is_told(
    open_durable: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ended quietly, it would take a part for the whole."""
    monkeypatch.setattr(stream_module, "TAIL_EVENTS", 10)
    async with open_durable() as log:
        stream = await log.stream("ses_a")
        for _ in range(10):
            await stream.append(numbered(20))
        behind = aiter(stream.subscribe())
    with pytest.raises(Conflict, match="after 0"):
        await anext(behind)


async def test_closing_that_is_given_up_still_saves_and_frees_the_store(open_durable: Open) -> None:
    log = open_durable()
    await log.__aenter__()
    stream = await log.stream("ses_a")
    gate = log._backend.commit = Gate(log._backend.commit)  # type: ignore[method-assign, assignment]
    stream.append(numbered(5))
    closing = asyncio.create_task(log.__aexit__(None, None, None))
    await gate.reached()
    closing.cancel()
    gate.open()
    with pytest.raises(asyncio.CancelledError):
        await closing
    async with open_durable() as again:
        assert (await again.stream("ses_a")).info().head == 5


async def test_opening_that_is_given_up_frees_the_store(open_durable: Open) -> None:
    log = open_durable()
    gate = log._backend.open = Gate(log._backend.open)  # type: ignore[method-assign, assignment]
    opening = asyncio.create_task(log.__aenter__())
    await gate.reached()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    gate.open()
    async with open_durable() as again:
        assert await again.streams() == []


async def test_a_receipt_or_a_change_that_is_given_up_happens_all_the_same(open_durable: Open) -> None:
    async with open_durable() as log:
        stream = await log.stream("ses_a")
        gate = log._backend.commit = Gate(log._backend.commit)  # type: ignore[method-assign, assignment]
        waiting = [
            asyncio.create_task(stream.durable(stream.append(numbered(3)).last_seq)),
            asyncio.create_task(stream.replace(numbered(2))),
        ]
        await gate.reached()
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting, timeout=BOUND)
        with pytest.raises(Conflict, match="being changed"):
            stream.append(numbered(1))
        gate.open()
        async with asyncio.timeout(BOUND):
            while stream.info().first_seq != 4:
                await stream.news.wait()
            await stream.append(numbered(1))
        assert (stream.info().first_seq, stream.info().head) == (4, 6)


async def test_a_folder_that_cannot_be_read_is_a_storage_failure(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "ses_a.jsonl").mkdir()  # not even root can read it as a file
    for _ in range(2):  # the second time it must not be its own lock that is in the way
        with pytest.raises(StorageFailed, match=r"ses_a\.jsonl"):
            async with EventLog(make_backend("jsonl", tmp_path)):
                pass


@pytest.mark.parametrize("kind", DURABLE)
async def test_a_place_that_cannot_be_is_a_storage_failure(kind: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageFailed, match="cannot open"):
        async with EventLog(make_backend(kind, tmp_path / "file")):
            pass


async def test_a_store_that_is_damaged_while_open_fails_its_readers_and_not_otherwise(
    open_durable: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(stream_module, "TAIL_EVENTS", 10)
    async with open_durable() as log:
        stream = await log.stream("ses_a")
        for _ in range(10):
            await stream.append(numbered(20))
        spoil(tmp_path)
        with pytest.raises(StorageFailed, match="cannot read"):
            async with asyncio.timeout(BOUND):
                await anext(aiter(stream.subscribe()))


def spoil(folder: Path) -> None:
    path = folder / "log" / "ses_a.jsonl"
    if path.exists():
        path.unlink()
        path.mkdir()
    else:
        import sqlite3

        with sqlite3.connect(folder / "log.db", isolation_level=None) as connection:
            connection.execute("drop table page")
        connection.close()
