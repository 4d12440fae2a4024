"""Both databases, for suites that must hold on each."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.postgres import MIGRATED, Postgres

from legation.clock import Clock
from legation.store.database.postgres import PostgresDatabase
from legation.store.database.sqlite import SqliteDatabase

Either = SqliteDatabase | PostgresDatabase
BOTH = ["sqlite", pytest.param("postgres", marks=pytest.mark.heavy)]


def make(
    dialect: str,
    folder: Path,
    request: pytest.FixtureRequest,
    clock: Clock | None = None,
    *,
    template: str = MIGRATED,
) -> Either:
    """A database of its own; a Postgres is a copy of one that has the newest schema, unless another is named."""
    if dialect == "sqlite":
        return SqliteDatabase(folder / "legation.db", clock=clock)
    postgres: Postgres = request.getfixturevalue("postgres")
    return PostgresDatabase(postgres.new_database(template), clock=clock)


@asynccontextmanager
async def opened(either: Either) -> AsyncIterator[Either]:
    if isinstance(either, SqliteDatabase):
        async with either as sqlite:
            await sqlite.migrate()
            yield sqlite
    else:
        async with either as postgres:
            await postgres.migrate()
            yield postgres
