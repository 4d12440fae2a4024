"""Files beneath one folder, reached part by part without following a link. Blocks: call it off the loop.

INV-B4  No link that stands in the folder leads out of it: a link is never opened, listed or written through.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from legation.store.datafolder import make_folder

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
