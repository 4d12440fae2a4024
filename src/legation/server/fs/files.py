"""The files of this machine, for callers that the routes let in: all work in threads, few at once, transfers counted."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, ParamSpec, Self, TypeAlias, TypeVar

from starlette.requests import Request

from legation.errors import NotFound, RateLimited, Unavailable
from legation.server.fs import operations
from legation.server.fs.operations import AtomicFile, RegularFile, printable
from legation.server.fs.paths import Confinement, ServedFolders
from legation.server.fs.upload import Unpacker, pieces
from legation.wire.api.fs import FsEntry, FsMove, FsMoved, FsStat, FsUploaded, FsWritten
from legation.wire.principal import Principal

# File work off the loop: a bounded number of threads at a time, so that a slow disk does not take them all.

FILE_THREADS: Final = 4  # at once; the other threads of the loop are the database's and everybody's

_P = ParamSpec("_P")
_T = TypeVar("_T")


class FileThreads:
    def __init__(self, most: int = FILE_THREADS) -> None:
        self._slots = asyncio.Semaphore(most)

    async def run(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        async with self._slots:
            return await run_to_end(work, *args, **kwargs)


async def run_to_end(work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Who is cancelled waits for the thread all the same, because it uses a descriptor that is closed next. That is
    the time of one piece of work on the disk."""
    running = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # looked at; the cancellation is what is told
        raise


# Uploads and downloads at once: each holds descriptors for as long as its caller likes, so they are counted.
#
# INV-T1  Whatever one person does, by whichever of their credentials, most of the places are left to others; and
#         whatever an agent does, half of those of its maker.

MOST_TRANSFERS: Final = 128
PERSONS_PART: Final = 4  # a quarter is one person's, or one address' that brings a link and no credential
AGENTS_PART: Final = 8
RETRY_AFTER: Final = 1  # seconds: a guess, a transfer takes as long as its caller likes


class Transfers:
    def __init__(self, most: int = MOST_TRANSFERS) -> None:
        self._most = most
        self._of: Counter[str] = Counter()  # by whose they are
        self.running = 0

    def begin(self, caller: Principal) -> Transfer:
        shares = {f"person {caller.user or caller.id}": self._most // PERSONS_PART}
        if caller.agent is not None:
            shares[f"agent {caller.id}"] = self._most // AGENTS_PART
        return self._begin(shares)

    def begin_for_address(self, address: str) -> Transfer:
        return self._begin({f"address {address}": self._most // PERSONS_PART})

    def _begin(self, shares: Mapping[str, int]) -> Transfer:
        for who, share in shares.items():
            if self._of[who] >= share:
                # Their own doing, and nothing for the server's log: so not as below.
                raise RateLimited(
                    f"cannot transfer more than {share} files at once for one caller; try again when one is done",
                    {"retryAfter": RETRY_AFTER},
                )
        if self.running >= self._most:
            raise Unavailable(
                f"cannot transfer more than {self._most} files at once; try again when one is done"
            )
        return Transfer(self, tuple(shares))

    def count(self, whose: tuple[str, ...], by: int) -> None:
        self.running += by
        for who in whose:
            self._of[who] += by
            if not self._of[who]:
                del self._of[who]


class Transfer:
    def __init__(self, transfers: Transfers, whose: tuple[str, ...]) -> None:
        self._transfers: Transfers | None = transfers
        self._whose = whose
        transfers.count(whose, 1)

    def end(self) -> None:
        if self._transfers is not None:
            self._transfers.count(self._whose, -1)
            self._transfers = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.end()


# The files of this machine, for whoever the routes let in: every piece of work in a thread, and few at once.

MAX_FILE_BYTES: Final = 1 << 30

FoldersOf: TypeAlias = Callable[[str, str], Sequence[Path] | None]
"""Of a session and its workspace: its folders, links resolved when it began; None if there is no such session."""
Confirm: TypeAlias = Callable[[], Awaitable[None]]
"""Asked before what has arrived takes its place: raises if the caller may not any more."""


class Files:
    """`confinement` first, for one request; then one of the others with it."""

    def __init__(
        self,
        roots: ServedFolders,
        folders_of: FoldersOf,
        *,
        work: Path | None = None,
        max_file_bytes: int = MAX_FILE_BYTES,
    ) -> None:
        """`work` has the folders of sessions that were given none, by workspace and id."""
        self._work = None if work is None else Path(os.path.realpath(work))
        self._roots = roots
        self._folders_of = folders_of
        self._max_file_bytes = max_file_bytes
        self._threads = FileThreads()
        self.transfers = Transfers()

    def confinement(self, session_id: str | None, workspace: str) -> Confinement:
        if session_id is None:
            return self._roots.everywhere()
        folders = self._folders_of(session_id, workspace)
        if folders is None:
            raise NotFound("cannot find the session; list the sessions that there are")
        own = None if self._work is None else self._work / workspace / session_id
        return self._roots.within(folders, own)

    async def folder(self, path: str) -> Path:
        """Of a new session's `directory`: its real path, if it is one that is served."""
        return await self._threads.run(operations.folder, self._roots.everywhere(), path)

    async def entries(self, where: Confinement, path: str) -> list[FsEntry]:
        return await self._threads.run(operations.entries, where, path)

    async def describe(self, where: Confinement, path: str) -> FsStat:
        return await self._threads.run(operations.describe, where, path)

    async def make_folder(self, where: Confinement, path: str) -> str:
        return printable(await self._threads.run(operations.make_folder, where, path))

    async def remove(self, where: Confinement, path: str, *, recursive: bool) -> str:
        return printable(await self._threads.run(operations.remove, where, path, recursive=recursive))

    async def move(self, where: Confinement, asked: FsMove) -> FsMoved:
        source, target = await self._threads.run(
            operations.move, where, asked.from_, asked.to, overwrite=bool(asked.overwrite)
        )
        return FsMoved(from_=printable(source), to=printable(target))

    async def open(self, caller: Principal, where: Confinement, path: str) -> FileDownload:
        transfer = self.transfers.begin(caller)
        try:
            return FileDownload(await self._threads.run(RegularFile, where, path), transfer, self._threads)
        except BaseException:
            transfer.end()
            raise

    async def write(
        self, caller: Principal, where: Confinement, path: str, request: Request, confirm: Confirm
    ) -> FsWritten:
        draft = AtomicFile(where, path)
        with self.transfers.begin(caller):
            try:
                async with aclosing(pieces(request, self._max_file_bytes)) as arriving:
                    await self._threads.run(draft.start)
                    async for piece in arriving:
                        await self._threads.run(draft.write, piece)
                await confirm()
                placed = await self._threads.run(draft.place)
            finally:
                await run_to_end(draft.drop)
        return FsWritten(path=printable(placed), bytes_written=draft.bytes_written)

    async def unpack(
        self, caller: Principal, where: Confinement, path: str, request: Request, confirm: Confirm
    ) -> FsUploaded:
        body = pieces(request, self._max_file_bytes)
        with self.transfers.begin(caller):
            unpacking = await self._threads.run(Unpacker, where, path, self._max_file_bytes)
            try:
                async with aclosing(body) as arriving:
                    async for piece in arriving:
                        await confirm()
                        await self._threads.run(unpacking.feed, piece)
                return unpacking.end()
            finally:
                await run_to_end(unpacking.drop)


class FileDownload:
    """A file on its way out. Whoever has it closes it."""

    def __init__(self, file: RegularFile, transfer: Transfer, threads: FileThreads) -> None:
        self._file = file
        self._transfer = transfer
        self._threads = threads
        self.size = file.size

    async def pieces(self) -> AsyncGenerator[bytes]:
        while piece := await self._threads.run(self._file.read):
            yield piece

    def close(self) -> None:
        self._file.close()
        self._transfer.end()
