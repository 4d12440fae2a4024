"""The readers of SQLite: a read waits for no other, sees what was acknowledged, and leaves nothing behind."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from legation.errors import Conflict, NotFound, StorageFailed
from legation.store.database.sqlite import READERS, SqliteDatabase
from legation.store.database.transaction import Rows, Transaction, parse

LIMIT = 60.0  # seconds: of a thread on a busy machine
SQL = {
    query.name: query
    for query in parse(
        """
-- name: put
insert into bucket (workspace_id, name, tokens, updated_at) values ('local', :name, 1, 0);
-- name: names
select name from bucket order by name;
-- name: misspelt
select nothing from nowhere;
"""
    )
}


class Held:
    """A read that is under way until it is let go."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._begun, self._go = threading.Event(), threading.Event()
        self.task = asyncio.create_task(database.read(self._work))

    def _work(self) -> Transaction[Rows]:
        yield SQL["names"]()
        self._begun.set()
        assert self._go.wait(LIMIT)
        return (yield SQL["names"]())

    async def begun(self) -> None:
        assert await asyncio.to_thread(self._begun.wait, LIMIT)

    async def let_go(self) -> Rows:
        self._go.set()
        return await asyncio.wait_for(self.task, LIMIT)


def put(name: str) -> Transaction[None]:
    yield SQL["put"](name=name)


def names() -> Transaction[list[str]]:
    return [row["name"] for row in (yield SQL["names"]())]


def misspelt() -> Transaction[None]:
    yield SQL["misspelt"]()


def refused() -> Transaction[None]:
    yield SQL["names"]()
    raise NotFound("cannot find it: look elsewhere")


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[SqliteDatabase]:
    async with SqliteDatabase(folder / "legation.db") as database:
        await database.migrate()
        yield database


async def held(database: SqliteDatabase, count: int) -> list[Held]:
    reads = [Held(database) for _ in range(count)]
    for read in reads:
        await read.begun()
    return reads


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("legation-db")]


def descriptors(folder: Path) -> int:
    """How many files there are open: what else opens and closes meanwhile is gone when it is looked at."""
    return sum(os.path.realpath(link).startswith(str(folder)) for link in Path("/proc/self/fd").iterdir())


async def test_a_long_read_holds_up_no_other(tmp_path: Path) -> None:
    async with opened(tmp_path) as database:
        long = await held(database, READERS - 1)
        await database.transact(put, "a")
        assert await asyncio.wait_for(database.read(names), LIMIT) == ["a"]
        assert [await read.let_go() for read in long] == [[]] * len(long)  # each kept its view


async def test_readers_write_nothing_when_they_connect(tmp_path: Path) -> None:
    """They would wait for the writer, and leave bytes in a log that was just emptied."""
    async with opened(tmp_path) as database:
        await database.scrub()
        for read in await held(database, READERS):
            await read.let_go()
        assert (tmp_path / "legation.db-wal").stat().st_size == 0


async def test_every_reader_sees_what_was_acknowledged_before(tmp_path: Path) -> None:
    async with opened(tmp_path) as database:
        written: list[str] = []
        for number in range(50):
            await database.transact(put, f"n{number:02d}")
            written.append(f"n{number:02d}")
            # More than there are readers: each of them has seen an older state before.
            assert await asyncio.gather(*(database.read(names) for _ in range(READERS * 2))) == [written] * (
                READERS * 2
            )


async def test_reads_that_fail_or_are_given_up_hurt_nobody(tmp_path: Path) -> None:
    async with opened(tmp_path) as database:
        for _ in range(READERS * 2):
            for bad, error in ((misspelt, StorageFailed), (refused, NotFound)):
                with pytest.raises(error):
                    await database.read(bad)
        given_up = await held(database, READERS)
        waiting = asyncio.create_task(database.read(names))  # there is no reader for it
        for read in (*(each.task for each in given_up), waiting):
            read.cancel()
        outcomes = await asyncio.gather(*(each.task for each in given_up), waiting, return_exceptions=True)
        assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
        for each in given_up:
            each._go.set()
        await database.transact(put, "a")
        assert await asyncio.wait_for(
            asyncio.gather(*(database.read(names) for _ in range(READERS * 3))), LIMIT
        ) == [["a"]] * (READERS * 3)
        assert len(database._connections) <= READERS + 1  # and the writer's


async def test_a_reader_that_cannot_end_its_view_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept, it would show the same old state to whoever comes next."""
    import sqlite3

    class Stuck(sqlite3.Connection):
        def execute(self, sql: str, *args: object) -> sqlite3.Cursor:
            if sql == "rollback":
                raise sqlite3.OperationalError("disk I/O error")
            return super().execute(sql, *args)  # type: ignore[arg-type]

    async with opened(tmp_path) as database:
        connect, (idle,) = sqlite3.connect, await held(database, 1)  # it has the connection that was made
        with monkeypatch.context() as failing:
            failing.setattr(
                sqlite3, "connect", lambda *args, **kwargs: connect(*args, **kwargs, factory=Stuck)
            )
            with pytest.raises(StorageFailed):
                await database.read(names)
        await idle.let_go()
        await database.transact(put, "a")
        assert await database.read(names) == ["a"]


async def test_nothing_is_left_of_readers_that_are_closed(tmp_path: Path) -> None:
    async with opened(tmp_path) as database:
        reads = await held(database, READERS)
        waiting = asyncio.create_task(database.read(names))
        await asyncio.sleep(0)
        assert len(threads()) == READERS + 1
        closing = asyncio.create_task(database.__aexit__())
        for read in reads:
            assert await read.let_go() == []  # what had begun is brought to its end
        await asyncio.wait_for(closing, LIMIT)
        assert await waiting == []
        assert threads() == []
        assert descriptors(tmp_path) == 0
        with pytest.raises(Conflict, match="it is closed"):
            await database.read(names)


async def test_scrubbing_waits_for_reads_and_those_that_come_wait_for_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path) as database:
        await database.transact(put, "a")
        (read,) = await held(database, 1)
        scrubs = [asyncio.create_task(database.scrub()) for _ in range(2)]
        async with asyncio.timeout(LIMIT):
            while not database._slots.empty():  # until it keeps all that are not read with
                await database.ping()
        late = asyncio.create_task(database.read(names))
        for number in range(20):  # time for them to do what they should not
            await database.transact(put, f"b{number}")
        assert not late.done()
        assert not any(scrub.done() for scrub in scrubs)
        await read.let_go()
        await asyncio.wait_for(asyncio.gather(*scrubs), LIMIT)
        assert (tmp_path / "legation.db-wal").stat().st_size == 0
        assert caplog.records == []
        assert len(await late) == 21
