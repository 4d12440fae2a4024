"""Blobs in a folder: `<root>/<key>`, files 0600 in folders 0700, for an installation on one machine."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, ParamSpec, Self, TypeVar

from legation.errors import Conflict, NotFound, StorageFailed
from legation.store.blobs import beneath
from legation.store.blobs.blobs import BlobInfo, Content, check_key, check_prefix, read_all
from legation.store.blobs.file import Draft, OpenFile, info_of
from legation.store.blobs.links import LinkSigner

CHUNK: Final = 1024 * 1024  # bytes for each trip to a thread

_NO_ROOM: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_FILE: Final = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO}
_Level = list[BlobInfo | tuple[str, ...]]  # what stands right in one folder
_P = ParamSpec("_P")
_T = TypeVar("_T")


class FolderBlobs:
    def __init__(self, root: Path, links: LinkSigner) -> None:
        self._root = root
        self._links = links
        with _told(f"open the blobs in {root}"):
            beneath.prepare(root)

    async def check(self) -> None:
        await _off_loop(self._try_writing)

    async def put(
        self,
        key: str,
        data: Content,
        *,
        content_type: str | None = None,  # noqa: ARG002  a file has none; the link names it
        if_absent: bool = False,
    ) -> BlobInfo:
        draft = Draft(self._root, check_key(key))
        if isinstance(data, bytes | memoryview):
            return await _off_loop(self._put_whole, draft, data, if_absent)
        try:
            await _off_loop(self._start, draft)
            async for block in _gathered(data):
                await _off_loop(self._write, draft, block)
            return await _off_loop(self._place, draft, if_absent)
        finally:
            await _off_loop(draft.drop)

    async def get(self, key: str) -> FileReading:
        file = OpenFile(self._root, check_key(key))
        try:
            return FileReading(file, await _off_loop(self._open, file))
        except BaseException:
            file.close()
            raise

    async def read(self, key: str, limit: int) -> bytes:
        return await read_all(await self.get(key), limit)

    async def head(self, key: str) -> BlobInfo:
        return await _off_loop(self._look, check_key(key))

    async def delete(self, key: str) -> None:
        await _off_loop(self._delete, check_key(key))

    async def list(self, prefix: str) -> AsyncIterator[BlobInfo]:
        waiting: _Level = [tuple(check_prefix(prefix).split("/"))]
        while waiting:
            found = waiting.pop()
            if isinstance(found, BlobInfo):
                yield found
            else:
                waiting += await _off_loop(self._level, found)

    async def delete_prefix(self, prefix: str) -> int:
        keys = [found.key async for found in self.list(prefix)]
        for key in keys:
            await self.delete(key)
        return len(keys)

    async def link(
        self, key: str, *, expires_in: int, filename: str | None = None, content_type: str | None = None
    ) -> str:
        return self._links.link(key, expires_in=expires_in, filename=filename, content_type=content_type)

    # What follows blocks, and runs in threads.

    def _try_writing(self) -> None:
        with _told(f"write blobs to {self._root}"):
            draft = Draft(self._root, "")
            draft.start()
            draft.drop()

    def _put_whole(self, draft: Draft, data: bytes | memoryview, if_absent: bool) -> BlobInfo:
        try:
            self._start(draft)
            self._write(draft, data)
            return self._place(draft, if_absent)
        finally:
            draft.drop()

    def _start(self, draft: Draft) -> None:
        with _told(f"store blob {draft.key}"):
            draft.start()

    def _write(self, draft: Draft, block: bytes | memoryview) -> None:
        with _told(f"store blob {draft.key}"):
            draft.write(block)

    def _place(self, draft: Draft, if_absent: bool) -> BlobInfo:
        what = f"cannot store blob {draft.key}"
        try:
            with _told(f"store blob {draft.key}", FileExistsError, IsADirectoryError, NotADirectoryError):
                return draft.place(if_absent=if_absent)
        except FileExistsError:
            raise Conflict(f"{what}: there is one, and it stays; choose another key") from None
        except IsADirectoryError:
            raise Conflict(f"{what}: other keys begin with it; choose another key") from None
        except NotADirectoryError:
            raise Conflict(f"{what}: its key begins with that of another; choose another key") from None

    def _open(self, file: OpenFile) -> BlobInfo:
        with _told_if_absent(file.key):
            return file.open()

    def _look(self, key: str) -> BlobInfo:
        with _told_if_absent(key):
            return info_of(key, beneath.look(self._root, key.split("/")))

    def _delete(self, key: str) -> None:
        absent = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
        with suppress(*absent), _told(f"delete blob {key}", *absent):
            beneath.remove(self._root, key.split("/"))

    def _level(self, parts: tuple[str, ...]) -> _Level:
        """The last first. A folder sorts by its name with the slash, as its keys do: `a-b/c` before `a/b`."""
        with _told(f"list the blobs in {'/'.join(parts)}"):
            files, folders = beneath.children(self._root, parts)
        found: dict[str, BlobInfo | tuple[str, ...]] = {"/".join(folder) + "/": folder for folder in folders}
        for file in files:
            key = "/".join(file.parts)
            found[key] = info_of(key, file.status)
        return [found[name] for name in sorted(found, reverse=True)]


class FileReading:
    def __init__(self, file: OpenFile, info: BlobInfo) -> None:
        self._file = file
        self.info = info

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if block := await _off_loop(self._next):
            return block
        self._file.close()
        raise StopAsyncIteration

    def _next(self) -> bytes:
        with _told(f"read blob {self.info.key}"):
            return self._file.read(CHUNK)

    async def aclose(self) -> None:
        self._file.close()


async def _gathered(data: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Small pieces together, so that each trip to a thread is worth it."""
    pieces: list[bytes] = []
    size = 0
    async for piece in data:
        pieces.append(piece)
        size += len(piece)
        if size >= CHUNK:
            yield b"".join(pieces)
            pieces, size = [], 0
    if pieces:
        yield b"".join(pieces)


async def _off_loop(work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Who is cancelled waits for the thread all the same: it uses a descriptor that is closed next. That is
    the time of one read or write of the disk."""
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


@contextmanager
def _told(what: str, *but: type[OSError]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, but):
            raise
        remedy = "make room on its disk" if error.errno in _NO_ROOM else "check the folder and its disk"
        raise StorageFailed(f"cannot {what}: {error.strerror}; {remedy}") from error


@contextmanager
def _told_if_absent(key: str) -> Iterator[None]:
    """A link, a pipe or a folder in its place is no blob either."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise StorageFailed(f"cannot read blob {key}: {error.strerror}; check its disk") from error
        raise NotFound(
            f"cannot read blob {key}: there is none; list its prefix to see what is there"
        ) from None
