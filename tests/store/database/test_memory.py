"""The database in memory behaves as the one on disk does."""

import pytest

from legation.errors import Conflict, StorageFailed
from legation.store.database import migrations
from legation.store.database.sqlite import MemoryDatabase
from legation.store.database.transaction import Dangling, Database, Duplicate, Rows, Transaction, parse

(_ADD,) = parse("-- name: add\ninsert into workspace (id, name, created_at) values (:id, :id, 0);")
(_ALL,) = parse("-- name: all\nselect id from workspace order by id;")
(_MEMBER,) = parse(
    "-- name: join\ninsert into membership (workspace_id, user_id, role, created_at) values ('local', 'nobody', 'owner', 0);"
)


def add(*names: str, then: Exception | None = None) -> Transaction[None]:
    for name in names:
        yield _ADD(id=name)
    if then is not None:
        raise then


def names() -> Transaction[list[str]]:
    rows: Rows = yield _ALL()
    return [row["id"] for row in rows]


def join() -> Transaction[None]:
    yield _MEMBER()


async def test_it_has_the_newest_schema_and_is_a_database() -> None:
    async with MemoryDatabase() as database:
        as_any: Database = database
        await as_any.ping()
        await as_any.scrub()
        assert await as_any.version() == migrations.newest()
        assert await as_any.migrate() == []


async def test_all_of_a_transaction_or_nothing() -> None:
    async with MemoryDatabase() as database:
        await database.transact(add, "one")
        with pytest.raises(Conflict, match="cannot"):
            await database.transact(add, "two", then=Conflict("cannot"))
        assert await database.read(names) == ["one"]


async def test_broken_constraints_are_told_as_what_they_are() -> None:
    async with MemoryDatabase() as database:
        with pytest.raises(Duplicate):
            await database.transact(add, "one", "one")
        with pytest.raises(Dangling):
            await database.transact(join)
        assert await database.read(names) == []


async def test_reading_cannot_write() -> None:
    async with MemoryDatabase() as database:
        with pytest.raises(StorageFailed):
            await database.read(add, "one")
        await database.transact(add, "one")
        assert await database.read(names) == ["one"]


async def test_two_are_apart_and_each_ends_with_its_block() -> None:
    async with MemoryDatabase() as one, MemoryDatabase() as other:
        await one.transact(add, "one")
        assert await other.read(names) == []
    with pytest.raises(StorageFailed):
        await one.ping()
