"""The database of one machine: SQLite, one writer thread that commits whatever waits as one unit, and a few readers.

Each transaction of such a group runs in a savepoint of its own, unless it writes but once, so that one that fails takes
nothing along; callers hear of it only when the group is on the disk.

Files have a write-ahead log, are durable at every commit, and private to their owner.

A read takes its view when it begins, after all that was acknowledged before; a long one keeps none but its own reader.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, NamedTuple, ParamSpec, Self, TypeVar

from legation.clock import Clock, SystemClock
from legation.errors import Conflict, StorageFailed
from legation.store.database import migrations
from legation.store.database.migrations import Migration
from legation.store.database.transaction import (
    PARAMETER,
    Dangling,
    Dialect,
    Duplicate,
    Query,
    Rows,
    Statement,
    TopicListeners,
    Transaction,
    step,
)
from legation.store.files import FolderLock
from legation.tasks import in_thread

# Of log before it is merged into the file, by whoever commits then: a burst of an agent fits into it.
WAL_BYTES = 64 * 1024 * 1024
BUSY_LIMIT = 5.0  # seconds: another process that looks, `sqlite3` or a backup, and its time


def connect(path: Path, page_size: int = 4096) -> sqlite3.Connection:
    # Made before SQLite makes it, so that it, its log and its index are ours alone. Never opened if it is there: closing
    # any descriptor of a file gives up all locks of the process on it, and with SQLite's gone whoever looks into the
    # database deletes its write-ahead log under us.
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=BUSY_LIMIT)
    try:
        if path.stat().st_size == 0:
            # Before the first write, or never: each later connection would write it anew, and wait for the writer.
            connection.execute(f"pragma page_size = {page_size}")
            connection.execute("pragma auto_vacuum = incremental")  # what is deleted goes back to the disk
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = full")
        connection.execute("pragma secure_delete = on")  # what is deleted or replaced is overwritten
        connection.execute("pragma foreign_keys = on")
        # In units of the file, which keeps those that it was made with.
        (unit,) = connection.execute("pragma page_size").fetchone()
        connection.execute(f"pragma wal_autocheckpoint = {WAL_BYTES // unit}")
    except BaseException:
        connection.close()
        raise
    return connection


def size_of(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return the bytes of its database that are in use, and those that are free and can be given back."""
    pages, free, unit, gives_back = (
        connection.execute(f"pragma {name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size", "auto_vacuum")
    )
    return (pages - free) * unit, free * unit if gives_back else 0


class SameFile:
    """A file deleted or moved under its owner goes on taking writes, for nobody: told instead of acknowledged."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._was = _identity(path)

    def check(self) -> None:
        if _identity(self._path) != self._was:
            raise StorageFailed(
                f"cannot use {self._path}: it was moved or deleted while it was in use; put it back, or start again"
            )


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


MAX_GROUP: Final = 256  # transactions in one commit
READERS: Final = 4  # reads at once; each has a thread, and a connection with up to 2 MB of pages
FAILED_REST: Final = 10.0  # seconds after a failure: a small write may fit where a real one did not
_MEMORY: Final = "the database in memory"
_TOUCH: Final = Query("touch", "update migration set name = name", "", ())  # the least that needs the disk

_log = logging.getLogger(__name__)

T = TypeVar("T")
P = ParamSpec("P")


class _Job(NamedTuple):
    work: Callable[[], Transaction[Any]]
    done: asyncio.Future[Any]
    writes_once: bool  # its one statement is all of it or nothing: there is nothing to take back


class _Outcome(NamedTuple):
    done: asyncio.Future[Any]
    result: Any = None
    error: BaseException | None = None


class SqliteDatabase:
    """`async with SqliteDatabase(path) as database`. Belongs to one event loop; sole owner of its file."""

    dialect: Final[Dialect] = "sqlite"

    def __init__(self, path: Path, *, clock: Clock | None = None) -> None:
        self.path = path
        self._clock = clock or SystemClock()
        self._lock = FolderLock(path.with_name(path.name + ".lock"))
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._connections: list[sqlite3.Connection] = []
        # For each reader its connection, made when it is first needed. The last one used has the warmest pages.
        self._slots: queue.LifoQueue[sqlite3.Connection | None] = queue.LifoQueue()
        self.scrubbing = threading.Lock()  # held meanwhile: whoever else reads the file for long gives way
        self._open = False
        self._failed_at: float | None = None  # when the last group was not taken
        listeners = TopicListeners()  # all that there are: the file has no other owner
        self.listen, self.notify = listeners.listen, listeners.wake

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._readers = ThreadPoolExecutor(READERS, "legation-db-reader")
        for _ in range(READERS):
            self._slots.put(None)
        try:
            self._lock.acquire()
            self._writer = self._connect()
            self._file = SameFile(self.path)
        except (sqlite3.Error, OSError) as error:
            self._release()
            raise StorageFailed(f"cannot open {self.path}: {error}; check the file and its folder") from error
        except BaseException:
            self._release()
            raise
        self._thread = threading.Thread(target=self._run, name="legation-db-writer", daemon=True)
        self._thread.start()
        self._open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self._open = False
        self._queue.put(None)
        try:
            await in_thread(self._thread.join)
        finally:
            await in_thread(self._readers.shutdown)
            self._release()

    def _connect(self) -> sqlite3.Connection:
        connection = connect(self.path)
        # What a statement may have to take back: with many indices it is more than SQLite keeps in memory by itself, and a
        # file for it is two thirds of an answer's time. It had rows of ours in it, too.
        connection.execute("pragma temp_store = memory")
        self._connections.append(connection)
        connection.row_factory = sqlite3.Row
        return connection

    def _release(self) -> None:
        while self._connections:
            self._connections.pop().close()
        self._lock.release()

    async def transact(self, work: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        self._must_be_open()
        done: asyncio.Future[T] = self._loop.create_future()
        writes_once = getattr(work, "isolation", None) == "conditional"
        self._queue.put(_Job(partial(work, *args, **kwargs), done, writes_once))
        return await asyncio.shield(done)  # a caller that goes away does not undo it: it is on its way

    async def read(self, work: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        self._must_be_open()
        call = partial(self._read, partial(work, *args, **kwargs))
        return await self._loop.run_in_executor(self._readers, call)

    async def ping(self) -> None:
        """Through the writer, so that one that is stuck is noticed; with a write, if the last one failed."""
        failed_at = self._failed_at
        if failed_at is not None and self._clock.monotonic() - failed_at < FAILED_REST:
            raise StorageFailed(f"cannot use {self.path}: the last transaction was not taken; check the disk")
        await self.transact(_nothing if failed_at is None else _touch)

    async def scrub(self) -> None:
        self._must_be_open()
        await self._loop.run_in_executor(self._readers, self._scrub)

    def _scrub(self) -> None:
        # The log is emptied where nobody reads: those that read are waited for, and those that come wait.
        with self.scrubbing, ExitStack() as slots:
            for _ in range(READERS):
                slots.callback(self._slots.put, self._slots.get())
            with _storage(self.path), closing(connect(self.path)) as connection:
                (busy, *_) = connection.execute("pragma wal_checkpoint(truncate)").fetchone()
        if busy:
            _log.warning("cannot empty the write-ahead log of %s now: another process reads it", self.path)

    def _must_be_open(self) -> None:
        if not self._open:
            raise Conflict(f"cannot use {self.path}: it is closed; open it again")

    # Migrations.

    async def version(self) -> int:
        return await self._loop.run_in_executor(self._readers, self._version)

    async def migrate(self) -> list[Migration]:
        """Bring the schema up to this release's; what was applied."""
        return await self._loop.run_in_executor(self._readers, self._migrate)

    def _version(self) -> int:
        with _storage(self.path), self._reader() as connection:
            return _version(connection)

    def _migrate(self) -> list[Migration]:
        version = self._version()
        if version > migrations.newest():
            raise StorageFailed(
                f"cannot open {self.path}: its schema is {version}, newer than {migrations.newest()}; update "
                "Legation"
            )
        with _storage(self.path), closing(connect(self.path)) as connection:
            return _migrated(connection, version, self._clock)

    # The reader threads.

    def _read(self, work: Callable[[], Transaction[T]]) -> T:
        with _storage(self.path), self._reader() as connection:
            return _drive(work(), connection)

    @contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection for one view."""
        connection = self._slots.get()  # there are as many as threads: it waits for scrubbing alone
        try:
            if connection is None:
                connection = self._connect()
                connection.execute("pragma query_only = on")
            connection.execute("begin")
            try:
                yield connection
            finally:
                if connection.in_transaction:  # a failing disk may have ended it
                    connection.execute("rollback")
        finally:
            if connection is not None and connection.in_transaction:  # it would show its old view for ever
                self._connections.remove(connection)
                connection.close()
                connection = None
            self._slots.put(connection)

    # The writer thread.

    def _run(self) -> None:
        ending = False
        while not ending:
            jobs = [job for job in (self._queue.get(),) if job is not None]
            ending = not jobs
            while jobs and len(jobs) < MAX_GROUP and not ending:
                try:
                    job = self._queue.get_nowait()
                except queue.Empty:
                    break
                if job is None:
                    ending = True
                else:
                    jobs.append(job)
            if jobs:
                outcomes = self._commit(jobs)
                with suppress(RuntimeError):  # the loop is gone, and with it everybody who would want to know
                    self._loop.call_soon_threadsafe(_settle, outcomes)

    def _commit(self, jobs: list[_Job]) -> list[_Outcome]:
        try:
            with _storage(self.path):
                self._file.check()
                self._writer.execute("begin immediate")
                outcomes = [self._work(job) for job in jobs]
                self._writer.execute("commit")
                self._failed_at = None
                return outcomes
        except BaseException as error:  # noqa: BLE001 - the thread's boundary: dead, it would leave everybody waiting
            self._failed_at = self._clock.monotonic()
            with suppress(sqlite3.Error):
                self._writer.execute("rollback")
            return [_Outcome(job.done, error=error) for job in jobs]

    def _work(self, job: _Job) -> _Outcome:
        run = self._writer.execute
        if not job.writes_once:
            run("savepoint work")
        try:
            result = _drive(job.work(), self._writer)
        except BaseException as error:  # most are the caller's own, and are told to the caller
            if not self._writer.in_transaction:
                raise  # a full disk: SQLite took the whole group back
            if not job.writes_once:
                run("rollback to work")
                run("release work")
            return _Outcome(job.done, error=self._told(error))
        if not job.writes_once:
            run("release work")
        return _Outcome(job.done, result)

    def _told(self, error: BaseException) -> BaseException:
        return _storage_failed(self.path, error) if isinstance(error, sqlite3.Error) else error


def _version(connection: sqlite3.Connection) -> int:
    if not connection.execute("select 1 from sqlite_master where name = 'migration'").fetchone():
        return 0
    (number,) = connection.execute("select coalesce(max(number), 0) from migration").fetchone()
    return int(number)


def _migrated(connection: sqlite3.Connection, version: int, clock: Clock) -> list[Migration]:
    """Apply the migrations above that version; which they were."""
    wanted = list(migrations.chain()[version:])
    for migration in wanted:
        text = f"begin immediate; {migrations.TABLE}; {migration.text}"
        connection.executescript(migrations.for_dialect(text, "sqlite"))
        note = "insert into migration (number, name, applied_at) values (?, ?, ?)"
        connection.execute(note, (migration.number, migration.name, clock.now_ms()))
        connection.execute("commit")
    return wanted


def _nothing() -> Transaction[None]:
    return
    yield


def _touch() -> Transaction[None]:
    yield _TOUCH()


def _drive(transaction: Transaction[T], connection: sqlite3.Connection) -> T:
    try:
        statement = next(transaction)
        while True:
            try:
                rows = _execute(connection, statement)
            except (Duplicate, Dangling) as broken:
                step(transaction, broken)
            else:
                statement = transaction.send(rows)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


def _execute(connection: sqlite3.Connection, statement: Statement) -> Rows:
    if not statement.insertions:
        return _execute_one(connection, statement)
    connection.execute("savepoint insertions")  # a work that writes once has none around it
    try:
        for each in statement.insertions:
            _execute_one(connection, each)
        rows = _execute_one(connection, statement)
    except BaseException:
        if connection.in_transaction:  # else a full disk has ended it
            connection.execute("rollback to insertions")
            connection.execute("release insertions")
        raise
    connection.execute("release insertions")
    return rows


def _execute_one(connection: sqlite3.Connection, statement: Statement) -> Rows:
    query, args, rows, _ = statement
    try:
        if rows is not None:
            values = [[each[name] for name in query.parameters] for each in rows]
            connection.executemany(_by_number(query), values)
            return []
        return connection.execute(query.sqlite, args).fetchall()
    except sqlite3.IntegrityError as error:
        message = f"cannot do {query.name}: "
        if error.sqlite_errorcode in (sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY):
            raise Duplicate(message + "there is one already") from error
        if error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY:
            raise Dangling(
                message + "it names something that is not there, or is named by something"
            ) from error
        raise


@cache
def _by_number(query: Query) -> str:
    """Write its parameters as numbers: to look each up by its name costs as much as the insertion does."""
    numbers = {name: f"?{number}" for number, name in enumerate(query.parameters, 1)}
    return PARAMETER.sub(lambda found: numbers[found[1]], query.sqlite)


def _settle(outcomes: list[_Outcome]) -> None:
    for done, result, error in outcomes:
        if done.done():
            continue
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)


@contextmanager
def _storage(where: Path | str) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise _storage_failed(where, error) from error


def _storage_failed(where: Path | str, error: sqlite3.Error) -> StorageFailed:
    return StorageFailed(f"cannot use {where}: {error}; check the disk and the file, then try again")


class MemoryDatabase:
    """SQLite in memory, for a process that keeps nothing: `async with MemoryDatabase() as database`; the schema is there.

    It works on the loop's own thread, one transaction after another: there is no disk to wait for."""

    dialect: Final[Dialect] = "sqlite"

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        listeners = TopicListeners()
        self.listen, self.notify = listeners.listen, listeners.wake

    async def __aenter__(self) -> Self:
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        self._connection.row_factory = sqlite3.Row
        self._connection.execute("pragma foreign_keys = on")
        await self.migrate()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._connection.close()

    async def transact(self, work: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        with _storage(_MEMORY):
            return self._run(partial(work, *args, **kwargs), "commit")

    async def read(self, work: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        with _storage(_MEMORY):
            self._connection.execute("pragma query_only = on")
            try:
                return self._run(partial(work, *args, **kwargs), "rollback")
            finally:
                self._connection.execute("pragma query_only = off")

    def _run(self, work: Callable[[], Transaction[T]], end: str) -> T:
        self._connection.execute("begin")
        try:
            result = _drive(work(), self._connection)
        except BaseException:
            self._connection.execute("rollback")
            raise
        self._connection.execute(end)
        return result

    async def ping(self) -> None:
        with _storage(_MEMORY):
            self._connection.execute("select 1")

    async def scrub(self) -> None:
        """There is no log to empty."""

    async def version(self) -> int:
        with _storage(_MEMORY):
            return _version(self._connection)

    async def migrate(self) -> list[Migration]:
        with _storage(_MEMORY):
            return _migrated(self._connection, _version(self._connection), self._clock)
