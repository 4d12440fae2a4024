"""The files of this machine, for whoever the routes let in: every piece of work in a thread, and few at once."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Final, TypeAlias

from starlette.requests import Request

from legation.errors import NotFound
from legation.server.fs import listing, moving, removing
from legation.server.fs.body import pieces
from legation.server.fs.listing import printable
from legation.server.fs.reading import OpenFile
from legation.server.fs.roots import Confinement, Roots
from legation.server.fs.threads import FileThreads, run_to_end
from legation.server.fs.transfers import Transfer, Transfers
from legation.server.fs.upload import Unpacking
from legation.server.fs.writing import Draft
from legation.wire.api.fs import FsEntry, FsMove, FsMoved, FsStat, FsUploaded, FsWritten
from legation.wire.principal import Principal

MAX_FILE_BYTES: Final = 1 << 30

FoldersOf: TypeAlias = Callable[[str, str], Sequence[Path] | None]
"""Of a session and its workspace: its folders, links resolved when it began; None if there is no such session."""
Confirm: TypeAlias = Callable[[], Awaitable[None]]
"""Asked before what has arrived takes its place: raises if the caller may not any more."""


class Files:
    """`confinement` first, for one request; then one of the others with it."""

    def __init__(
        self,
        roots: Roots,
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
        return await self._threads.run(listing.folder, self._roots.everywhere(), path)

    async def entries(self, where: Confinement, path: str) -> list[FsEntry]:
        return await self._threads.run(listing.entries, where, path)

    async def describe(self, where: Confinement, path: str) -> FsStat:
        return await self._threads.run(listing.describe, where, path)

    async def make_folder(self, where: Confinement, path: str) -> str:
        return printable(await self._threads.run(moving.make_folder, where, path))

    async def remove(self, where: Confinement, path: str, *, recursive: bool) -> str:
        return printable(await self._threads.run(removing.remove, where, path, recursive=recursive))

    async def move(self, where: Confinement, asked: FsMove) -> FsMoved:
        source, target = await self._threads.run(
            moving.move, where, asked.from_, asked.to, overwrite=bool(asked.overwrite)
        )
        return FsMoved(from_=printable(source), to=printable(target))

    async def open(self, caller: Principal, where: Confinement, path: str) -> Reading:
        transfer = self.transfers.begin(caller)
        try:
            return Reading(await self._threads.run(OpenFile, where, path), transfer, self._threads)
        except BaseException:
            transfer.end()
            raise

    async def write(
        self, caller: Principal, where: Confinement, path: str, request: Request, confirm: Confirm
    ) -> FsWritten:
        draft = Draft(where, path)
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
            unpacking = await self._threads.run(Unpacking, where, path, self._max_file_bytes)
            try:
                async with aclosing(body) as arriving:
                    async for piece in arriving:
                        await confirm()
                        await self._threads.run(unpacking.feed, piece)
                return unpacking.end()
            finally:
                await run_to_end(unpacking.drop)


class Reading:
    """A file on its way out. Whoever has it closes it."""

    def __init__(self, file: OpenFile, transfer: Transfer, threads: FileThreads) -> None:
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
