"""An installation on disk: its data folder, its database, its keys, the name of the server that has it, and the
time that it goes by: the mark of the steady clock (`legation.clock`) is in the database, so that servers that share one agree.
"""

from __future__ import annotations

import logging
import os
import re
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeAlias

from legation.clock import Clock, SteadyClock, new_id
from legation.errors import ConfigInvalid, Conflict, LegationError, StorageFailed
from legation.settings import Settings
from legation.store.database import migrations
from legation.store.database.sqlite import SqliteDatabase
from legation.store.database.transaction import Database, Queries, Transaction, only
from legation.store.datafolder import DATABASE, KEYS, SERVERS, close_folders, cut_off, make_folder
from legation.store.files import FolderLock, owner_alive, write_all, write_atomically
from legation.store.secrets.sealer import Keys, load_keys
from legation.tasks import TaskSet
from legation.wire.api.server import OWNER_LOCK

MOST_SERVERS: Final = 64  # that programs start on one usual folder at once


def prepare_folder(folder: Path) -> None:
    """Make it private to its owner, and writable: what is wrong is told here, before anything is opened in it."""
    if (aside := cut_off(folder)) is not None:
        raise Conflict(
            f"cannot start on {folder}: a restore was cut off, and what was there is in {aside}; "
            "restore again, or give that its name back"
        )
    try:
        make_folder(folder)
        _must_be_ours(folder)
        close_folders(folder)
        fd, probe = tempfile.mkstemp(prefix=".writable-", dir=folder)
        try:
            write_all(fd, bytes(4096), 0)
        finally:
            os.close(fd)
            Path(probe).unlink()
    except OSError as error:
        raise StorageFailed(
            f"cannot write to {folder}: {error.strerror}; mend that, or choose another folder with --data-dir"
        ) from error


@contextmanager
def free_folder(settings: Settings) -> Iterator[Settings]:
    """Find a data folder that no other server has, for a program that starts one as it would start sandbox-agent's, which
    has no data: the usual one, else one in it, so that it lies in what is never served. What they keep stays there."""
    usual = settings.data_dir
    prepare_folder(usual)
    for number in range(1, MOST_SERVERS + 1):
        lock = FolderLock(usual / SERVERS / f"{number}.lock")
        try:
            lock.acquire()
        except Conflict:
            continue
        try:
            folder = usual if number == 1 else usual / SERVERS / str(number)
            if not owner_alive(folder / OWNER_LOCK):
                yield replace(settings, data_dir=folder)
                return
        finally:
            lock.release()
    raise Conflict(
        f"cannot start another server: {MOST_SERVERS} have their data in {usual}; stop one, or choose --data-dir"
    )


def _must_be_ours(folder: Path) -> None:
    # Who else may write there could put a link in the place of any file that we are about to write.
    status = folder.stat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise ConfigInvalid(
            f"cannot use {folder}: others can write to it; give it to this user with chown, and run `chmod 700 {folder}`"
        )


@asynccontextmanager
async def open_database(settings: Settings, clock: Clock) -> AsyncIterator[Database]:
    if settings.database_url is not None:
        from legation.store.database.postgres import PostgresDatabase

        async with PostgresDatabase(settings.database_url, clock=clock) as postgres:
            yield postgres
    else:
        async with SqliteDatabase(settings.data_dir / DATABASE, clock=clock) as sqlite:
            yield sqlite


def load_installation_keys(settings: Settings) -> Keys:
    given = {name: getattr(settings, name) for name in ("vault_key", "token_pepper", "cookie_key")}
    return load_keys(settings.data_dir / KEYS, given, require_given=settings.database_url is not None)


async def bring_up_to_date(database: Database) -> None:
    """Migrate a file of ours, as whoever opens it does; refuse a shared database until its owner has migrated it."""
    if database.dialect == "sqlite":
        await database.migrate()
        return
    version = await database.version()
    if version != migrations.newest():
        raise StorageFailed(
            f"cannot use the database: its schema is {version} and this Legation needs {migrations.newest()}; run "
            "`legation migrate`, or the Legation that fits"
        )


def server_name(path: Path) -> str:
    """Read the name of this server, or make one: the same at every start, and of one process, as its folder is."""
    try:
        kept = path.read_text("ascii").strip() if path.exists() else ""
        if re.fullmatch(r"srv_[0-9a-z]+", kept):
            return kept
        name = new_id("srv")
        write_atomically(path, f"{name}\n".encode())
    except (OSError, ValueError) as error:
        raise StorageFailed(
            f"cannot keep the server's name in {path}: remove the file, or mend its disk"
        ) from error
    return name


# Time.

MARK_EVERY: Final = 30.0  # seconds between two marks: what a clock set back during a restart can regain

Report: TypeAlias = Callable[[str], None]
"""Gets words on a jump."""

logger = logging.getLogger("legation.clock")

_SQL: Final = Queries("clock")


@asynccontextmanager
async def steady(database: Database, wall: Clock, report: Report) -> AsyncIterator[SteadyClock]:
    """For as long as the block lasts; it owns the task that keeps the mark."""
    clock = SteadyClock(wall, await database.transact(_raise_mark, wall.now_ms()))
    _tell(clock, report)
    tasks = TaskSet("legation-clock")
    tasks.start(_keep_again(clock, database, report))
    try:
        yield clock
    finally:
        await tasks.close()
        with suppress(LegationError):  # a mark that is half a minute old will do
            await keep(clock, database)


async def _keep_again(clock: SteadyClock, database: Database, report: Report) -> None:
    while True:
        await clock.sleep(MARK_EVERY)
        _tell(clock, report)
        try:
            await keep(clock, database)
        except LegationError as error:  # the next mark says the same
            logger.warning("cannot keep the time: %s", error)


async def keep(clock: SteadyClock, database: Database) -> None:
    """Raise the mark to now; where another server's is later, go on from that."""
    clock.go_on_from(await database.transact(_raise_mark, clock.now_ms()))


def _tell(clock: SteadyClock, report: Report) -> None:
    if (words := clock.jump()) is not None:
        report(words)


def _raise_mark(now_ms: int) -> Transaction[int]:
    row = only((yield _SQL.raise_mark(now=now_ms)))
    assert row is not None  # it is made or changed, whichever
    mark: int = row["ms"]
    return mark
