"""The files of this machine, for callers that the routes let in: all work in threads, few at once, transfers counted."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Final, ParamSpec, Self, TypeAlias, TypeVar

from starlette.requests import Request

from legation.errors import NotFound, RateLimited, Unavailable
from legation.server.fs import operations
from legation.server.fs.operations import AtomicFile, RegularFile, printable
from legation.server.fs.paths import Confinement, ServedFolders
from legation.store.datafolder import folder_name
from legation.tasks import in_thread
from legation.wire.api.fs import FsUploaded, FsWritten
from legation.wire.principal import Principal

# At once: a slow disk must not take all threads of the loop, which are the database's and everybody's too.
FILE_THREADS: Final = 4
MAX_FILE_BYTES: Final = 1 << 30
MOST_TRANSFERS: Final = 128
PERSONS_PART: Final = 4  # a quarter is one person's, or one address' that brings a link and no credential
AGENTS_PART: Final = 8
RETRY_AFTER: Final = 1  # seconds: a guess, a transfer takes as long as its caller likes

_P = ParamSpec("_P")
_T = TypeVar("_T")

FoldersOf: TypeAlias = Callable[[str, str], Awaitable[Sequence[Path] | None]]
"""The folders of a session in a workspace, links resolved when it began; None if there is no such session."""
Confirm: TypeAlias = Callable[[], Awaitable[object]]
"""Asked before what has arrived takes its place: raises if the caller may not any more."""


class Transfers:
    """Uploads and downloads at once, counted: each holds descriptors for as long as its caller likes.

    INV-T1  Whatever one person does, by whichever of their credentials, most of the places are left to others; and
            whatever an agent does, half of those of its maker."""

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
    """One of them, until its `end`."""

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

    def __exit__(self, *_: object) -> None:
        self.end()


class Files:
    """The files that this server serves. Get the `confinement` of a request first, then work with it."""

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
        self._threads = asyncio.Semaphore(FILE_THREADS)
        self.transfers = Transfers()

    async def confinement(self, session_id: str | None, workspace: str) -> Confinement:
        if session_id is None:
            return self._roots.everywhere()
        folders = await self._folders_of(session_id, workspace)
        if folders is None:
            raise NotFound("cannot find the session; list the sessions that there are")
        own = None if self._work is None else self._work / workspace / folder_name(session_id)
        return self._roots.within(folders, own)

    async def run(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run one of the `operations` in a thread, as soon as one is free, and to its end."""
        async with self._threads:
            return await in_thread(work, *args, **kwargs)

    async def folder(self, path: str) -> Path:
        """Find the real path of a new session's or process's folder, if it is one that is served."""
        return await self.run(operations.folder, self._roots.everywhere(), path)

    def config_of(self, folder: Path) -> Confinement:
        """Confine to a dot-folder of ours in a folder that is served: it may lie directly below the home."""
        return self._roots.opened(folder)

    async def pieces(self, file: RegularFile) -> AsyncGenerator[bytes]:
        while piece := await self.run(file.read):
            yield piece

    async def write(
        self, caller: Principal, where: Confinement, path: str, request: Request, confirm: Confirm
    ) -> FsWritten:
        from legation.server.fs.upload import pieces

        file = AtomicFile(where, path)
        with self.transfers.begin(caller):
            try:
                async with aclosing(pieces(request, self._max_file_bytes)) as arriving:
                    await self.run(file.start)
                    async for piece in arriving:
                        await self.run(file.write, piece)
                await confirm()
                placed = await self.run(file.place)
            finally:
                await in_thread(file.close)
        return FsWritten(path=printable(placed), bytes_written=file.bytes_written)

    async def unpack(
        self, caller: Principal, where: Confinement, path: str, request: Request, confirm: Confirm
    ) -> FsUploaded:
        from legation.server.fs.upload import Unpacker, pieces

        body = pieces(request, self._max_file_bytes)
        with self.transfers.begin(caller):
            unpacker = await self.run(Unpacker, where, path, self._max_file_bytes)
            try:
                async with aclosing(body) as arriving:
                    async for piece in arriving:
                        await confirm()
                        await self.run(unpacker.feed, piece)
                return unpacker.end()
            finally:
                await in_thread(unpacker.close)
