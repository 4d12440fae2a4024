"""Listeners: told of changes after their commit, several at once, and of what they may have missed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.postgres import Postgres
from tests.store.database.databases import Either
from tests.store.database.test_database import names, put

from legation.store.database.postgres import PostgresDatabase
from legation.store.database.sqlite import MemoryDatabase
from legation.store.database.transaction import Transaction, parse

LIMIT = 60.0  # seconds: of a machine that is busy


async def heard(event: asyncio.Event) -> None:
    async with asyncio.timeout(LIMIT):
        await event.wait()
    event.clear()


async def test_a_listener_is_told_and_finds_what_was_committed(database: Either) -> None:
    with database.listen("runs") as runs, database.listen("other") as other:
        if isinstance(
            database, PostgresDatabase
        ):  # once it is connected: what came before may have been missed
            await heard(runs)
            await heard(other)
        await database.transact(put, "a")
        database.notify("runs")
        await heard(runs)
        assert await database.read(names) == ["a"]
        assert not other.is_set()


async def test_many_notices_are_few_wakes(database: Either) -> None:
    with database.listen("runs") as runs:
        wakes = 0
        for _ in range(200):
            database.notify("runs")
        async with asyncio.timeout(LIMIT):
            while wakes == 0 or runs.is_set():
                await runs.wait()
                runs.clear()
                wakes += 1
                await database.ping()
        assert wakes <= 10


async def test_whoever_no_longer_listens_is_not_told() -> None:
    async with MemoryDatabase() as database:
        with database.listen("runs") as runs:
            pass
        database.notify("runs")
        assert not runs.is_set()


@asynccontextmanager
async def two_servers(postgres: Postgres) -> AsyncIterator[tuple[PostgresDatabase, PostgresDatabase]]:
    url = postgres.new_database("migrated")
    async with PostgresDatabase(url) as here, PostgresDatabase(url) as there:
        yield here, there


@pytest.mark.heavy
async def test_another_server_is_told(postgres: Postgres) -> None:
    async with two_servers(postgres) as (here, there):
        with there.listen("runs") as runs:
            await heard(runs)
            await here.transact(put, "a")
            here.notify("runs")
            await heard(runs)
            assert await there.read(names) == ["a"]


@pytest.mark.heavy
async def test_a_listener_whose_connection_is_cut_is_told_that_it_may_have_missed_something(
    postgres: Postgres,
) -> None:
    async with two_servers(postgres) as (here, there):
        with there.listen("runs") as runs, there.listen("other") as other:
            await heard(runs)
            await heard(other)
            for _ in range(2):
                assert there._listener is not None
                await here.transact(cut, there._listener.get_server_pid())
                here.notify("nothing that anybody listens to")
                await heard(runs)
                await heard(other)
                here.notify("runs")
                await heard(runs)


(CUT,) = parse("-- name: cut\nselect pg_terminate_backend(cast(:process as integer));")


def cut(process: int) -> Transaction[None]:
    yield CUT(process=process)
