"""A database in memory, SQLite like the one on disk: for a process that keeps nothing and opens nobody's folder.

It works on the loop's own thread, one transaction after another: there is no disk to wait for.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Final, ParamSpec, Self, TypeVar

from legation.clock import Clock, SystemClock
from legation.errors import StorageFailed
from legation.store.database import migrations
from legation.store.database.migrations import Migration
from legation.store.database.queries import Dialect
from legation.store.database.sqlite import apply, drive, execute
from legation.store.database.transaction import Transaction

T = TypeVar("T")
P = ParamSpec("P")


class MemoryDatabase:
    """`async with MemoryDatabase() as database`: the schema is there. Belongs to one event loop."""

    dialect: Final[Dialect] = "sqlite"

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()

    async def __aenter__(self) -> Self:
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        self._connection.row_factory = sqlite3.Row
        self._connection.execute("pragma foreign_keys = on")
        await self.migrate()
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._connection.close()

    async def transact(self, work: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        with _storage():
            return self._run(partial(work, *args, **kwargs), "commit")

    async def read(self, work: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        with _storage():
            self._connection.execute("pragma query_only = on")
            try:
                return self._run(partial(work, *args, **kwargs), "rollback")
            finally:
                self._connection.execute("pragma query_only = off")

    def _run(self, work: Callable[[], Transaction[T]], end: str) -> T:
        self._connection.execute("begin")
        try:
            result = drive(work(), partial(execute, self._connection))
        except BaseException:
            self._connection.execute("rollback")
            raise
        self._connection.execute(end)
        return result

    async def ping(self) -> None:
        with _storage():
            self._connection.execute("select 1")

    async def scrub(self) -> None:
        """There is no log to empty."""

    async def version(self) -> int:
        with _storage():
            if not self._connection.execute(
                "select 1 from sqlite_master where name = 'migration'"
            ).fetchone():
                return 0
            (number,) = self._connection.execute("select coalesce(max(number), 0) from migration").fetchone()
            return int(number)

    async def migrate(self) -> list[Migration]:
        wanted = list(migrations.chain()[await self.version() :])
        with _storage():
            for migration in wanted:
                apply(self._connection, migration, self._clock.now_ms())
        return wanted


@contextmanager
def _storage() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise StorageFailed(f"cannot use the database in memory: {error}; start again") from error
