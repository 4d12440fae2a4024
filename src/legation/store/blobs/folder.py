"""Blobs in a folder: `<root>/<key>`, files 0600 in folders 0700, for an installation on one machine.

INV-B4  No link that stands in the folder leads out of it: a link is never opened, listed or written through.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import stat
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Self

from legation.errors import Conflict, NotFound, StorageFailed
from legation.store.blobs.base import BlobInfo, Content, LinkSigner, check_key, check_prefix, read_all
from legation.store.datafolder import make_folder
from legation.store.files import CREATE, NO_ROOM, READ, open_below
from legation.tasks import in_thread

CHUNK: Final = 1024 * 1024  # bytes for each trip to a thread
TEMPORARY: Final = ".incoming"  # no key begins with a dot
# A folder that became empty is removed, maybe just as another file is put into it: that one tries again.
PLACE_ATTEMPTS: Final = 20

_NO_FILE: Final = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO}
_ABSENT: Final = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
_Level = list[BlobInfo | tuple[str, ...]]  # what stands right in one folder


class FolderBlobs:
    def __init__(self, root: Path, links: LinkSigner) -> None:
        self._root = root
        self._links = links
        with _told(f"open the blobs in {root}"):
            _prepare(root)

    async def check(self) -> None:
        await in_thread(self._try_writing)

    async def put(
        self,
        key: str,
        data: Content,
        *,
        content_type: str | None = None,  # noqa: ARG002  a file has none; the link names it
        if_absent: bool = False,
    ) -> BlobInfo:
        new = NewBlob(self._root, check_key(key))
        if isinstance(data, bytes | memoryview):
            return await in_thread(new.put, data, if_absent)
        try:
            await in_thread(new.start)
            async for block in _gathered(data):
                await in_thread(new.write, block)
            return await in_thread(new.place, if_absent)
        finally:
            await in_thread(new.drop)

    async def get(self, key: str) -> FileReading:
        return await in_thread(FileReading.open, self._root, check_key(key))

    async def read(self, key: str, limit: int) -> bytes:
        return await read_all(await self.get(key), limit)

    async def head(self, key: str) -> BlobInfo:
        return await in_thread(self._look, check_key(key))

    async def delete(self, key: str) -> None:
        await in_thread(self._delete, check_key(key))

    async def list(self, prefix: str) -> AsyncIterator[BlobInfo]:
        waiting: _Level = [tuple(check_prefix(prefix).split("/"))]
        while waiting:
            found = waiting.pop()
            if isinstance(found, BlobInfo):
                yield found
            else:
                waiting += await in_thread(self._level, found)

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
            fd, name = _new_temporary(self._root)
            _drop_temporary(self._root, fd, name)

    def _look(self, key: str) -> BlobInfo:
        *folders, name = key.split("/")
        with _told_if_absent(key), _opened(self._root, folders) as at:
            return _info(key, os.stat(name, dir_fd=at, follow_symlinks=False))

    def _delete(self, key: str) -> None:
        """The file, and the folders above it that are empty without it."""
        *folders, name = key.split("/")
        with suppress(*_ABSENT), _told(f"delete blob {key}", *_ABSENT):
            with _opened(self._root, folders) as at:
                os.unlink(name, dir_fd=at)
                os.fsync(at)
            with suppress(OSError):  # not empty, or gone already
                while folders:
                    empty = folders.pop()
                    with _opened(self._root, folders) as at:
                        os.rmdir(empty, dir_fd=at)

    def _level(self, parts: tuple[str, ...]) -> _Level:
        """The last first. A folder sorts by its name with the slash, as its keys do: `a-b/c` before `a/b`."""
        found: dict[str, BlobInfo | tuple[str, ...]] = {}
        with (
            _told(f"list the blobs in {'/'.join(parts)}"),
            suppress(FileNotFoundError, NotADirectoryError),
            _opened(self._root, parts) as at,
            os.scandir(at) as entries,
        ):
            for entry in entries:
                key = "/".join((*parts, entry.name))
                if entry.is_dir(follow_symlinks=False):
                    found[key + "/"] = (*parts, entry.name)
                elif entry.is_file(follow_symlinks=False):
                    with suppress(FileNotFoundError):  # deleted meanwhile
                        found[key] = _info(key, entry.stat(follow_symlinks=False))
        return [found[name] for name in sorted(found, reverse=True)]


class NewBlob:
    """A blob that is being written, under a name that no key has until it is durable and takes its place.

    Blocks: call it off the loop, one call at a time."""

    def __init__(self, root: Path, key: str) -> None:
        self._root = root
        self._key = key
        self._fd, self._name = -1, ""
        self._digest = hashlib.sha256()

    def put(self, data: bytes | memoryview, if_absent: bool) -> BlobInfo:
        """All of it at once."""
        try:
            self.start()
            self.write(data)
            return self.place(if_absent)
        finally:
            self.drop()

    def start(self) -> None:
        with _told(f"store blob {self._key}"):
            self._fd, self._name = _new_temporary(self._root)

    def write(self, block: bytes | memoryview) -> None:
        self._digest.update(block)
        view = memoryview(block)
        with _told(f"store blob {self._key}"):
            while view:
                view = view[os.write(self._fd, view) :]

    def place(self, if_absent: bool) -> BlobInfo:
        what = f"cannot store blob {self._key}"
        try:
            with _told(f"store blob {self._key}", FileExistsError, IsADirectoryError, NotADirectoryError):
                os.fsync(self._fd)
                _place(self._root, self._name, self._key.split("/"), if_absent=if_absent)
                return _info(self._key, os.fstat(self._fd), self._digest.hexdigest())
        except FileExistsError:
            raise Conflict(f"{what}: there is one, and it stays; choose another key") from None
        except IsADirectoryError:
            raise Conflict(f"{what}: other keys begin with it; choose another key") from None
        except NotADirectoryError:
            raise Conflict(f"{what}: its key begins with that of another; choose another key") from None

    def drop(self) -> None:
        """Leave nothing of it, unless it was placed."""
        if self._fd >= 0:
            _drop_temporary(self._root, self._fd, self._name)
            self._fd = -1


class FileReading:
    def __init__(self, info: BlobInfo, fd: int) -> None:
        self.info = info
        self._fd = fd

    @classmethod
    def open(cls, root: Path, key: str) -> Self:
        """Blocks: call it off the loop."""
        *folders, name = key.split("/")
        with _told_if_absent(key):
            with _opened(root, folders) as at:
                fd = os.open(name, READ, dir_fd=at)
            try:
                return cls(_info(key, os.fstat(fd)), fd)
            except OSError:
                os.close(fd)
                raise

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if block := await in_thread(self._read):
            return block
        self._close()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self._close()

    def __del__(self) -> None:
        self._close()  # a reader that was forgotten must not hold a descriptor

    def _read(self) -> bytes:
        """Nothing at its end, and when it is closed."""
        with _told(f"read blob {self.info.key}"):
            return os.read(self._fd, CHUNK) if self._fd >= 0 else b""

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


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


def _prepare(root: Path) -> None:
    """Make the folder and remove what a crash left; what a living process is writing is locked, and stays."""
    make_folder(root)
    with _opened(root, (TEMPORARY,), make=True) as at, os.scandir(at) as entries:
        for entry in entries:
            with suppress(OSError):
                fd = os.open(entry.name, READ, dir_fd=at)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(entry.name, dir_fd=at)
                finally:
                    os.close(fd)


def _new_temporary(root: Path) -> tuple[int, str]:
    name = secrets.token_hex(16)
    with _opened(root, (TEMPORARY,), make=True) as at:
        fd = os.open(name, CREATE, 0o600, dir_fd=at)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return fd, name


def _drop_temporary(root: Path, fd: int, name: str) -> None:
    with suppress(OSError), _opened(root, (TEMPORARY,)) as at:
        os.unlink(name, dir_fd=at)
    os.close(fd)


def _place(root: Path, name: str, parts: Sequence[str], *, if_absent: bool) -> None:
    """Put the temporary into its place, durably. FileExistsError with `if_absent` where one stands."""
    for attempt in range(1, PLACE_ATTEMPTS + 1):
        try:
            with _opened(root, (TEMPORARY,)) as source, _opened(root, parts[:-1], make=True) as target:
                if if_absent:
                    os.link(name, parts[-1], src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
                    os.unlink(name, dir_fd=source)
                else:
                    os.rename(name, parts[-1], src_dir_fd=source, dst_dir_fd=target)
                os.fsync(target)
                return
        except FileNotFoundError:
            if attempt == PLACE_ATTEMPTS:
                raise


@contextmanager
def _opened(root: Path, folders: Sequence[str], *, make: bool = False) -> Iterator[int]:
    """A folder beneath the root, reached part by part without following a link."""
    at = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # the owner may have it be a link
    try:
        for name in folders:
            below = open_below(at, name, mode=0o700 if make else None, durable=True)
            os.close(at)
            at = below
        yield at
    finally:
        os.close(at)


def _info(key: str, status: os.stat_result, sha256: str | None = None) -> BlobInfo:
    """FileNotFoundError for whatever is not a regular file: it counts as absent."""
    if not stat.S_ISREG(status.st_mode):
        raise FileNotFoundError(errno.ENOENT, "not a regular file")
    return BlobInfo(key, status.st_size, status.st_mtime_ns // 1_000_000, sha256)


@contextmanager
def _told(what: str, *but: type[OSError]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, but):
            raise
        remedy = "make room on its disk" if error.errno in NO_ROOM else "check the folder and its disk"
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
