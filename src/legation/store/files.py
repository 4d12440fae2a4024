"""Files and folders on disk: opened without following a link, replaced as a whole, changed by one process at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from legation.errors import ConfigInvalid, Conflict, StorageFailed
from legation.store.datafolder import make_folder

READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe must not hold us up
CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

NO_ROOM: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))

# A reader that looks whether the owner lives holds the lock for the length of that look: its time.
LOOK_LIMIT: Final = 0.25
_LOOK_PAUSE: Final = 0.005
# Another process changes a file of the same folder: the time of a few small writes on a slow disk.
TURN_LIMIT: Final = 10.0
_TURN_PAUSE: Final = 0.01


def open_below(at: int, name: str, *, mode: int | None = None, durable: bool = False) -> int:
    """Open a folder in an open one, never through a link. With a `mode` it is made where there is none."""
    try:
        return os.open(name, FOLDER, dir_fd=at)
    except FileNotFoundError:
        if mode is None:
            raise
    with suppress(FileExistsError):  # another was faster
        os.mkdir(name, mode, dir_fd=at)
        if durable:
            os.fsync(at)
    return os.open(name, FOLDER, dir_fd=at)


def write_all(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written


def write_atomically(path: Path, data: bytes) -> None:
    """Replace the file durably and in one step; it is its owner's alone."""
    temporary = path.with_name(path.name + ".new")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(fd, 0o600)  # whatever the umask took, a folder's default gave, or a crash left
            write_all(fd, data, 0)
            os.fsync(fd)
        finally:
            os.close(fd)
        temporary.replace(path)
    except OSError:
        with suppress(OSError):  # it would only take up room
            temporary.unlink()
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# A small file in the data folder: read when asked, replaced as a whole, by one writer at a time.


def read_private(path: Path, largest: int, *, secret: bool = False) -> bytes:
    """Read a file that others cannot change, nor read where it is `secret`; any other one is not believed:
    `ConfigInvalid`. FileNotFoundError or NotADirectoryError where there is none."""
    try:
        fd = os.open(path, READ)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        reason = "it is a link" if path.is_symlink() else error.strerror
        raise ConfigInvalid(
            f"cannot use {path}: {reason}; make it a file that only its owner can read"
        ) from error
    try:
        # Of the open file, not of the path: that may be another one by now.
        if fault := _fault(path, os.fstat(fd), largest, secret=secret):
            raise ConfigInvalid(f"cannot use {path}: {fault}")
        return os.read(fd, largest)
    finally:
        os.close(fd)


def _fault(path: Path, status: os.stat_result, largest: int, *, secret: bool) -> str | None:
    if not stat.S_ISREG(status.st_mode):
        return "it is not a file; remove it"
    if status.st_uid != os.geteuid():
        return (
            f"it belongs to user {status.st_uid}, not to {os.geteuid()}; run Legation as its owner, or give it to "
            "this user with chown"
        )
    mode = f"{stat.S_IMODE(status.st_mode):04o}"
    if secret and status.st_mode & 0o077:
        return f"others can read or change it (mode {mode}); run `chmod 600 {path}`, and rotate the keys if somebody did"
    if status.st_mode & 0o022:
        return f"others can change it (mode {mode}); look at what it says, then run `chmod 600 {path}`"
    if status.st_size > largest:
        return f"it is too long, more than {largest} bytes; restore it from a backup, or remove it"
    return None


def replace_private(path: Path, content: bytes) -> None:
    """Only as the `sole_writer`: a file of the temporary name is what a crash left."""
    with _storage(path):
        path.with_name(path.name + ".new").unlink(missing_ok=True)
        write_atomically(path, content)


@contextmanager
def sole_writer(path: Path) -> Iterator[None]:
    """Be the only one who changes files of that folder; the lock is on the folder and dies with its process. Blocks."""
    with _storage(path):
        make_folder(path.parent)
        fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            _lock(fd, TURN_LIMIT, _TURN_PAUSE)
        except BlockingIOError:
            raise StorageFailed(
                f"cannot change {path}: another process is doing so; try again when it is done"
            ) from None
        yield
    finally:
        os.close(fd)


@contextmanager
def _storage(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageFailed(
            f"cannot write {path}: {error.strerror}; check the folder and its disk"
        ) from error


def _lock(fd: int, limit: float, pause: float) -> None:
    """Take the lock within that time; BlockingIOError where somebody keeps it."""
    deadline = time.monotonic() + limit
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(pause)


class FolderLock:
    """One owner per folder: an advisory lock that dies with its process, and the owner's pid for the message."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def acquire(self) -> None:
        make_folder(self._path.parent)
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _lock(fd, LOOK_LIMIT, _LOOK_PAUSE)
            _must_be_the_one_there(fd, self._path)
        except BlockingIOError:
            owner = os.read(fd, 32).decode(errors="replace").strip() or "unknown"
            os.close(fd)
            raise Conflict(
                f"cannot open {self._path.parent}: process {owner} owns it; stop that one first (`legation stop` stops a server)",
                {"owner": owner},
            ) from None
        self._fd = fd
        with suppress(OSError):  # a full disk: the lock holds all the same
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"%d\n" % os.getpid(), 0)

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _must_be_the_one_there(fd: int, path: Path) -> None:
    """While we waited, the folder may have been moved away and made anew, by a restore."""
    try:
        there = os.path.samestat(os.fstat(fd), path.stat())
    except OSError:
        there = False
    if not there:
        os.close(fd)
        raise Conflict(f"cannot open {path.parent}: it was moved while it was opened; try again")


def owner_alive(path: Path) -> bool:
    """Whether a process holds the lock; looks without taking it for longer than the look."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(fd)
