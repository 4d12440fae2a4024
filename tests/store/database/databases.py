"""Both databases, for suites that must hold on each: `@pytest.mark.parametrize("database", BOTH, indirect=True)`."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.postgres import Postgres

from legation.clock import Clock
from legation.store.database.postgres import PostgresDatabase
from legation.store.database.sqlite import SqliteDatabase

Either = SqliteDatabase | PostgresDatabase
BOTH = ["sqlite", pytest.param("postgres", marks=pytest.mark.heavy)]


def make(dialect: str, folder: Path, request: pytest.FixtureRequest, clock: Clock | None = None) -> Either:
    if dialect == "sqlite":
        return SqliteDatabase(folder / "legation.db", clock=clock)
    postgres: Postgres = request.getfixturevalue("postgres")
    return PostgresDatabase(postgres.new_database(), clock=clock)


async def opened(dialect: str, folder: Path, request: pytest.FixtureRequest) -> AsyncIterator[Either]:
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(make(dialect, folder, request))
        await database.migrate()
        yield database
