"""A chain in a file, as it is written: one line for each step, in the form of an export.

INV-F3  A step is in the file before anybody acts on it: a transaction that appends returns after that, or fails.
INV-F4  The file is whole lines of one chain, whenever its writer is killed; but for a last line without an end, which
        nobody acted on. `whole_lines` leaves that one out.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import ParamSpec, Self, TypeVar

from legation.approvals.chain import Chain, Ledger
from legation.approvals.trace import Draft, Step
from legation.approvals.trace_export import lines
from legation.errors import StorageFailed
from legation.store.database.transaction import Database, Transaction
from legation.store.datafolder import make_folder

T = TypeVar("T")
P = ParamSpec("P")


class TraceFile:
    """`with TraceFile(path)`: made when there is something to write, private to its owner."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        self._size = 0  # of what is whole

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def append(self, data: bytes) -> None:
        """Whole lines; durable when it returns. Blocks."""
        try:
            fd = self._opened()
            os.ftruncate(fd, self._size)  # what an attempt that failed left behind
            written = 0
            while written < len(data):
                written += os.pwrite(fd, data[written:], self._size + written)
            os.fdatasync(fd)
        except OSError as error:
            raise StorageFailed(
                f"cannot write the trace to {self.path}: {error.strerror}; mend that, or choose another --data-dir"
            ) from error
        self._size += len(data)

    def _opened(self) -> int:
        """Nobody else's: a chain that is there already is not gone on with, for its keys are gone."""
        if self._fd is None:
            make_folder(self.path.parent)
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        return self._fd


class FiledLedger(Ledger):
    """A ledger of one workspace whose steps are in a file as well (INV-F3)."""

    def __init__(self, database: Database, chain: Chain, workspace: str, file: TraceFile) -> None:
        super().__init__(database, chain)
        self._workspace = workspace
        self._file = file
        self._filed = 0  # the number of the last step in the file
        self._filing = asyncio.Lock()

    async def transact(
        self, workspace: str, work: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        result = await super().transact(workspace, work, *args, **kwargs)
        await self._file_new()
        return result

    async def append(self, workspace: str, drafts: Sequence[Draft], now_ms: int) -> list[Step]:
        steps = await super().append(workspace, drafts, now_ms)
        await self._file_new()
        return steps

    async def _file_new(self) -> None:
        async with self._filing:
            place = (self._workspace, self.chain.server, self._filed)
            async with aclosing(lines(self.database, self.chain.sealer, *place)) as unfiled:
                new = [line async for line in unfiled]
            if new:
                await _to_the_end(self._write, new)

    def _write(self, new: Sequence[bytes]) -> None:
        """In a thread. All steps of a transaction cost one wait for the disk."""
        self._file.append(b"".join(new))
        self._filed += len(new)


async def _to_the_end(work: Callable[[Sequence[bytes]], None], new: Sequence[bytes]) -> None:
    """A caller that is cancelled waits for the thread all the same: two at once would write into each other."""
    working = asyncio.ensure_future(asyncio.to_thread(work, new))
    try:
        await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait({working})  # bounded by the disk
        raise


def whole_lines(path: Path) -> Iterator[bytes]:
    """Without a last line that was being written when its writer was killed."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line
