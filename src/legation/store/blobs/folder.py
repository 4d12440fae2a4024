"""Blobs in a folder: `<root>/<key>`, files 0600 in folders 0700, for an installation on one machine."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import os
import secrets
import stat
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple, ParamSpec, Self, TypeVar

from legation.errors import Conflict, NotFound, StorageFailed
from legation.store.blobs.base import BlobInfo, Content, LinkSigner, check_key, check_prefix, read_all
from legation.store.datafolder import make_folder

# Files beneath one folder, reached part by part without following a link. Blocks: call it off the loop.
#
# INV-B4  No link that stands in the folder leads out of it: a link is never opened, listed or written through.

TEMPORARY: Final = ".incoming"  # no key begins with a dot

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe must not hold us up
_MAKE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# A folder that became empty is removed, maybe just as another file is put into it: that one tries again.
PLACE_ATTEMPTS: Final = 20


class Found(NamedTuple):
    parts: tuple[str, ...]
    status: os.stat_result


def prepare(root: Path) -> None:
    """Makes the folder and removes what a crash left; what a living process is writing is locked, and stays."""
    make_folder(root)
    with _opened(root, (TEMPORARY,), make=True) as at, os.scandir(at) as entries:
        for entry in entries:
            with suppress(OSError), _fd(os.open(entry.name, _READ, dir_fd=at)) as fd:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(entry.name, dir_fd=at)


def new_temporary(root: Path, name: str) -> int:
    with _opened(root, (TEMPORARY,), make=True) as at:
        fd = os.open(name, _MAKE, 0o600, dir_fd=at)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return fd


def drop_temporary(root: Path, name: str) -> None:
    with suppress(OSError), _opened(root, (TEMPORARY,)) as at:
        os.unlink(name, dir_fd=at)


def place(root: Path, name: str, parts: Sequence[str], *, if_absent: bool) -> None:
    """The temporary takes its place, durably. FileExistsError with `if_absent` where one stands."""
    for _ in range(PLACE_ATTEMPTS - 1):
        with suppress(FileNotFoundError):
            return _place(root, name, parts, if_absent=if_absent)
    return _place(root, name, parts, if_absent=if_absent)


def _place(root: Path, name: str, parts: Sequence[str], *, if_absent: bool) -> None:
    with _opened(root, (TEMPORARY,)) as source, _opened(root, parts[:-1], make=True) as target:
        if if_absent:
            os.link(name, parts[-1], src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
            os.unlink(name, dir_fd=source)
        else:
            os.rename(name, parts[-1], src_dir_fd=source, dst_dir_fd=target)
        os.fsync(target)


def open_file(root: Path, parts: Sequence[str]) -> int:
    """Its descriptor; whatever is not a regular file counts as absent."""
    with _opened(root, parts[:-1]) as at:
        fd = os.open(parts[-1], _READ, dir_fd=at)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise FileNotFoundError(errno.ENOENT, "not a regular file")
    return fd


def look(root: Path, parts: Sequence[str]) -> os.stat_result:
    with _opened(root, parts[:-1]) as at:
        status = os.stat(parts[-1], dir_fd=at, follow_symlinks=False)
    if not stat.S_ISREG(status.st_mode):
        raise FileNotFoundError(errno.ENOENT, "not a regular file")
    return status


def remove(root: Path, parts: Sequence[str]) -> None:
    """The file, and the folders above it that are empty without it."""
    with _opened(root, parts[:-1]) as at:
        os.unlink(parts[-1], dir_fd=at)
        os.fsync(at)
    for depth in range(len(parts) - 1, 0, -1):
        try:
            with _opened(root, parts[: depth - 1]) as at:
                os.rmdir(parts[depth - 1], dir_fd=at)
        except OSError:  # not empty, or gone already
            return


def children(root: Path, parts: Sequence[str]) -> tuple[list[Found], list[tuple[str, ...]]]:
    """The regular files and the folders right beneath; nothing where there is no such folder."""
    files: list[Found] = []
    folders: list[tuple[str, ...]] = []
    with (
        suppress(FileNotFoundError, NotADirectoryError),
        _opened(root, parts) as at,
        os.scandir(at) as entries,
    ):
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folders.append((*parts, entry.name))
            elif entry.is_file(follow_symlinks=False):
                with suppress(FileNotFoundError):  # deleted meanwhile
                    files.append(Found((*parts, entry.name), entry.stat(follow_symlinks=False)))
    return files, folders


@contextmanager
def _opened(root: Path, parts: Sequence[str], *, make: bool = False) -> Iterator[int]:
    at = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # the owner may have it be a link
    try:
        for part in parts:
            below = _below(at, part, make=make)
            os.close(at)
            at = below
        yield at
    finally:
        os.close(at)


def _below(at: int, part: str, *, make: bool) -> int:
    try:
        return os.open(part, _FOLDER, dir_fd=at)
    except FileNotFoundError:
        if not make:
            raise
        with suppress(FileExistsError):  # another was faster
            os.mkdir(part, 0o700, dir_fd=at)
            os.fsync(at)
        return os.open(part, _FOLDER, dir_fd=at)


@contextmanager
def _fd(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


# One blob's file, being written or being read. Blocks: call it off the loop, one call at a time.


class NewBlob:
    """Written under a name that no key has, until it is durable and takes its place."""

    def __init__(self, root: Path, key: str) -> None:
        self.key = key
        self._root = root
        self._name = secrets.token_hex(16)
        self._fd = -1
        self._digest = hashlib.sha256()

    def start(self) -> None:
        self._fd = new_temporary(self._root, self._name)

    def write(self, block: bytes | memoryview) -> None:
        self._digest.update(block)
        view = memoryview(block)
        while view:
            view = view[os.write(self._fd, view) :]

    def place(self, *, if_absent: bool) -> BlobInfo:
        os.fsync(self._fd)
        place(self._root, self._name, self.key.split("/"), if_absent=if_absent)
        return info_of(self.key, os.fstat(self._fd), self._digest.hexdigest())

    def drop(self) -> None:
        """Where it was not placed, nothing is left of it."""
        if self._fd >= 0:
            drop_temporary(self._root, self._name)
            os.close(self._fd)
            self._fd = -1


class OpenBlob:
    def __init__(self, root: Path, key: str) -> None:
        self.key = key
        self._root = root
        self._fd = -1

    def open(self) -> BlobInfo:
        self._fd = open_file(self._root, self.key.split("/"))
        return info_of(self.key, os.fstat(self._fd))

    def read(self, size: int) -> bytes:
        """Nothing at its end, and when it is closed."""
        return os.read(self._fd, size) if self._fd >= 0 else b""

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()  # a reader that was forgotten must not hold a descriptor


def info_of(key: str, status: os.stat_result, sha256: str | None = None) -> BlobInfo:
    return BlobInfo(key, status.st_size, status.st_mtime_ns // 1_000_000, sha256)


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
            prepare(root)

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
        draft = NewBlob(self._root, check_key(key))
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
        file = OpenBlob(self._root, check_key(key))
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
            draft = NewBlob(self._root, "")
            draft.start()
            draft.drop()

    def _put_whole(self, draft: NewBlob, data: bytes | memoryview, if_absent: bool) -> BlobInfo:
        try:
            self._start(draft)
            self._write(draft, data)
            return self._place(draft, if_absent)
        finally:
            draft.drop()

    def _start(self, draft: NewBlob) -> None:
        with _told(f"store blob {draft.key}"):
            draft.start()

    def _write(self, draft: NewBlob, block: bytes | memoryview) -> None:
        with _told(f"store blob {draft.key}"):
            draft.write(block)

    def _place(self, draft: NewBlob, if_absent: bool) -> BlobInfo:
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

    def _open(self, file: OpenBlob) -> BlobInfo:
        with _told_if_absent(file.key):
            return file.open()

    def _look(self, key: str) -> BlobInfo:
        with _told_if_absent(key):
            return info_of(key, look(self._root, key.split("/")))

    def _delete(self, key: str) -> None:
        absent = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
        with suppress(*absent), _told(f"delete blob {key}", *absent):
            remove(self._root, key.split("/"))

    def _level(self, parts: tuple[str, ...]) -> _Level:
        """The last first. A folder sorts by its name with the slash, as its keys do: `a-b/c` before `a/b`."""
        with _told(f"list the blobs in {'/'.join(parts)}"):
            files, folders = children(self._root, parts)
        found: dict[str, BlobInfo | tuple[str, ...]] = {"/".join(folder) + "/": folder for folder in folders}
        for file in files:
            key = "/".join(file.parts)
            found[key] = info_of(key, file.status)
        return [found[name] for name in sorted(found, reverse=True)]


class FileReading:
    def __init__(self, file: OpenBlob, info: BlobInfo) -> None:
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
