"""Retention, what is kept for how long: old records go, kind by kind, in small slices beside all other work.

INV-V1  One prune at a time on a server; what is cut off between two slices is brought to its end by the next start, or
        was never begun: nothing is half deleted.
INV-V2  What is at work stays, however old: `SessionService.at_rest` and `approvals/trace/cut.py` say what that is.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sqlite3
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, closing
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from legation.approvals.trace import cut
from legation.approvals.trace.chain import Ledger
from legation.approvals.trace.cut import Slice
from legation.clock import Clock, new_id
from legation.errors import Conflict, LegationError
from legation.server.sessions.record import SessionRecord, is_at_rest
from legation.server.sessions.service import SessionService, remove_folder
from legation.settings import Settings
from legation.store import audit
from legation.store.database.sqlite import SqliteDatabase, connect
from legation.store.database.transaction import Database, Queries, Transaction, rows
from legation.store.datafolder import DIGEST, DISCARDED, WORK, folder_name, make_folder
from legation.store.entries import WorkingIn
from legation.store.log import EventLog
from legation.store.sizes import KINDS, SAMPLE_INTERVAL, TABLES, Sample, disk_use, folder_sizes, history, keep
from legation.store.stream import Stream
from legation.tasks import TaskSet, in_thread
from legation.wire.api.server import PruneKind, PruneProgress
from legation.wire.principal import Principal

INTERVAL: Final = 3600.0  # seconds between two looks at what is too old
GIVE_BACK: Final = 256  # pages that a transaction gives back to the disk, of 4 KiB
FIRST_SAMPLE: Final = 60.0  # seconds after the start: its own work comes first
ORDER: Final[tuple[PruneKind, ...]] = ("sessions", "work", "content", "traces")

_SQL: Final = Queries("door")
_SIZES: Final = Queries("sizes")
_PROGRESS: Final = 10_000  # of SQLite's instructions between two looks at whether it is to stop

logger = logging.getLogger("legation.retention")


class Retention:
    """Prunes the records of a server, and knows how large they are."""

    def __init__(
        self, settings: Settings, sessions: SessionService, ledger: Ledger, log: EventLog, clock: Clock
    ) -> None:
        self._data_dir = settings.data_dir
        self._kept: Mapping[PruneKind, float | None] = {
            "sessions": settings.keep_sessions,
            "work": settings.keep_work,
            "content": settings.keep_content,
            "traces": settings.keep_traces,
        }
        self._sessions = sessions
        self._folders = WorkFolders(sessions, settings.data_dir)
        self._ledger = ledger
        self._database = ledger.database
        self._log = log
        self._clock = clock
        self.pruning = asyncio.Lock()
        self._sampling = asyncio.Lock()
        self._stop = threading.Event()  # ends what walks through folders
        self.close = self._stop.set

    # Pruned.

    async def prune(
        self, by: Principal, kinds: Sequence[PruneKind], age: float, *, dry: bool = False
    ) -> AsyncGenerator[PruneProgress]:
        """Prune what is older, in the workspace of whoever asks; tell of each slice. May be closed between two."""
        before = self._clock.now_ms() - round(age * 1000)
        # What a step said does not outlive it.
        wanted = {*kinds, "content"} if "traces" in kinds else {*kinds}
        async with self.pruning:
            if not dry:
                await self.finish()
            for kind in (each for each in ORDER if each in wanted):
                # Of a dry run sessions are there still, and with them the folders that go along.
                besides = before if dry and kind == "work" and "sessions" in wanted else None
                async with aclosing(self._prune_kind(by, kind, before, besides, dry=dry)) as told:
                    async for progress in told:
                        yield progress
            if not dry:
                await self._tidy()

    async def _prune_kind(
        self, by: Principal, kind: PruneKind, before: int, besides: int | None, *, dry: bool
    ) -> AsyncGenerator[PruneProgress]:
        found = await self._found(by.workspace, kind, before, besides)
        gone = PruneProgress(kind=kind, count=0, of=found.count, bytes=0, done=False)
        if dry or not found.count:
            yield replace(gone, count=found.count, bytes=found.bytes, done=True)
            return
        async with aclosing(self._slices(by, kind, before)) as slices:
            async for each in slices:
                if not gone.count:
                    await self._database.transact(self._record, by, kind, before, found.count)
                gone = replace(gone, count=gone.count + each.count, bytes=gone.bytes + each.bytes)
                yield replace(gone, of=max(gone.of, gone.count))
        yield replace(gone, of=max(gone.of, gone.count), done=True)

    def _record(self, by: Principal, kind: PruneKind, before: int, count: int) -> Transaction[None]:
        details = {"before": before, "count": count}
        yield from audit.record(by, "data.pruned", kind, details, self._clock.now_ms())

    async def _found(self, workspace: str, kind: PruneKind, before: int, besides: int | None = None) -> Slice:
        """Count what would go, and how much that is; of folders, beside those of sessions that go by another age."""
        counted: list[int]
        match kind:
            case "sessions":
                there = await self._sessions.at_rest(workspace, before)
                counted = [await self._session_size(workspace, each) for each in there]
            case "work":
                gone = {*await self._sessions.at_rest(workspace, besides)} if besides is not None else set()
                folders = await self._folders.at_rest(workspace, before)
                counted = [await self._walk(each) for each in folders if each.name not in gone]
            case "content":
                days = await self._database.read(cut.old_days, workspace, before)
                parts = [await self._database.read(cut.content_of_day, workspace, each) for each in days]
                # A day whose key alone is left is one that goes, too.
                return Slice(sum(max(1, each.count) for each in parts), sum(each.bytes for each in parts))
            case "traces":
                steps = await self._database.read(cut.old_steps, workspace, self._ledger.chain.server, before)
                return Slice(steps, steps * cut.STEP_BYTES)
        return Slice(len(counted), sum(counted))

    async def _slices(self, by: Principal, kind: PruneKind, before: int) -> AsyncGenerator[Slice]:
        now, workspace = self._clock.now_ms(), by.workspace
        match kind:
            case "sessions":
                for name in await self._sessions.at_rest(workspace, before):
                    size = await self._session_size(workspace, name)
                    if await self._sessions.delete_at_rest(by, name, before):
                        yield Slice(1, size)
            case "work":
                for folder in await self._folders.at_rest(workspace, before):
                    size = await self._walk(folder)
                    if await self._folders.remove(workspace, folder, before):
                        yield Slice(1, size)
            case "content":
                async for each in cut.purge(self._database, workspace, before, now):
                    yield each
            case "traces":
                async for each in cut.cut(self._ledger, workspace, before, by, now):
                    yield each

    async def _session_size(self, workspace: str, session_id: str) -> int:
        folder = self._sessions.own_folder(workspace, session_id)
        return (await self._log.size(session_id, workspace)).used + await self._walk(folder)

    async def _walk(self, folder: Path) -> int:
        return await in_thread(disk_use, folder, self._stop)

    async def _tidy(self) -> None:
        """Leave no byte of what went in the databases' logs, and give the space back; then see how large everything is."""
        try:
            await _give_back(self._database)
            await self._log.give_back(await self._server_stream())
            await self._database.scrub()
            await self.sample()
        except (LegationError, OSError) as error:  # what went is gone: the rest is done the next time
            logger.warning("cannot give space back to the disk now: %s", error)

    async def _server_stream(self) -> Stream:
        return await self._log.stream("server", "local")

    # Looked at.

    async def sample(self) -> Sample:
        """Take a sample of the sizes."""
        async with self._sampling:
            return await _take(self._database, self._log, self._data_dir, self._clock.now_ms(), self._stop)

    async def samples(self) -> list[Sample]:
        """Return those of the last week, the oldest first; the first one is taken now."""
        return await in_thread(history, self._data_dir) or [await self.sample()]

    # Kept.

    async def finish(self) -> None:
        """Bring to its end what a killed server had begun."""
        await cut.finish_purges(self._database, self._clock.now_ms())
        await self._log.sweep_all()
        await self._folders.finish()

    async def keep(self) -> None:
        """Prune what the settings keep no longer, in every workspace."""
        kept = {kind: age for kind, age in self._kept.items() if age is not None}
        if not kept or self.pruning.locked():
            return
        for row in await self._database.read(rows, _SQL.workspaces()):
            by = Principal(kind="process", id="retention", workspace=row["id"], scopes=frozenset(), level=0)
            for kind, age in kept.items():
                if not (
                    await self._found(by.workspace, kind, self._clock.now_ms() - round(age * 1000))
                ).count:
                    continue
                async with aclosing(self.prune(by, [kind], age)) as told:
                    async for progress in told:
                        if progress.done and progress.count:
                            logger.info("pruned %d of %s in %s", progress.count, progress.kind, by.workspace)


class WorkFolders:
    """Folders that were made for sessions, below the data folder: removed where nobody works in them any more."""

    def __init__(self, sessions: SessionService, data_dir: Path) -> None:
        self._sessions = sessions
        self._records = sessions.records
        self._work = data_dir / WORK
        self._discarded = data_dir / DISCARDED

    async def at_rest(self, workspace: str, before_ms: int) -> list[Path]:
        """List those of sessions that ended before a time, or that have no session, and that no other works in."""
        ended = {*await self._sessions.at_rest(workspace, before_ms, over=True)}
        work = Path(await asyncio.to_thread(os.path.realpath, self._work / workspace))
        found = []
        for name, changed in await asyncio.to_thread(_folders_in, work):
            session_id = await self._session_of(workspace, work / name)
            there = session_id in ended or await self._records.find(workspace, session_id) is not None
            goes = session_id in ended if there else changed < before_ms
            if not goes or self._records.is_claimed(workspace, session_id):
                continue
            if not await self._sessions.is_used(work / name, (workspace, session_id)):
                found.append(work / name)
        return found

    async def _session_of(self, workspace: str, folder: Path) -> str:
        """Find the id of the session that it was made for; its name is that, unless that is no name of a file."""

        def is_its(record: SessionRecord) -> bool:
            return folder_name(record.id) == folder.name

        if not folder.name.startswith(DIGEST):
            return folder.name
        found = await self._records.first(WorkingIn(workspace, folder=str(folder)), is_its)
        return folder.name if found is None else found.id

    async def remove(self, workspace: str, folder: Path, before_ms: int) -> bool:
        """Remove one of those, at once for everybody; tell whether it was still at rest."""
        session_id = await self._session_of(workspace, folder)
        record = await self._records.find(workspace, session_id)
        if record is not None and not (record.over and is_at_rest(record, before_ms)):
            return False
        # It may be since it was listed: others were walked through.
        if await self._sessions.is_used(folder, (workspace, session_id)):
            return False
        if record is not None or await self._records.was_deleted(workspace, session_id):
            await asyncio.to_thread(self._discard, folder)
            return True
        try:
            async with self._records.claim(workspace, session_id):  # nobody begins to work there now
                await asyncio.to_thread(self._discard, folder)
        except Conflict:
            return False
        return True

    def _discard(self, folder: Path) -> None:
        """Move it away in one step: whatever ends this, it is there whole or gone, and the next start removes the rest."""
        make_folder(self._discarded)
        gone = self._discarded / new_id("dir")
        try:
            folder.rename(gone)
        except OSError:  # another file system
            gone = folder
        remove_folder(gone)

    async def finish(self) -> None:
        """Remove what a killed server had moved away."""
        for name, _ in await asyncio.to_thread(_folders_in, self._discarded):
            await asyncio.to_thread(remove_folder, self._discarded / name)


def _folders_in(place: Path) -> list[tuple[str, int]]:
    """List its folders, and when each was changed last, in ms."""
    try:
        with os.scandir(place) as entries:
            return sorted(
                (each.name, int(each.stat(follow_symlinks=False).st_mtime * 1000))
                for each in entries
                if each.is_dir(follow_symlinks=False)
            )
    except OSError:  # there is none
        return []


@asynccontextmanager
async def retention_upkeep(retention: Retention, clock: Clock) -> AsyncIterator[None]:
    """Keep to the settings, and sample the sizes, for as long as the block lasts."""
    tasks = TaskSet("legation-retention")
    tasks.start(_do(retention.finish))
    tasks.start(_again(clock, retention.keep, INTERVAL, INTERVAL))
    tasks.start(_again(clock, retention.sample, FIRST_SAMPLE, SAMPLE_INTERVAL))
    try:
        yield
    finally:
        retention.close()
        await tasks.close()


async def _again(clock: Clock, work: Callable[[], Awaitable[object]], first: float, then: float) -> None:
    await clock.sleep(first)
    while True:
        await _do(work)
        await clock.sleep(then)


async def _do(work: Callable[[], Awaitable[object]]) -> None:
    try:
        await work()
    except (LegationError, OSError) as error:  # the next time may do what this one could not
        logger.warning("cannot keep to what is kept for how long: %s", error)


# Sizes, of both databases and of the folders.


async def _take(
    database: Database, log: EventLog, data_dir: Path, now_ms: int, stop: threading.Event
) -> Sample:
    """Take a sample and keep it. It takes its time, which nobody else waits for; `stop` ends it."""
    kinds = dict.fromkeys(KINDS, 0)
    for table, size in (await _tables(database, stop)).items():
        kinds[TABLES.get(table, "database")] += size
    stored = await log.size()
    kinds["sessions"] = stored.used
    kinds["free"] = stored.free + await database.read(_free)
    kinds |= await in_thread(folder_sizes, data_dir, stop)
    sample = Sample(now_ms, kinds, shutil.disk_usage(data_dir).free)
    if not stop.is_set():  # else it is not the whole
        await in_thread(keep, data_dir, sample)
    return sample


async def _give_back(database: Database) -> None:
    """Give the free space of a file back to the disk, in small transactions."""
    free = await database.read(_free)
    while free:
        await database.transact(_give_some_back)
        before, free = free, await database.read(_free)
        if free >= before:  # it is in use by now
            return


def _give_some_back() -> Transaction[None]:
    for _ in range(GIVE_BACK):
        yield _SIZES.give_back()


def _free() -> Transaction[int]:
    (row,) = yield _SIZES.free()
    return int(row["bytes"])


async def _tables(database: Database, stop: threading.Event) -> dict[str, int]:
    if isinstance(database, SqliteDatabase):
        return await in_thread(_tables_of, database, stop)
    return {row["name"]: row["bytes"] for row in await database.read(rows, _SIZES.tables())}


def _tables_of(database: SqliteDatabase, stop: threading.Event) -> dict[str, int]:
    """Look with a connection of its own: readers of the database do not wait for it. Scrubbing would, and everybody for that:
    it gives way, and looks again."""
    gave_way = True

    def must_stop() -> bool:
        nonlocal gave_way
        gave_way = database.scrubbing.locked()
        return gave_way or stop.is_set()

    while gave_way and not stop.is_set():
        gave_way = False
        with database.scrubbing:
            pass
        with closing(connect(database.path)) as connection:
            connection.set_progress_handler(must_stop, _PROGRESS)
            try:
                return dict(connection.execute(_SIZES.tables().query.sqlite).fetchall())
            except sqlite3.OperationalError:  # an SQLite without `dbstat`, or it was stopped
                continue
    return {"": database.path.stat().st_size}
