"""A Postgres that does not answer: its processes are stopped, and their connections stay open."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.postgres import Postgres, running_postgres
from tests.store.database.test_database import SQL, names, put

from legation.errors import Unavailable
from legation.store.database import postgres as module
from legation.store.database.postgres import ANSWER_LIMIT, PostgresDatabase
from legation.store.database.transaction import Transaction

pytestmark = pytest.mark.heavy

LIMIT = 60.0  # seconds: of a machine that is busy. Whoever hangs would hang for longer.


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    """One for this file alone: others would find it frozen too."""
    with running_postgres() as server:
        yield server


@pytest.fixture
async def database(postgres: Postgres) -> AsyncIterator[PostgresDatabase]:
    async with PostgresDatabase(postgres.new_database()) as made:
        await made.migrate()
        yield made


async def until_it_answers(database: PostgresDatabase) -> None:
    async with asyncio.timeout(LIMIT):
        while True:
            try:
                await database.ping()
            except Unavailable:
                await asyncio.sleep(0.05)
            else:
                return


def test_the_bounds_add_up_to_what_is_promised() -> None:
    assert module._PATIENCE + module._BEATS * module._BEAT < ANSWER_LIMIT == 3.0


async def test_whoever_asks_a_frozen_database_is_told_so(
    database: PostgresDatabase, postgres: Postgres
) -> None:
    with postgres.frozen():
        async with asyncio.timeout(LIMIT):
            with pytest.raises(Unavailable, match="the database does not answer") as caught:
                await database.read(names)
            assert caught.value.data == {"retryAfter": 2}
            for ask in (database.ping(), database.version(), database.transact(put, "a")):
                with pytest.raises(Unavailable):
                    await ask
    await until_it_answers(database)
    assert await database.read(names) == []
    await database.transact(put, "b")
    assert await database.read(names) == ["b"]


async def test_more_than_there_are_connections_are_told_at_once(
    database: PostgresDatabase, postgres: Postgres
) -> None:
    """Some hold one, some try to open one, and the others stand in the line for one."""
    with postgres.frozen():
        async with asyncio.timeout(LIMIT):
            asked = [database.transact(put, f"n{number}") for number in range(40)]
            found = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(each) for each in found] == [Unavailable] * 40
    await until_it_answers(database)
    assert await database.read(names) == []
    await asyncio.gather(*(database.transact(put, f"m{number}") for number in range(40)))
    assert len(await database.read(names)) == 40


async def test_what_was_not_committed_is_not_there_afterwards(
    database: PostgresDatabase, postgres: Postgres
) -> None:
    frozen = postgres.frozen()

    def work() -> Transaction[None]:
        yield SQL["put"](name="half", tokens=1)
        frozen.__enter__()
        yield SQL["put"](name="whole", tokens=1)

    try:
        async with asyncio.timeout(LIMIT):
            with pytest.raises(Unavailable, match="does not answer; try again"):
                await database.transact(work)
    finally:
        frozen.__exit__(None, None, None)
    await until_it_answers(database)
    assert await database.read(names) == []


async def test_of_a_commit_that_nobody_confirmed_it_is_not_said_that_it_failed(
    database: PostgresDatabase, postgres: Postgres
) -> None:
    frozen = postgres.frozen()

    def work() -> Transaction[None]:
        yield SQL["put"](name="maybe", tokens=1)
        frozen.__enter__()  # its next word is the commit

    try:
        async with asyncio.timeout(LIMIT):
            with pytest.raises(Unavailable, match="cannot tell whether this was saved") as caught:
                await database.transact(work)
    finally:
        frozen.__exit__(None, None, None)
    assert caught.value.data == {"outcome": "unknown"}
    await until_it_answers(database)
    assert await database.read(names) in ([], ["maybe"])


async def test_slow_work_of_a_database_that_answers_goes_on(
    database: PostgresDatabase, postgres: Postgres
) -> None:
    """Longer than it takes to find out that one is frozen: it waits for a lock, which a thread of ours gives back."""
    url = postgres.url(postgres_name(database))
    held, done = threading.Event(), threading.Event()

    async def hold() -> None:
        import asyncpg

        connection = await asyncpg.connect(url.reveal())
        async with connection.transaction():
            await connection.execute("lock table legation.bucket in access exclusive mode")
            held.set()
            await asyncio.to_thread(done.wait, LIMIT)
        await connection.close()

    holder = threading.Thread(target=asyncio.run, args=(hold(),))
    holder.start()
    try:
        assert await asyncio.to_thread(held.wait, LIMIT)
        slow = asyncio.create_task(database.transact(put, "slow"))
        async with asyncio.timeout(LIMIT):
            while database._watch is None:  # it was asked whether it is there
                await asyncio.sleep(0.05)
        rounds = module._BEATS * 2
        for _ in range(rounds):
            assert not slow.done()
            await database.ping()
            await asyncio.sleep(module._BEAT)
    finally:
        done.set()
        await asyncio.to_thread(holder.join)
    await slow
    assert await database.read(names) == ["slow"]


def postgres_name(database: PostgresDatabase) -> str:
    return database._where.rpartition("/")[2]


async def test_a_frozen_database_is_closed_at_once(postgres: Postgres) -> None:
    database = PostgresDatabase(postgres.new_database())
    async with database:
        await database.migrate()
        frozen = postgres.frozen()
        frozen.__enter__()
        try:
            with pytest.raises(Unavailable):
                await database.ping()
            async with asyncio.timeout(module.CONNECT_LIMIT):
                await database.__aexit__(None, None, None)
        finally:
            frozen.__exit__(None, None, None)
